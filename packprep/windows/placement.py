"""Planned packs of one window: the segments of each pack, and where their tokens are.

Nothing is copied into pack order before a record batch is made. A window of tiny documents has
hundreds of millions of segments, and needs 85 bytes of memory for each, plan included.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from packprep.packing.kernels.gather import Pointers
from packprep.packing.order import permuted
from packprep.schemas.columns import FILLER
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

    def rows(self, first: int, last: int) -> "SegmentRows":
        """Segments of packs first..last - 1, in pack order."""
        order = self.order[self.offsets[first] : self.offsets[last]]
        filler = order < 0
        chosen, documents = self.segments.take(order), self.documents
        return SegmentRows(
            document=chosen.document,
            document_id=np.where(filler, FILLER, documents.id[chosen.document]),
            start=np.where(filler, 0, chosen.start),
            count=np.where(filler, 0, chosen.count).astype(np.int64),
            bos=chosen.bos & ~filler,
            padded=np.where(filler, 1, self.padded[order]).astype(np.int64),
            filler=filler,
            repeated=chosen.repeated,
            front=chosen.front,
            hole=chosen.hole,
            offsets=self.offsets[first : last + 1] - self.offsets[first],
            trees=None if self.trees is None else self._tree_rows(self.trees, first, last),
        )

    def _tree_rows(self, trees: Trees, first: int, last: int) -> "TreeRows":
        """Rows of the trees of packs first..last - 1."""
        offsets = self.offsets[first : last + 1] - self.offsets[first]
        order = self.order[self.offsets[first] : self.offsets[last]]
        parent = np.where(order >= 0, trees.parent[order], -1)
        place = np.arange(len(order))
        # Nodes of a tree are consecutive, in the pack as in the window.
        parent = np.where(parent >= 0, place - (order - parent), -1)
        roots = np.flatnonzero((order >= 0) & (parent < 0))
        tree = np.searchsorted(trees.roots, order[roots])
        firsts, ends = trees.tree_rows[tree], trees.tree_rows[tree + 1]
        counts = ends - firsts
        before = np.append(0, np.cumsum(counts))
        number = np.arange(before[-1]) + np.repeat(firsts - before[:-1], counts)
        shift = np.repeat(roots - order[roots], counts)
        return TreeRows(
            number=number,
            segment=order,
            last=trees.last[number] + shift,
            parent=parent,
            start=np.where(order >= 0, trees.start[order], 0),
            offsets=before[np.searchsorted(roots, offsets)],
            trees=trees,
        )


@dataclass(frozen=True, kw_only=True)
class SegmentRows:
    """Segments of consecutive packs, in pack order.

    offsets: [packs + 1], the beginning of each pack; every other array is [segments]. document:
    index into the arrays of documents, 0 where filler is True. padded: tokens in the shard. start,
    count, bos, repeated, front, hole: see Segments.
    """

    document: NDArray[np.int32]
    document_id: Int64
    start: NDArray[np.int32]
    count: Int64
    bos: NDArray[np.bool_]
    padded: Int64
    filler: NDArray[np.bool_]
    repeated: NDArray[np.int32] | None
    front: NDArray[np.int32] | None
    hole: NDArray[np.int32] | None
    offsets: Int64
    trees: "TreeRows | None" = None

    @property
    def real(self) -> Int64:
        """Tokens without padding, [segments]."""
        return self.count + self.bos

    @cached_property
    def runs(self) -> "Runs":
        """Runs to copy: the tokens of each segment, in two runs if there is a hole in them."""
        start = self.start.astype(np.int64)
        runs = Runs(
            document=self.document, start=start, count=self.count, bos=self.bos, padded=self.padded
        )
        if self.front is None or self.hole is None:
            return runs
        front = np.minimum(self.front, self.count)  # 0 for filler
        # Runs 2i and 2i + 1 are segment i: the part before the hole with its BOS, and the rest with
        # the padding.
        return Runs(
            document=np.repeat(self.document, 2),
            start=np.stack([start, start + front + self.hole], axis=1).ravel(),
            count=np.stack([front, self.count - front], axis=1).ravel(),
            bos=np.stack([self.bos, np.zeros_like(self.bos)], axis=1).ravel(),
            padded=np.stack([front + self.bos, self.padded - front - self.bos], axis=1).ravel(),
        )


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Tokens that are consecutive in a document and in a pack, [runs] each; see SegmentRows."""

    document: NDArray[np.int32]
    start: Int64
    count: Int64
    bos: NDArray[np.bool_]
    padded: Int64

    def values(self, of_documents: Pointers) -> Pointers:
        """Pointers to the first value of each run in a column, [runs].

        of_documents: pointers to the first value of each document, [documents].
        """
        return of_documents.shifted(self.document, self.start)


@dataclass(frozen=True, kw_only=True)
class TreeRows:
    """Rows of the trees of consecutive packs; segments are numbered from the first of these packs.

    number: [rows], in `trees`. last: [rows], the segment at which each ends. segment: [segments],
    the node in `trees`, or FILLER. parent: [segments], the segment before, or -1. start:
    [segments], tokens before each on its path. offsets: [packs + 1], the first row of each pack.
    """

    number: Int64
    last: Int64
    segment: Int64
    parent: Int64
    start: Int64
    offsets: Int64
    trees: Trees
