"""The documents of a mix as streams that run side by side, cut into windows of equal stretches.

A stream is documents of one source that are all drawn equally often, copy after copy; what stands
at a tenth of it stands at a tenth of the mix. So any stretch of the mix holds the shares that were
asked for. The copies of a document stand a whole copy of its stream apart: where there are as many
windows as copies, no two of them are in one window.

Example: 4 tokens of A and 2 of B, each document one token -> A B A A B A; two windows hold A B A
each.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packprep.support.arrays import Bools, Int64


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Places of the documents of each token file in a stream.

    Tokens begins..ends of the stream, for each copy.

    begins, ends: [copies, files]. there: [files], whether there is a document. windows: how many
    the mix has.
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
            for copy in range(len(self.begins))
            for file in np.flatnonzero(self.there).tolist()
            for window in range(first[copy, file], last[copy, file] + 1)
        ]

    def stretch(self, file: int, sizes: Int64, window: int) -> tuple[Int64, NDArray[np.float64]]:
        """Documents of a file that a window holds, as indices, and their places in the mix, 0 to 1.

        sizes: [documents], tokens of all that the stream has of the file; those of 0 are in the
        first copy only.
        """
        rows, places = [np.empty(0, np.int64)], [np.empty(0)]
        for copy in range(len(self.begins)):
            begin = self.begins[copy, file]
            if not self.window(begin) <= window <= self.window(self.ends[copy, file]):
                continue
            taken = np.flatnonzero((sizes > 0) | (copy == 0))
            at = begin + np.cumsum(sizes[taken]) - sizes[taken]
            here = self.window(at) == window
            rows.append(taken[here])
            places.append(at[here] / self.total)
        return np.concatenate(rows), np.concatenate(places)


def lay_out(copies: int, tokens: Int64, there: Bools, order: Int64, windows: int) -> Stream:
    """The stream of so many copies.

    tokens, there: [files], of one copy. order: the files as they stand in each.
    """
    ends = np.empty(len(tokens), np.int64)
    ends[order] = np.cumsum(tokens[order])
    before = np.arange(copies)[:, None] * tokens.sum()
    return Stream(begins=before + ends - tokens, ends=before + ends, there=there, windows=windows)
