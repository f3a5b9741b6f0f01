"""Trees in a plan of packs: what their segments and rows are, and who trains a token.

Segments are in depth-first order, and so are rows by the segments at which they end. The first row
that ends at a segment or below it is the first that has the segment's tokens: so segments need no
document of their own. From its first label on, a row trains every token that any row trains: so the
row whose labels begin first in a segment has the labels of all.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..trees import path_starts, row_paths

_Int64 = NDArray[np.int64]


class TreeIndex:
    """Trees of consecutive packs.

    columns: of the plan. offsets: [packs + 1], first segment of each pack. row_offsets: [packs +
    1], first row of each. lengths: [segments].

    parent: int64 [segments], the segment before, counted over all packs, -1 at a root. before:
    [segments], tokens before each on its path. last: [rows], the segment at which each ends.
    filler: [segments], True in packs without rows. Numbers that are wrong are in `bad_segments` and
    `bad_rows`; the rest is only meaningful if there are none.
    """

    def __init__(
        self,
        columns: Mapping[str, NDArray[Any]],
        offsets: _Int64,
        row_offsets: _Int64,
        lengths: _Int64,
    ) -> None:
        self.columns, self.row_offsets, self._lengths = columns, row_offsets, lengths
        sizes, counts = np.diff(offsets), np.diff(row_offsets)
        parents = columns["segment_parents"].astype(np.int64)
        first = np.repeat(offsets[:-1], sizes)
        self.bad_segments = (parents < -1) | (parents >= np.arange(len(parents)) - first)
        self.parent = np.where(self.bad_segments | (parents < 0), -1, parents + first)
        ends = columns["row_segments"].astype(np.int64)
        of_pack = np.repeat(offsets[:-1], counts)
        self.last = ends + of_pack
        self.bad_rows = (ends < 0) | (ends >= np.repeat(sizes, counts))
        self.bad_rows[1:] |= np.diff(self.last) < 0
        self.bad_rows |= (columns["row_store_rows"] < 0) | (columns["row_starts"] < 0)
        self.filler = np.repeat(counts == 0, sizes)
        self.before = path_starts(self.parent, lengths)
        self._first = np.searchsorted(self.last, np.arange(len(parents)))
        self.bad_segments |= ~self.filler & (self._first >= np.repeat(row_offsets[1:], sizes))

    def of_first_rows(self) -> tuple[_Int64, _Int64]:
        """Document of each segment, -1 for filler, and its first token there; [segments]."""
        return self._places(self._first)

    def of_label_rows(self) -> tuple[_Int64, _Int64]:
        """The same of the rows that have the labels of each segment."""
        row, segment = self._paths
        begins = self.columns["row_label_starts"][row]
        most = int(begins.max(initial=0))
        # numpy sorts numbers of 16 bits nine times as fast
        order = np.argsort((most - begins).astype(np.min_scalar_type(most)), kind="stable")
        chosen = np.zeros(len(self.parent), np.int64)
        chosen[segment[order]] = row[order]  # the last assignment stays: the first to begin
        return self._places(chosen)

    def _places(self, row: _Int64) -> tuple[_Int64, _Int64]:
        documents, starts = np.full((2, len(row)), -1, np.int64)
        real = ~self.filler
        documents[real] = self.columns["row_store_rows"][row[real]]
        starts[:] = 0
        starts[real] = self.columns["row_starts"][row[real]] + self.before[real]
        return documents, starts

    @cached_property
    def _paths(self) -> tuple[_Int64, _Int64]:
        return row_paths(self.parent, self.last)

    @cached_property
    def _begins(self) -> tuple[_Int64, _Int64, _Int64]:
        """Rows whose labels have begun at the first token of each segment, [segments].

        Also the segments in which labels of a row begin, ascending, and the token of the segment.
        """
        row, segment = self._paths
        place = self.columns["row_label_starts"][row] - self.before[segment]
        begun = np.bincount(segment[place <= 0], minlength=len(self.parent))
        inside = np.flatnonzero((place > 0) & (place < self._lengths[segment]))
        inside = inside[np.argsort(segment[inside], kind="stable")]
        return begun, segment[inside], place[inside]

    def rows_begun(self, first: int, last: int) -> NDArray[np.int32]:
        """Rows through each token of segments first..last - 1 whose labels have begun, [tokens]."""
        begun, segments, places = self._begins
        lengths = self._lengths[first:last]
        ends = np.cumsum(lengths)
        counts = np.repeat(begun[first:last].astype(np.int32), lengths)
        inside = slice(*np.searchsorted(segments, (first, last)))
        segment = segments[inside] - first
        if len(segment):
            steps = np.zeros(len(counts) + 1, np.int32)
            np.add.at(steps, ends[segment] - lengths[segment] + places[inside], 1)
            np.subtract.at(steps, ends[segment], 1)
            counts += np.cumsum(steps[:-1], dtype=np.int32)
        return counts
