"""Runs of values in mapped token files that are consecutive in a pack, and how they are copied.

Values are read through `Pointers`, directly from the mapped files: a window has thousands of record
batches, and joining them first would copy every token once more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..views import chosen

_Int64 = NDArray[np.int64]
_NO_MASK = np.empty(0, np.int8)


@dataclass(frozen=True, eq=False, slots=True)
class Pointers:
    """Addresses of values of one type, and the memory that they point into.

    The memory lives as long as this object.

    address: int64 [pointers], for kernels; keep the `Pointers` while a kernel runs.
    dtype: of the values.
    memory: the arrays that the addresses point into.
    """

    address: _Int64
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
        return Pointers(chosen(self.address, kept), self.dtype, self.memory)

    def shifted(
        self, kept: NDArray[np.bool_] | NDArray[np.integer[Any]] | slice, values: _Int64
    ) -> "Pointers":
        """Select like `take`, then move each pointer forward by that many values."""
        address = chosen(self.address, kept) + self.dtype.itemsize * values
        return Pointers(address, self.dtype, self.memory)

    def spanned(self, room: int = 0) -> tuple[NDArray[Any], _Int64]:
        """An array from the lowest pointer on, and the index of each pointer in it.

        Read only what the pointers point into: what is between two arrays may not be mapped.

        room: values to read at the highest pointer.
        """
        if not len(self):
            return np.empty(0, self.dtype), self.address
        first = int(self.address.min())
        index = (self.address - first) // self.dtype.itemsize
        return np.asarray(_Span(first, self.dtype, int(index.max()) + room)), index

    def read(self, count: int) -> list[NDArray[Any]]:
        """The next `count` values of each pointer, [pointers] each."""
        values, index = self.spanned(count)
        return [values.take(index + place) for place in range(count)]

    def __reduce__(self) -> NoReturn:
        raise TypeError("addresses are not valid in another process; send the values")


class _Span:
    """Memory as numpy reads it: `count` values from an address on."""

    def __init__(self, address: int, dtype: np.dtype[Any], count: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (address, True),
            "typestr": dtype.str,
            "shape": (count,),
        }


@dataclass(frozen=True, eq=False)
class Runs:
    """Values of a column that are consecutive in memory and in a pack, [runs] each.

    values: where they begin.
    count: their number.
    bos: True if one more value goes before them.
    padded: all values in the pack; after those in memory comes padding.
    mask: int8, as many as the values; padding takes the place of those where it is 0. None to keep
        all.
    head: first values in the pack, at most `padded`, whose place padding takes; None for none.
    """

    values: Pointers
    count: _Int64
    bos: NDArray[np.bool_]
    padded: _Int64
    mask: Pointers | None = None
    head: _Int64 | None = None

    @cached_property
    def like(self) -> NDArray[Any]:
        """An empty array of the type of the values, for compiled code."""
        return np.empty(0, self.values.dtype)

    @cached_property
    def columns(self) -> _Int64:
        """Addresses of the columns for compiled code, in their order; 0 for none.

        Valid while this object is. All are int64, but bos has a byte.
        """
        mask = None if self.mask is None else self.mask.address
        for column in (self.values.address, self.count, self.padded, mask, self.head):
            assert column is None or (column.dtype == np.int64 and column.flags.c_contiguous)
        assert self.bos.dtype == np.bool_
        assert self.bos.flags.c_contiguous
        columns = (self.values.address, self.count, self.bos, self.padded, mask, self.head)
        addresses = [0 if column is None else column.ctypes.data for column in columns]
        return np.array(addresses, np.int64)

    @cached_property
    def listed(self) -> tuple[NDArray[Any], NDArray[np.int8], list[tuple[int, ...]]]:
        """Arrays over the values and over the mask; each run as numbers.

        The numbers: index in the values, in the mask, count, bos, padded and head.
        """
        values, index = self._spanned(self.values)
        mask, kept = _NO_MASK, np.zeros_like(self.count)
        head = kept if self.head is None else self.head
        if self.mask is not None:
            mask, kept = self._spanned(self.mask)
        columns = (index, kept, self.count, self.bos, self.padded, head)
        return values, mask, list(zip(*(column.tolist() for column in columns), strict=True))

    def _spanned(self, values: Pointers) -> tuple[NDArray[Any], _Int64]:
        """An array over the values, and the index of each run in it; 0 for one without values."""
        some = self.count > 0
        array, index = values.take(some).spanned(int(self.count.max(initial=0)))
        indices = np.zeros(len(some), np.int64)
        indices[some] = index
        return array, indices


Copy = Callable[[Runs, int, int, int, int, NDArray[Any]], None]
"""f(runs, first, last, before, after, out): copy runs first..last - 1 into `out`.

before: value of an extra BOS.
after: value of padding.
out: [sum(padded)], of any type.
"""


def copy_runs(
    runs: Runs, first: int, last: int, before: int, after: int, out: NDArray[Any]
) -> None:
    """See `Copy`."""
    values, mask, listed = runs.listed
    cursor = 0
    for index, kept, count, bos, padded, head in listed[first:last]:
        begin, end = cursor, cursor + padded
        if bos:
            out[cursor] = before
            cursor += 1
        if count:
            part = out[cursor : cursor + count]
            part[:] = values[index : index + count]
            if runs.mask is not None:
                np.copyto(part, after, where=mask[kept : kept + count] == 0)
        out[cursor + count : end] = after
        if head:
            out[begin : begin + head] = after
        cursor = end


def copy_by(compiled: Callable[..., None]) -> Copy:
    """`Copy` by `packprep.schemas.index.copy_loop.copy_loop`, compiled."""

    def copy(runs: Runs, first: int, last: int, before: int, after: int, out: NDArray[Any]) -> None:
        compiled(
            runs.columns,
            runs.like,
            first,
            last,
            float(before),
            float(after),
            out,
        )

    return copy
