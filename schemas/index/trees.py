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

from ..columns import FILLER
from ..trees import leaps, path_ends, path_starts
from ..views import in_turn

_Int64 = NDArray[np.int64]


class TreeIndex:
    """Trees of consecutive packs.

    columns: of the plan. offsets: [packs + 1], first segment of each pack. row_offsets: [packs +
    1], first row of each. starts: [segments + 1], first token of each segment, and the end.

    parent: int64 [segments], the segment before, counted over all packs, -1 at a root. before:
    [segments], tokens before each on its path. last: [rows], the segment at which each ends.
    filler: [segments], True in packs without rows. Numbers that are wrong are in `bad_rows` and
    `bad_segments`, to be asked for in this order; the rest is only meaningful if there are none.
    """

    def __init__(
        self,
        columns: Mapping[str, NDArray[Any]],
        offsets: _Int64,
        row_offsets: _Int64,
        starts: _Int64,
    ) -> None:
        self.columns, self.row_offsets = columns, row_offsets
        self._offsets, self._starts, self._lengths = offsets, starts, np.diff(starts)
        sizes, counts = np.diff(offsets), np.diff(row_offsets)
        parents = columns["segment_parents"] + np.repeat(offsets[:-1], sizes)
        self._later = parents >= np.arange(len(parents))
        self.parent = np.where(self._later | (columns["segment_parents"] < 0), -1, parents)
        self.last = columns["row_segments"] + np.repeat(offsets[:-1], counts)
        self.filler = np.repeat(counts == 0, sizes)
        self.before = path_starts(self.parent, self._lengths)

    @property
    def bad_rows(self) -> NDArray[np.bool_]:
        """[rows], True if it ends at no segment of its pack, or in no document."""
        columns = self.columns
        sizes = np.repeat(np.diff(self._offsets), np.diff(self.row_offsets))
        bad = (columns["row_segments"] < 0) | (columns["row_segments"] >= sizes)
        bad[1:] |= np.diff(self.last) < 0
        return bad | (columns["row_store_rows"] < 0) | (columns["row_starts"] < 0)

    @property
    def bad_segments(self) -> NDArray[np.bool_]:
        """[segments], True if it follows no segment of its pack, or no row has it."""
        ends = np.repeat(self.row_offsets[1:], np.diff(self._offsets))
        without = ~self.filler & (self._first >= ends)
        return self._later | (self.columns["segment_parents"] < -1) | without

    @cached_property
    def _ended(self) -> _Int64:
        """Rows that end before each segment, [segments + 1]."""
        counts = np.bincount(self.last, minlength=len(self.parent))
        return np.append(0, np.cumsum(counts))

    @cached_property
    def _first(self) -> _Int64:
        """The first row through each segment, [segments]; of filler, one after all rows."""
        return np.where(self.filler, len(self.last), self._ended[:-1])

    @cached_property
    def _ends(self) -> _Int64:
        return path_ends(self.parent)

    @cached_property
    def _label_starts(self) -> _Int64:
        return self.columns["row_label_starts"].astype(np.int64)

    def of_first_rows(self) -> tuple[_Int64, _Int64]:
        """Document of each segment, -1 for filler, and its first token there; [segments]."""
        return self._places(self._first)

    def of_label_rows(self) -> tuple[_Int64, _Int64, _Int64]:
        """The same of the rows that have the labels of each segment.

        Also the first tokens of each segment that no row trains.
        """
        # Rows through a segment are consecutive. The row whose labels begin first has the least
        # key, which is begin and row; the last key is that of filler.
        rows = np.arange(len(self.last) + 1)
        keys = np.append(self._label_starts, 0) << 32 | rows
        through = in_turn(self._first, self._ended.take(self._ends))
        least = np.minimum.reduceat(keys, through)[::2]
        head = np.clip((least >> 32) - self.before, 0, self._lengths)
        return *self._places(least & 0xFFFFFFFF), head

    def _places(self, row: _Int64) -> tuple[_Int64, _Int64]:
        documents = np.append(self.columns["row_store_rows"], FILLER).take(row)
        return documents, np.append(self.columns["row_starts"], 0).take(row) + self.before

    @cached_property
    def _steps(self) -> tuple[_Int64, NDArray[np.int32]]:
        """Tokens at which segments or labels of rows begin, and the rows begun from there on.

        Ascending; of several at one token, the last counts.
        """
        begins, starts, segments = self._label_starts, self._starts, len(self.parent)
        # The segment in which the labels of each row begin, after its first token: the one before
        # the highest on its path that is after them.
        at = self.last
        for above in reversed([*leaps(self.parent)]):
            higher = above.take(at)
            at = np.where((higher >= 0) & (self.before.take(higher) >= begins), higher, at)
        at = np.where(self.before.take(at) >= begins, self.parent.take(at), at)
        # A row trains a segment from its first token on if it ends in the segment or after it, and
        # its labels begin in none of these.
        some = np.flatnonzero(at >= 0)
        at, place = at.take(some), begins.take(some) - self.before.take(at.take(some))
        trained = self._ended - np.append(0, np.cumsum(np.bincount(at, minlength=segments)))
        rows = trained.take(self._ends) - trained[:-1]
        inside = np.flatnonzero(place < self._lengths.take(at))
        at, place = at.take(inside), place.take(inside)
        changes = np.diff(rows, prepend=0)
        changes[1:] -= np.bincount(at, minlength=segments)[:-1]
        tokens = np.append(starts[:-1], starts.take(at) + place)
        order = np.argsort(tokens, kind="stable")
        changes = np.append(changes, np.ones_like(at)).take(order)
        return tokens.take(order), np.cumsum(changes, dtype=np.int32)

    def rows_begun(self, first: int, last: int) -> NDArray[np.int32]:
        """Rows through each token of segments first..last - 1 whose labels have begun, [tokens]."""
        tokens, rows = self._steps
        begin, end = self._starts[first], self._starts[last]
        some = slice(*np.searchsorted(tokens, (begin, end)))
        return np.repeat(rows[some], np.diff(tokens[some], append=end))
