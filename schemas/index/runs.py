"""Runs of values in token files that are consecutive in a pack, and how they are copied."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

_Int64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TokenRuns:
    """Values of a column that are consecutive in a token file and in a pack, [runs] each.

    views: of the token files, by number. file, position: where the values begin. count: their
    number. bos: True if one more value goes before them. padded: all values in the pack; after
    those of the token file comes padding.
    """

    views: tuple[NDArray[Any], ...]
    file: _Int64
    position: _Int64
    count: _Int64
    bos: NDArray[np.bool_]
    padded: _Int64

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.views[0].dtype

    @cached_property
    def like(self) -> NDArray[Any]:
        """An empty array of the type of the values, for compiled code."""
        return np.empty(0, self.dtype)

    @cached_property
    def address(self) -> _Int64:
        """Address of the first value of each run, for compiled code; valid while this object is."""
        base = np.array([view.ctypes.data for view in self.views], np.int64)
        return base[self.file] + self.position * self.dtype.itemsize

    @cached_property
    def packed(self) -> _Int64:
        """address, count, bos and padded of each run, one after another, for compiled code."""
        columns = (self.address, self.count, self.bos, self.padded)
        return np.stack(columns, axis=1, dtype=np.int64).ravel()

    @cached_property
    def listed(self) -> tuple[list[Any], ...]:
        """file, position, count, bos and padded as Python lists."""
        return tuple(
            column.tolist()
            for column in (self.file, self.position, self.count, self.bos, self.padded)
        )


Copy = Callable[[TokenRuns, int, int, int, int, NDArray[Any]], None]
"""f(runs, first, last, before, after, out): copy runs first..last - 1 into `out`.

before: value of an extra BOS. after: value of padding. out: [sum(padded)], of any type.
"""


def copy_runs(
    runs: TokenRuns, first: int, last: int, before: int, after: int, out: NDArray[Any]
) -> None:
    """See `Copy`."""
    cursor = 0
    for file, position, count, bos, padded in zip(
        *(column[first:last] for column in runs.listed), strict=True
    ):
        end = cursor + padded
        if bos:
            out[cursor] = before
            cursor += 1
        out[cursor : cursor + count] = runs.views[file][position : position + count]
        if cursor + count < end:
            out[cursor + count : end] = after
        cursor = end
