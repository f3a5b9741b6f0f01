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
