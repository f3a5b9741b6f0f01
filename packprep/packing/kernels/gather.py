"""Copy tokens from mapped token files into the buffers of a shard.

Tokens are read through `Pointers`, directly from the mapped token files: a window has thousands of
record batches, and joining them first would copy every token once more. All indices are int64:
mixing in int32 takes twice as long. Loops run over views from 0 on: if an index might be negative,
the compiler does not vectorise, which takes four times as long. About 0.4 nanoseconds per token
with positions.
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
    """Addresses of values of one type, and the memory that they point into.

    The memory lives as long as this object.

    address: int64 [pointers], for kernels; keep the `Pointers` while a kernel runs. dtype: of the
    values. memory: the arrays that the addresses point into.
    """

    address: Int64
    dtype: np.dtype[Any]
    memory: tuple[NDArray[Any], ...]

    @staticmethod
    def into(values: NDArray[Any], index: NDArray[np.integer[Any]]) -> "Pointers":
        """Pointers to values[index]; an index of len(values) is allowed, but must not be read."""
        address = values.ctypes.data + values.itemsize * index.astype(np.int64)
        return Pointers(address, values.dtype, (values,))

    @staticmethod
    def null(count: int) -> "Pointers":
        """Null pointers, for documents with known lengths but no tokens."""
        return Pointers(np.zeros(count, np.int64), np.dtype(np.int32), ())

    @staticmethod
    def joined(parts: "Sequence[Pointers]") -> "Pointers":
        """Concatenate one or more parts. Raises ValueError if their types differ."""
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
        """Select by a mask, by indices in their order, or by a slice."""
        return Pointers(self.address[kept], self.dtype, self.memory)

    def shifted(
        self, kept: NDArray[np.bool_] | NDArray[np.integer[Any]], values: Int64
    ) -> "Pointers":
        """Select like `take`, then move each pointer forward by that many values."""
        return Pointers(self.address[kept] + self.dtype.itemsize * values, self.dtype, self.memory)

    def __reduce__(self) -> NoReturn:
        raise TypeError("addresses are not valid in another process; send the values")


@intrinsic
def pointer(typing_context: Any, address: Any) -> Any:
    """The address as a pointer that `carray` takes."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), codegen


@njit(cache=True, nogil=True)
def copy(values: NDArray[Any], out: NDArray[Any]) -> None:
    """Copy values to out, which has the same length."""
    for place in range(len(out)):
        out[place] = values[place]


def with_ends(offsets: Int64, ends: int) -> Int64:
    """Offsets of documents after `ends` tokens are added to each, [documents + 1].

    Documents without tokens get none.
    """
    lengths = np.diff(offsets)
    return np.append(0, np.cumsum(lengths + ends * (lengths > 0)))


@njit(cache=True, nogil=True)
def add_ends(
    ids: Int32, offsets: Int64, wider: Int64, bos: int, eos: int, out: NDArray[Any]
) -> None:
    """Copy documents with BOS before and EOS after each; documents without ids get none.

    ids: [tokens]. bos, eos: id, or -1 for none. offsets, wider: [documents + 1], where documents
    begin in ids and in out.
    """
    for document in range(len(offsets) - 1):
        first, last = offsets[document], offsets[document + 1]
        if first == last:
            continue
        cursor = wider[document]
        if bos >= 0:
            out[cursor] = bos
            cursor += 1
        copy(ids[first:last], out[cursor : cursor + last - first])
        if eos >= 0:
            out[wider[document + 1] - 1] = eos


@njit(cache=True, nogil=True)
def make_room(
    values: NDArray[Any], offsets: Int64, wider: Int64, before: int, out: NDArray[Any]
) -> None:
    """Copy values of documents to the places of their tokens after `add_ends`.

    before: places at the beginning of each document that are for BOS. offsets, wider: [documents +
    1], where documents begin in values and in out. Other places in out are unchanged.
    """
    for document in range(len(offsets) - 1):
        first, last = offsets[document], offsets[document + 1]
        start = wider[document] + before
        copy(values[first:last], out[start : start + last - first])


