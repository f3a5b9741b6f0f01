"""The documents of a mix as one stream, its sources interleaved by tokens, cut into windows of equal stretches.

A source's stream is its drawn documents, copy after copy; what stands at a tenth of it stands at a tenth of the mix. So
any stretch of the mix holds the shares that were asked for, and copies of a document stand far apart.

Example: 4 tokens of A and 2 of B, each document one token -> A B A A B A; two windows hold A B A each.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Where the documents of each token file stand in the stream of one source: tokens begins..ends of it.

    begins, ends: [copies, files]; the copies before the last are whole, the last is partial. there: [copies, files],
    whether there is a document. windows: how many the mix has.
    """

    begins: Int64
    ends: Int64
    there: Bools
    windows: int

    @property
    def total(self) -> int:
        return max(1, int(self.ends.max(initial=0)))

    def window(self, at: Int64) -> Int64:
        """The window of places, which are tokens from the begin of the stream."""
        found: Int64 = np.minimum(at * self.windows // self.total, self.windows - 1)
        return found

    def files(self) -> list[tuple[int, int]]:
        """(window, file) of everything the windows touch."""
        first, last = self.window(self.begins), self.window(self.ends)
        return [
            (window, file)
            for copy, file in np.argwhere(self.there).tolist()
            for window in range(first[copy, file], last[copy, file] + 1)
        ]

    def stretch(self, file: int, sizes: Int64, partly: Bools, window: int) -> tuple[Int64, NDArray[np.float64]]:
        """Documents of a file that a window holds, as indices, and where in the mix each stands, 0 to 1.

        sizes: [documents], tokens of all of this source in the file; those of 0 are in the first copy. partly: which of
        them are in the last copy.
        """
        rows, places = [np.empty(0, np.int64)], [np.empty(0)]
        for copy in range(len(self.begins)):
            begin = self.begins[copy, file]
            if not self.window(begin) <= window <= self.window(self.ends[copy, file]):
                continue
            taken = np.flatnonzero(partly if copy == len(self.begins) - 1 else (sizes > 0) | (copy == 0))
            at = begin + np.cumsum(sizes[taken]) - sizes[taken]
            here = self.window(at) == window
            rows.append(taken[here])
            places.append(at[here] / self.total)
        return np.concatenate(rows), np.concatenate(places)


def lay_out(times: int, tokens: Int64, there: Bools, order: Callable[[int], Int64], windows: int) -> Stream:
    """The stream of `times` whole copies and a partial one.

    tokens, there: [2, files], of a whole copy and of the partial one. order: f(copy) -> files as they stand in it.
    """
    kinds = [0] * times + [1]
    ends, before = np.empty((len(kinds), tokens.shape[1]), np.int64), 0
    for copy, kind in enumerate(kinds):
        files = order(copy)
        ends[copy, files] = before + np.cumsum(tokens[kind, files])
        before = int(ends[copy].max(initial=before))
    return Stream(begins=ends - tokens[kinds], ends=ends, there=there[kinds], windows=windows)
