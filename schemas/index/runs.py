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

_Int64 = NDArray[np.int64]


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
        return Pointers(self.address[kept], self.dtype, self.memory)

    def shifted(
        self, kept: NDArray[np.bool_] | NDArray[np.integer[Any]] | slice, values: _Int64
    ) -> "Pointers":
        """Select like `take`, then move each pointer forward by that many values."""
        return Pointers(self.address[kept] + self.dtype.itemsize * values, self.dtype, self.memory)

    def located(self) -> tuple[list[NDArray[Any]], _Int64, _Int64]:
        """The arrays of the memory, and the array of each pointer with the index in it."""
        views = sorted(self.memory, key=lambda view: view.ctypes.data) or [np.empty(0, self.dtype)]
        bases = np.array([view.ctypes.data for view in views], np.int64)
        number = np.maximum(np.searchsorted(bases, self.address, side="right") - 1, 0)
        return views, number, (self.address - bases[number]) // self.dtype.itemsize

    def __reduce__(self) -> NoReturn:
        raise TypeError("addresses are not valid in another process; send the values")


@dataclass(frozen=True, eq=False)
class Runs:
    """Values of a column that are consecutive in memory and in a pack, [runs] each.

    values: where they begin.
    count: their number.
    bos: True if one more value goes before them.
    padded: all values in the pack; after those in memory comes padding.
    """

    values: Pointers
    count: _Int64
    bos: NDArray[np.bool_]
    padded: _Int64

    @cached_property
    def like(self) -> NDArray[Any]:
        """An empty array of the type of the values, for compiled code."""
        return np.empty(0, self.values.dtype)

    @cached_property
    def packed(self) -> _Int64:
        """address, count, bos and padded of each run, one after another, for compiled code.

        Valid while this object is.
        """
        columns = (self.values.address, self.count, self.bos, self.padded)
        packed = np.empty((len(self.count), len(columns)), np.int64)
        for number, column in enumerate(columns):
            packed[:, number] = column
        return packed.ravel()

    @cached_property
    def listed(self) -> tuple[list[NDArray[Any]], list[tuple[int, int, int, bool, int]]]:
        """Arrays in memory; the array of each run, index, count, bos and padded, as numbers."""
        views, number, index = self.values.located()
        columns = (number, index, self.count, self.bos, self.padded)
        return views, list(zip(*(column.tolist() for column in columns), strict=True))


Copy = Callable[[Runs, int, int, int, int, NDArray[Any]], None]
"""f(runs, first, last, before, after, out): copy runs first..last - 1 into `out`.

before: value of an extra BOS. after: value of padding. out: [sum(padded)], of any type.
"""


def copy_runs(
    runs: Runs, first: int, last: int, before: int, after: int, out: NDArray[Any]
) -> None:
    """See `Copy`."""
    views, listed = runs.listed
    cursor = 0
    for number, index, count, bos, padded in listed[first:last]:
        end = cursor + padded
        if bos:
            out[cursor] = before
            cursor += 1
        if count:
            out[cursor : cursor + count] = views[number][index : index + count]
        out[cursor + count : end] = after
        cursor = end


def copy_by(compiled: Callable[..., None]) -> Copy:
    """`Copy` by `packprep.schemas.index.copy_loop.copy_loop`, compiled."""

    def copy(runs: Runs, first: int, last: int, before: int, after: int, out: NDArray[Any]) -> None:
        compiled(runs.packed, runs.like, first, last, float(before), float(after), out)

    return copy
