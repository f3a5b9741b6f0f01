"""Moving tokens: compiled copies from where they are into the buffers of a shard. No packing decision is made here.

Tokens are read through their memory address, straight from the mapped token files: a window has thousands of record
batches, and joining them first would copy every token once more. All indices are int64: mixing in int32 costs a factor
of two. Loops run over views from 0 on: where an index might be negative, none is vectorised, which costs a factor of
four. About .4 nanoseconds per token with positions.
"""

from typing import Any

import numpy as np
from numba import carray, njit
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from packprep.schemas import NO_LOSS

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
_NO_LOSS = NO_LOSS


@intrinsic
def pointer(typing_context: Any, address: Any) -> Any:
    """The address as a pointer that `carray` takes."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), codegen


@njit(cache=True, nogil=True)
def copy(values: NDArray[Any], out: NDArray[Any]) -> None:
    """Both of one length."""
    for place in range(len(out)):
        out[place] = values[place]


def with_ends(offsets: Int64, ends: int) -> Int64:
    """Where documents lie once each has so many tokens more, [documents + 1]; one without tokens stays without."""
    lengths = np.diff(offsets)
    return np.append(0, np.cumsum(lengths + ends * (lengths > 0)))


@njit(cache=True, nogil=True)
def add_ends(ids: Int32, offsets: Int64, wider: Int64, bos: int, eos: int, out: NDArray[Any]) -> None:
    """Each document with BOS before and EOS after it; one without ids stays without. bos, eos: id, or -1 for none.

    ids: [tokens]. offsets, wider: [documents + 1], where documents lie in ids and in out.
    """
    for document in range(len(offsets) - 1):
        first, last = offsets[document], offsets[document + 1]
        if first == last:
            continue
        at = wider[document]
        if bos >= 0:
            out[at] = bos
            at += 1
        copy(ids[first:last], out[at : at + last - first])
        if eos >= 0:
            out[wider[document + 1] - 1] = eos


@njit(cache=True, nogil=True)
def make_room(values: NDArray[Any], offsets: Int64, wider: Int64, before: int, out: NDArray[Any]) -> None:
    """Values of documents at their places among those of `add_ends`: behind `before` values of the document's BOS.

    offsets, wider: [documents + 1], where documents lie in values and in out. What is no document's value stays.
    """
    for document in range(len(offsets) - 1):
        first, last = offsets[document], offsets[document + 1]
        at = wider[document] + before
        copy(values[first:last], out[at : at + last - first])


@njit(cache=True, nogil=True)
def tokens_at(address: Int64, like: NDArray[Any]) -> Int32:
    """The token at each address, [addresses]. like: an array of the type of what is there."""
    out = np.empty(len(address), np.int32)
    for i in range(len(address)):
        out[i] = carray(pointer(address[i]), 1, like.dtype)[0]
    return out


@njit(cache=True, nogil=True)
def fill_values(
    address: Int64,
    like: NDArray[Any],
    own: Int64,
    padded: Int64,
    bos: NDArray[np.bool_],
    before: float,
    after: float,
    out: NDArray[Any],
) -> None:
    """Values of runs of tokens one after another: the tokens themselves, or another column of them.

    address: [runs], where each run's own values are, of the type of `like`. own: [runs], how many of them. bos: [runs],
    whether one value `before` goes before them. padded: [runs], values in `out`, what is left of them is `after`.
    out: [sum(padded)].
    """
    at = 0
    for run in range(len(own)):
        end = at + padded[run]
        if bos[run]:
            out[at] = before
            at += 1
        length = own[run]
        if length > 0:
            copy(carray(pointer(address[run]), length, like.dtype), out[at : at + length])
            at += length
        for rest in range(at, end):
            out[rest] = after
        at = end


@njit(cache=True, nogil=True)
def count_up(out: Int32) -> None:
    """0, 1, 2, ..."""
    for place in range(len(out)):
        out[place] = place


@njit(cache=True, nogil=True)
def fill_positions(padded: Int64, out: Int32) -> None:
    """0, 1, 2, ... restarting at every segment. padded: [segments], tokens of each. out: [sum(padded)]."""
    at = 0
    for segment in range(len(padded)):
        end = at + padded[segment]
        count_up(out[at:end])
        at = end


@njit(cache=True, nogil=True)
def labels_of_mask(tokens: Int32, mask: NDArray[np.int8], out: Int32) -> None:
    """The tokens themselves where the mask is not 0, NO_LOSS elsewhere. All: [tokens]."""
    for place in range(len(tokens)):
        out[place] = tokens[place] if mask[place] else _NO_LOSS


@njit(cache=True, nogil=True)
def clear_labels(head: Int64, real: Int64, padded: Int64, out: Int32) -> None:
    """NO_LOSS on the first tokens of each segment and on its padding; other labels in `out` stay.

    head: [segments], how many tokens at its beginning. real: [segments], tokens that are no padding.
    """
    at = 0
    for segment in range(len(padded)):
        end = at + padded[segment]
        out[at : at + min(head[segment], padded[segment])] = _NO_LOSS
        out[at + real[segment] : end] = _NO_LOSS
        at = end


@njit(cache=True, nogil=True)
def fill_cu_seqlens(padded: Int64, pack_offsets: Int64, out: Int32) -> None:
    """For each pack 0, then the end of each of its segments.

    padded: [segments]. pack_offsets: [packs + 1], into segments. out: [segments + packs].
    """
    at = 0
    for pack in range(len(pack_offsets) - 1):
        end = 0
        out[at] = 0
        at += 1
        for segment in range(pack_offsets[pack], pack_offsets[pack + 1]):
            end += padded[segment]
            out[at] = end
            at += 1
