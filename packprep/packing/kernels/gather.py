"""Moving tokens: compiled copies from where they are into the buffers of a shard.

No packing decision is made here.

Tokens are read through `Pointers`, straight from the mapped token files: a window has thousands of
record batches, and joining them first would copy every token once more. All indices are int64:
mixing in int32 costs a factor of two. Loops run over views from 0 on: where an index might be
negative, none is vectorised, which costs a factor of four. About .4 nanoseconds per token with
positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numba import carray, njit
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from packprep.schemas.columns import NO_LOSS
from packprep.support.arrays import Int32, Int64

_NO_LOSS = NO_LOSS


@dataclass(frozen=True, eq=False, slots=True)
class Pointers:
    """Addresses of values of one type, and the memory they point into.

    The memory lives as long as this does.

    address: int64 [pointers], for kernels; keep the `Pointers` while one runs. dtype: of the
    values. memory: the arrays that the addresses point into.
    """

    address: Int64
    dtype: np.dtype[Any]
    memory: tuple[NDArray[Any], ...]

    @staticmethod
    def into(values: NDArray[Any], index: NDArray[np.integer[Any]]) -> "Pointers":
        """Pointers to values[index], where index may also be len(values).

        Then nothing may be read there.
        """
        address = values.ctypes.data + values.itemsize * index.astype(np.int64)
        return Pointers(address, values.dtype, (values,))

    @staticmethod
    def null(count: int) -> "Pointers":
        """Pointers to nothing, of documents of which only the lengths are known."""
        return Pointers(np.zeros(count, np.int64), np.dtype(np.int32), ())

    @staticmethod
    def joined(parts: "Sequence[Pointers]") -> "Pointers":
        """The pointers of one part or more, one part after another.

        ValueError if their types differ.
        """
        parts = [part for part in parts if len(part)] or parts[:1]
        if len({part.dtype for part in parts}) > 1:
            raise ValueError(
                f"pointers to {', '.join(sorted({str(part.dtype) for part in parts}))} cannot be "
                "joined"
            )
        memory = tuple(array for part in parts for array in part.memory)
        return Pointers(np.concatenate([part.address for part in parts]), parts[0].dtype, memory)

    def __len__(self) -> int:
        return len(self.address)

    def take(self, kept: NDArray[np.bool_] | NDArray[np.integer[Any]] | slice) -> "Pointers":
        """Those of a mask, of indices in their order, or of a slice."""
        return Pointers(self.address[kept], self.dtype, self.memory)

    def at(self, kept: NDArray[np.bool_] | NDArray[np.integer[Any]], values: Int64) -> "Pointers":
        """Like `take`, each that many values further on."""
        return Pointers(self.address[kept] + self.dtype.itemsize * values, self.dtype, self.memory)

    def __reduce__(self) -> NoReturn:
        raise TypeError("addresses mean nothing in another process; send the values")


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
    """Offsets of documents once each has so many tokens more, [documents + 1].

    One without tokens stays without.
    """
    lengths = np.diff(offsets)
    return np.append(0, np.cumsum(lengths + ends * (lengths > 0)))


@njit(cache=True, nogil=True)
def add_ends(
    ids: Int32, offsets: Int64, wider: Int64, bos: int, eos: int, out: NDArray[Any]
) -> None:
    """Each document with BOS before and EOS after it; one without ids stays without.

    bos, eos: id, or -1 for none.

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
def make_room(
    values: NDArray[Any], offsets: Int64, wider: Int64, before: int, out: NDArray[Any]
) -> None:
    """Values of documents at their places among those of `add_ends`.

    Behind `before` values of the document's BOS.

    offsets, wider: [documents + 1], where documents lie in values and in out. What is no document's
    value stays.
    """
    for document in range(len(offsets) - 1):
        first, last = offsets[document], offsets[document + 1]
        at = wider[document] + before
        copy(values[first:last], out[at : at + last - first])


def tokens_at(tokens: Pointers) -> Int32:
    """The token at each pointer, [pointers]."""
    found: Int32 = _tokens_at(tokens.address, np.empty(0, tokens.dtype))
    return found


@njit(cache=True, nogil=True)
def _tokens_at(address: Int64, like: NDArray[Any]) -> Int32:
    out = np.empty(len(address), np.int32)
    for i in range(len(address)):
        out[i] = carray(pointer(address[i]), 1, like.dtype)[0]
    return out


def fill_values(
    values: Pointers,
    own: Int64,
    padded: Int64,
    bos: NDArray[np.bool_],
    before: float,
    after: float,
    out: NDArray[Any],
) -> None:
    """Values of runs of tokens one after another: the tokens themselves, or another column of them.

    values: [runs], where each run's own values are. own: [runs], how many of them. bos: [runs],
    whether one value `before` goes before them. padded: [runs], values in `out`, what is left of
    them is `after`. out: [sum(padded)].
    """
    _fill_values(values.address, np.empty(0, values.dtype), own, padded, bos, before, after, out)


@njit(cache=True, nogil=True)
def _fill_values(
    address: Int64,
    like: NDArray[Any],
    own: Int64,
    padded: Int64,
    bos: NDArray[np.bool_],
    before: float,
    after: float,
    out: NDArray[Any],
) -> None:
    """Fills out; see `fill_values`. like: an array of the type of what is at the addresses."""
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
    """Fill `out` with 0, 1, 2, ... restarting at every segment.

    padded: [segments], tokens of each. out: [sum(padded)].
    """
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

    head: [segments], how many tokens at its beginning. real: [segments], tokens that are no
    padding.
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
