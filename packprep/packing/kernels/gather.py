"""Copy tokens from mapped token files into the buffers of a shard.

Tokens are read through `Pointers`, directly from the mapped token files: a window has thousands of
record batches, and joining them first would copy every token once more. All indices are int64:
mixing in int32 takes twice as long. Loops run over views from 0 on: if an index might be negative,
the compiler does not vectorise, which takes four times as long. About 0.4 nanoseconds per token
with positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import numpy as np
from numba import carray
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import DTypeLike, NDArray

from packprep.packing.kernels.common import smaller
from packprep.packing.kernels.compiled import Kernel, Out, inlined, kernel
from packprep.schemas.columns import NO_LOSS
from packprep.support.arrays import Bools, Int8, Int32, Int64

_NO_LOSS = NO_LOSS


@dataclass(frozen=True, eq=False, slots=True)
class Pointers:
    """Addresses of values of one type, and the memory that they point into.

    The memory lives as long as this object.

    address: int64 [pointers], for kernels; keep the `Pointers` while a kernel runs.
    dtype: of the values.
    memory: the arrays that the addresses point into.
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


@inlined
def _copy(values: NDArray[Any], out: NDArray[Any]) -> None:
    """Copy values to out, which has the same length."""
    for place in range(len(out)):
        out[place] = values[place]


def with_ends(offsets: Int64, ends: int) -> Int64:
    """Offsets of documents after `ends` tokens are added to each, [documents + 1].

    Documents without tokens get none.
    """
    lengths = np.diff(offsets)
    return np.append(0, np.cumsum(lengths + ends * (lengths > 0)))


@kernel
def add_ends(
    ids: Int32, offsets: Int64, wider: Int64, bos: int, eos: int, out: Out[NDArray[Any]]
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
        _copy(ids[first:last], out[cursor : cursor + last - first])
        if eos >= 0:
            out[wider[document + 1] - 1] = eos


@kernel
def make_room(
    values: NDArray[Any], offsets: Int64, wider: Int64, before: int, out: Out[NDArray[Any]]
) -> None:
    """Copy values of documents to the places of their tokens after `add_ends`.

    before: places at the beginning of each document that are for BOS. offsets, wider: [documents +
    1], where documents begin in values and in out. Other places in out are unchanged.
    """
    for document in range(len(offsets) - 1):
        first, last = offsets[document], offsets[document + 1]
        start = wider[document] + before
        _copy(values[first:last], out[start : start + last - first])


def load_gather(ids: DTypeLike, tokens: DTypeLike, positions: DTypeLike) -> None:
    """Load the kernels that copy ids of this type into token files, and into columns of shards."""
    kind = np.dtype(ids)
    for compiled, variant in (
        (add_ends, (kind,)),
        (_fill_values, (kind, np.dtype(tokens))),
        (fill_positions, (np.dtype(positions),)),
    ):
        cast("Kernel", compiled).load(variant)


def tokens_at(tokens: Pointers) -> Int32:
    """The token at each pointer, [pointers]."""
    ids, ones = np.empty(len(tokens), np.int32), np.ones(len(tokens), np.int64)
    fill_values(tokens, ones, ones, np.zeros(len(tokens), np.bool_), 0, 0, ids)
    return ids


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
    like = np.empty(0, values.dtype)
    _fill_values(values.address, like, counts, padded, bos, float(before), float(after), out)


@kernel
def _fill_values(
    address: Int64,
    like: NDArray[Any],
    counts: Int64,
    padded: Int64,
    bos: Bools,
    before: float,
    after: float,
    out: Out[NDArray[Any]],
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
            _copy(carray(pointer(address[run]), length, like.dtype), out[cursor : cursor + length])
            cursor += length
        for rest in range(cursor, end):
            out[rest] = after
        cursor = end


@kernel
def fill_positions(padded: Int64, out: Out[NDArray[Any]]) -> None:
    """Fill `out` with 0, 1, 2, ..., starting again at every segment.

    padded: [segments], tokens of each. out: [sum(padded)].
    """
    start = 0
    for segment in range(len(padded)):
        values = out[start : start + padded[segment]]
        for place in range(len(values)):
            values[place] = place
        start += padded[segment]


@kernel
def labels_of_mask(tokens: NDArray[Any], mask: Int8, out: Out[Int32]) -> None:
    """Write the token where the mask is not 0, else NO_LOSS. All arrays: [tokens]."""
    for place in range(len(tokens)):
        out[place] = tokens[place] if mask[place] else _NO_LOSS


@kernel
def clear_labels(head: Int64, real: Int64, padded: Int64, out: Out[Int32]) -> None:
    """Write NO_LOSS on the first tokens of each segment and on its padding.

    Other labels in `out` are unchanged. head: [segments], number of first tokens. real: [segments],
    tokens without padding.
    """
    start = 0
    for segment in range(len(padded)):
        end = start + padded[segment]
        for place in range(start, start + smaller(head[segment], padded[segment])):
            out[place] = _NO_LOSS
        for place in range(start + real[segment], end):
            out[place] = _NO_LOSS
        start = end


def fill_cu_seqlens(padded: Int64, pack_offsets: Int64, out: Int32) -> None:
    """Write, for each pack, 0 and then the end of each of its segments.

    padded: [segments]. pack_offsets: [packs + 1], into segments. out: [segments + packs].
    """
    sizes = np.diff(pack_offsets)
    packs = np.arange(sizes.size)
    ends = np.append(0, np.cumsum(padded))
    out[pack_offsets[:-1] + packs] = 0
    places = np.arange(len(padded)) + np.repeat(packs, sizes) + 1
    out[places] = ends[1:] - np.repeat(ends[pack_offsets[:-1]], sizes)
