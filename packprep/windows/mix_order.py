"""The documents of a mix as parallel streams, cut into windows of equal length.

A stream has documents of one source that are drawn equally often, copy after copy. A document at a
tenth of its stream is at a tenth of the mix, so every part of the mix has the wanted shares. Two
copies of a document are a full copy of the stream apart: with at least as many windows as copies,
no window has a document twice.

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

    begins, ends: tokens of the stream where each file begins and ends in each copy, [copies,
    files]. has_documents: False for files without documents, [files]. windows: number of windows of
    the mix.
    """

    begins: Int64
    ends: Int64
    has_documents: Bools
    windows: int

    @property
    def total(self) -> int:
        return max(1, int(self.ends.max(initial=0)))

    def window(self, places: Int64) -> Int64:
        """The windows of places, in tokens from the beginning of the stream."""
        windows: Int64 = np.minimum(places * self.windows // self.total, self.windows - 1)
        return windows

    def files(self) -> list[tuple[int, int]]:
        """Pairs (window, file) of all files of each window."""
        first, last = self.window(self.begins), self.window(self.ends)
        return [
            (window, file)
            for copy in range(len(self.begins))
            for file in np.flatnonzero(self.has_documents).tolist()
            for window in range(first[copy, file], last[copy, file] + 1)
        ]

    def stretch(self, file: int, sizes: Int64, window: int) -> tuple[Int64, NDArray[np.float64]]:
        """Documents of a file in a window, as indices, and their places in the mix, 0 to 1.

        sizes: tokens of all documents that the stream has of the file, [documents]. Documents of 0
        tokens are in the first copy only.
        """
        rows, places = [np.empty(0, np.int64)], [np.empty(0)]
        for copy in range(len(self.begins)):
            begin = self.begins[copy, file]
            if not self.window(begin) <= window <= self.window(self.ends[copy, file]):
                continue
            taken = np.flatnonzero((sizes > 0) | (copy == 0))
            starts = begin + np.cumsum(sizes[taken]) - sizes[taken]
            inside = self.window(starts) == window
            rows.append(taken[inside])
            places.append(starts[inside] / self.total)
        return np.concatenate(rows), np.concatenate(places)


def lay_out(copies: int, tokens: Int64, has_documents: Bools, order: Int64, windows: int) -> Stream:
    """The stream of this many copies.

    tokens, has_documents: of one copy, [files]. order: the order of the files in each copy.
    """
    ends = np.empty(len(tokens), np.int64)
    ends[order] = np.cumsum(tokens[order])
    before = np.arange(copies)[:, None] * tokens.sum()
    return Stream(
        begins=before + ends - tokens,
        ends=before + ends,
        has_documents=has_documents,
        windows=windows,
    )
