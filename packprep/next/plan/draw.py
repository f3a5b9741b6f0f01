"""Which documents each window has, never their order in packs.

A source is a stream of its documents: its token files, each with its documents, permuted by the
seed of the draw, pass after pass, each pass in the same order. A build takes an interval of each
stream, a window an equal part of each interval. With order input nothing is permuted, all sources
are one stream, and windows cut it in order.

A stream goes round its files many times and takes a few documents of each, so that any part of it
samples the whole source, however that is sorted: a part of a thousandth has documents of at least
64 files, or of all. What a window has of a file is one range of an order of the file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..schemas.arrays import Int64
from ..support.hashing import Purpose, mix, stream
from .types import Range

_SLICES = 1 << 16  # of a stream in one pass, at least


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Documents of some token files, in the order in which they are drawn.

    files: numbers of the files. sizes: documents of each. seed: of the draw; None keeps the order
    of the input. Places in the stream are numbers of documents, over all passes.
    """

    files: tuple[int, ...]
    sizes: Int64
    seed: int | None

    @cached_property
    def documents(self) -> int:
        """Documents of one pass."""
        return int(self.sizes.sum())

    @property
    def _rounds(self) -> int:
        return 1 if self.seed is None else max(1, _SLICES // max(1, len(self.files)))

    @cached_property
    def _order(self) -> Int64:
        """The files as indices, in the order of each round."""
        if self.seed is None:
            return np.arange(len(self.files))
        key = stream(self.seed, Purpose.DRAW)
        return np.argsort(mix(key, np.array(self.files, np.int64)), kind="stable")

    @cached_property
    def _edges(self) -> Int64:
        """Documents of each file before each round, in its order, [rounds + 1, files]."""
        rounds = np.arange(self._rounds + 1)[:, None]
        edges: Int64 = self.sizes[self._order] * rounds // self._rounds
        return edges

    @cached_property
    def _starts(self) -> Int64:
        """Place of each slice of a pass and its end, [slices + 1]; a slice is a file in a round."""
        return np.append(0, np.cumsum(np.diff(self._edges, axis=0).ravel()))

    def _counts(self, place: int) -> Int64:
        """Documents of each file that are before a place of one pass, [files]."""
        at = int(np.searchsorted(self._starts, place, side="right")) - 1
        counts = np.empty_like(self.sizes)
        if at == len(self._starts) - 1:
            return self.sizes
        done, number = divmod(at, len(self.files))
        counts[self._order] = self._edges[done]
        counts[self._order[:number]] = self._edges[done + 1, :number]
        counts[self._order[number]] += place - self._starts[at]
        return counts

    def ranges(self, first: int, last: int) -> list[Range]:
        """Ranges of the documents first..last - 1, which are at most one pass."""
        if not self.documents or last <= first:
            return []
        begin, end = first % self.documents, last - first // self.documents * self.documents
        parts = [(begin, min(end, self.documents)), (0, end - self.documents)]
        ranges = []
        for start, stop in parts:
            if stop <= start:
                continue
            counts = zip(
                self.files, self._counts(start), self._counts(stop), self.sizes, strict=True
            )
            for file, low, high, size in counts:
                if high > low:
                    whole = self.seed is None or (low, high) == (0, size)
                    order = 0 if whole else file_order(self.seed or 0, file)
                    ranges.append(Range(file, int(low), int(high), order))
        return sorted(ranges, key=lambda each: (each.file, each.first))


def streams(groups: Sequence[Sequence[int]], sizes: Int64, seed: int | None) -> list[Stream]:
    """A stream for each group of files; one of all files in their order if seed is None.

    sizes: documents of each file.
    """
    if seed is None:
        groups = [range(len(sizes))]
    return [
        Stream(files=tuple(files), sizes=sizes[list(files)].astype(np.int64), seed=seed)
        for files in groups
    ]


def equal_places(each: Stream, windows: int) -> list[int]:
    """Places at which windows that take all of a stream begin, and the end, [windows + 1]."""
    return [each.documents * window // windows for window in range(windows + 1)]


def file_order(seed: int, file: int) -> int:
    """Key of the permutation of the documents of a file; never 0."""
    return int(stream(seed, Purpose.DRAW, file)) | 1


def permuted(documents: int, order: int) -> Int64:
    """The documents of a file in an order, as indices; 0 is the order of the file."""
    if not order:
        return np.arange(documents)
    return np.argsort(mix(np.uint64(order), np.arange(documents)), kind="stable")
