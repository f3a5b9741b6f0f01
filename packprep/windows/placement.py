"""Planned packs of one window: the segments of each pack, and where their tokens are.

Nothing is copied into pack order before a record batch is made. A window of tiny documents has
hundreds of millions of segments, and needs 85 bytes of memory for each, plan included.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.packing.order import permuted
from packprep.schemas.columns import FILLER
from packprep.schemas.index.packs import PacksPlan
from packprep.schemas.views import ranges_at
from packprep.support.arrays import Int64
from packprep.windows.documents import Documents
from packprep.windows.segments import Segments

# bytes; the measured peak of planning 10 million documents of a few tokens
MEMORY_PER_DOCUMENT = 120


@dataclass(frozen=True, kw_only=True)
class Packs:
    """Pack p holds the segments order[offsets[p]:offsets[p + 1]].

    A segment with number FILLER is one pad token.

    padded: int32 [segments], tokens of each in the shard. order: int64 [segments in packs].
    offsets: int64 [packs + 1].
    """

    documents: Documents
    segments: Segments
    padded: NDArray[np.int32]
    order: Int64
    offsets: Int64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> Int64:
        """Tokens in each pack, [packs]."""
        lengths = (
            np.where(self.order >= 0, self.padded[self.order], 1) if len(self.order) else self.order
        )
        ends = np.append(0, np.cumsum(lengths, dtype=np.int64))
        packs: Int64 = np.diff(ends[self.offsets])
        return packs

    @property
    def placed(self) -> NDArray[np.bool_]:
        """True for segments that are in a pack, [segments]."""
        real = self.order >= 0
        if len(real) == len(self.segments) and real.all():
            return real  # every segment is in one pack
        placed = np.zeros(len(self.segments), np.bool_)
        placed[self.order[real]] = True
        return placed

    @cached_property
    def rows_per_pack(self) -> Int64:
        """Rows that end in each pack, [packs]; without a table of rows, each segment is one."""
        if self.segments.rows is None:
            return np.diff(self.offsets)
        _, counts = self.segments.rows.ending_at(self.order)
        return np.diff(np.append(0, np.cumsum(counts))[self.offsets])

    def take(self, packs: Int64) -> "Packs":
        """Select these packs, in this order."""
        order, offsets = permuted(self.order, self.offsets, packs)
        return replace(self, order=order, offsets=offsets)

    def filled(self, packs: int) -> "Packs":
        """Add `packs` filler packs at the end: one pad token each, so no loss."""
        order = np.append(self.order, np.full(packs, FILLER))
        return replace(
            self,
            order=order,
            offsets=np.append(self.offsets, self.offsets[-1] + 1 + np.arange(packs)),
        )

    def plan(self, first: int, last: int) -> PacksPlan:
        """Plan of packs first..last - 1, in the columns that they need.

        `store_rows` are indices into `documents`.
        """
        order = self.order[self.offsets[first] : self.offsets[last]]
        segments, filler = self.segments, order < 0
        has_filler = bool(filler.any())

        def taken(values: NDArray[Any], of_filler: int = 0) -> NDArray[Any]:
            values = values.take(order)
            if has_filler:
                values[filler] = of_filler
            return values

        count, bos = taken(segments.count), taken(segments.bos)
        columns: dict[str, NDArray[Any]] = {
            "lengths": taken(self.padded, 1).astype(np.int64),
            "bos": bos,
            "segment_lengths": count + bos,
        }
        if segments.repeated is not None:
            columns["repeated"] = taken(segments.repeated)
        if segments.front is not None and segments.hole is not None:
            columns["front"] = np.minimum(taken(segments.front), count)
            columns["hole"] = taken(segments.hole)
        offsets = self.offsets[first : last + 1] - self.offsets[first]
        if (rows := segments.rows) is None or segments.parent is None:
            columns["store_rows"] = taken(segments.document, FILLER)
            columns["document_starts"] = taken(segments.start)
            return PacksPlan(columns=columns, offsets=offsets)
        place = np.arange(len(order)) - np.repeat(offsets[:-1], np.diff(offsets))  # in its pack
        back, (first_row, counts) = taken(segments.parent), rows.ending_at(order)
        row = ranges_at(first_row, counts)
        columns |= {
            "segment_parents": np.where(back > 0, place - back, -1),
            "row_store_rows": rows.document.take(row),
            "row_starts": rows.start.take(row),
            "row_segments": np.repeat(place, counts),
            "row_trained": rows.trained.take(row),
            "row_label_starts": rows.begin.take(row),
        }
        row_offsets = np.append(0, np.cumsum(counts))[offsets]
        return PacksPlan(columns=columns, offsets=offsets, row_offsets=row_offsets)