def tokens_at(tokens: Pointers) -> Int32:
    """The token at each pointer, [pointers]."""
    ids: Int32 = _tokens_at(tokens.address, np.empty(0, tokens.dtype))
    return ids


@njit(cache=True, nogil=True)
def _tokens_at(address: Int64, like: NDArray[Any]) -> Int32:
    out = np.empty(len(address), np.int32)
    for i in range(len(address)):
        out[i] = carray(pointer(address[i]), 1, like.dtype)[0]
    return out


def fill_values(
    values: Pointers,
    counts: Int64,
    padded: Int64,
    bos: NDArray[np.bool_],
    before: float,
    after: float,
    out: NDArray[Any],
) -> None:
    """Write the values of runs of tokens one after another: the ids, or another column.

    values: [runs], where the values of each run are. counts: [runs], their number. bos: [runs],
    True if one value `before` goes before them. padded: [runs], values in `out`; the rest of them
    is `after`. out: [sum(padded)].
    """
    _fill_values(values.address, np.empty(0, values.dtype), counts, padded, bos, before, after, out)


@njit(cache=True, nogil=True)
def _fill_values(
    address: Int64,
    like: NDArray[Any],
    counts: Int64,
    padded: Int64,
    bos: NDArray[np.bool_],
    before: float,
    after: float,
    out: NDArray[Any],
) -> None:
    """Fill out; see `fill_values`. like: an array of the type of the values."""
    cursor = 0
    for run in range(len(counts)):
        end = cursor + padded[run]
        if bos[run]:
            out[cursor] = before
            cursor += 1
        length = counts[run]
        if length > 0:
            copy(carray(pointer(address[run]), length, like.dtype), out[cursor : cursor + length])
            cursor += length
        for rest in range(cursor, end):
            out[rest] = after
        cursor = end


@njit(cache=True, nogil=True)
def count_up(out: Int32) -> None:
    """Fill with 0, 1, 2, ..."""
    for place in range(len(out)):
        out[place] = place


@njit(cache=True, nogil=True)
def fill_positions(padded: Int64, out: Int32) -> None:
    """Fill `out` with 0, 1, 2, ..., starting again at every segment.

    padded: [segments], tokens of each. out: [sum(padded)].
    """
    start = 0
    for segment in range(len(padded)):
        end = start + padded[segment]
        count_up(out[start:end])
        start = end


@njit(cache=True, nogil=True)
def labels_of_mask(tokens: Int32, mask: NDArray[np.int8], out: Int32) -> None:
    """Write the token where the mask is not 0, else NO_LOSS. All arrays: [tokens]."""
    for place in range(len(tokens)):
        out[place] = tokens[place] if mask[place] else _NO_LOSS


@njit(cache=True, nogil=True)
def clear_labels(head: Int64, real: Int64, padded: Int64, out: Int32) -> None:
    """Write NO_LOSS on the first tokens of each segment and on its padding.

    Other labels in `out` are unchanged. head: [segments], number of first tokens. real: [segments],
    tokens without padding.
    """
    start = 0
    for segment in range(len(padded)):
        end = start + padded[segment]
        out[start : start + min(head[segment], padded[segment])] = _NO_LOSS
        out[start + real[segment] : end] = _NO_LOSS
        start = end


@njit(cache=True, nogil=True)
def fill_cu_seqlens(padded: Int64, pack_offsets: Int64, out: Int32) -> None:
    """Write, for each pack, 0 and then the end of each of its segments.

    padded: [segments]. pack_offsets: [packs + 1], into segments. out: [segments + packs].
    """
    cursor = 0
    for pack in range(len(pack_offsets) - 1):
        end = 0
        out[cursor] = 0
        cursor += 1
        for segment in range(pack_offsets[pack], pack_offsets[pack + 1]):
            end += padded[segment]
            out[cursor] = end
            cursor += 1
