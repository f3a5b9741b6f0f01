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
from packprep.schemas.trees import ranges_at
from packprep.support.arrays import Int64
from packprep.windows.documents import Documents
from packprep.windows.segments import Segments
from packprep.windows.trees import Trees

# bytes; the measured peak of planning 10 million documents of a few tokens
MEMORY_PER_DOCUMENT = 120


@dataclass(frozen=True, kw_only=True)
class Packs:
    """Pack p holds the segments order[offsets[p]:offsets[p + 1]].

    A segment with number FILLER is one pad token.

    padded: int32 [segments], tokens of each in the shard. order: int64 [segments in packs].
    offsets: int64 [packs + 1]. trees: if segments are their nodes.
    """

    documents: Documents
    segments: Segments
    padded: NDArray[np.int32]
    order: Int64
    offsets: Int64
    trees: Trees | None = None

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
        """Rows of the trees of each pack, [packs]; 0 without trees."""
        if self.trees is None:
            return np.zeros(len(self), np.int64)
        roots = np.append(0, np.cumsum(self._roots))[self.offsets]
        counts = np.diff(self.trees.tree_rows)[
            np.searchsorted(self.trees.roots, self.order[self._roots])
        ]
        rows: Int64 = np.diff(np.append(0, np.cumsum(counts))[roots])
        return rows

    @property
    def _roots(self) -> NDArray[np.bool_]:
        """Mask of the segments in packs at which a tree begins."""
        assert self.trees is not None
        return (self.order >= 0) & (self.trees.parent[self.order] < 0)

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
        filler, chosen = order < 0, self.segments.take(order)

        def or_filler(values: NDArray[Any], of_filler: int) -> NDArray[Any]:
            return np.where(filler, of_filler, values) if has_filler else values

        has_filler = bool(filler.any())
        count, bos = or_filler(chosen.count, 0), or_filler(chosen.bos, 0).astype(np.bool_)
        columns: dict[str, NDArray[Any]] = {
            "store_rows": or_filler(chosen.document, FILLER),
            "document_starts": or_filler(chosen.start, 0),
            "lengths": or_filler(self.padded[order], 1).astype(np.int64),
            "bos": bos,
            "segment_lengths": count + bos,
        }
        if chosen.repeated is not None:
            columns["repeated"] = chosen.repeated
        if chosen.front is not None and chosen.hole is not None:
            columns["front"] = np.minimum(chosen.front, count)
            columns["hole"] = or_filler(chosen.hole, 0)
        offsets = self.offsets[first : last + 1] - self.offsets[first]
        if self.trees is None:
            return PacksPlan(columns=columns, offsets=offsets)
        of_trees, row_offsets = _tree_columns(self.trees, order, offsets)
        return PacksPlan(columns=columns | of_trees, offsets=offsets, row_offsets=row_offsets)


def _tree_columns(
    trees: Trees, order: Int64, offsets: Int64
) -> tuple[dict[str, NDArray[Any]], Int64]:
    """Columns of a plan with trees, and the first row of each pack, [packs + 1].

    order: [segments], the node of each in `trees`, or FILLER. offsets: [packs + 1].
    """
    first = np.repeat(offsets[:-1], np.diff(offsets))
    parent = np.where(order >= 0, trees.parent[order], -1)
    # Nodes of a tree are consecutive, in the pack as in the window.
    shift = np.arange(len(order)) - order
    roots = np.flatnonzero((order >= 0) & (parent < 0))
    tree = np.searchsorted(trees.roots, order[roots])
    firsts, counts = trees.tree_rows[tree], np.diff(trees.tree_rows)[tree]
    row, of_root = ranges_at(firsts, counts), np.repeat(roots, counts)
    columns = {
        "segment_parents": np.where(parent >= 0, parent + shift - first, -1),
        "row_store_rows": trees.rows.document[row],
        "row_starts": trees.rows.start[row],
        "row_segments": trees.last[row] + shift[of_root] - first[of_root],
        "row_trained": trees.weights.trained[row],
        "row_label_starts": trees.weights.begin[row],
    }
    return columns, np.append(0, np.cumsum(counts))[np.searchsorted(roots, offsets)]
