"""Packs of one window, as decided and not yet written.

Which segments stand where, and where their tokens are.

Nothing is copied into pack order before a record batch is made: a window of tiny documents has
hundreds of millions of segments, and 85 bytes for each of them, plan included, is what a window
costs in memory.
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

MEMORY_PER_DOCUMENT = (
    120  # bytes, measured at the highest point of planning 10 million documents of a few tokens
)


@dataclass(frozen=True, kw_only=True)
class Packs:
    """Pack p holds the segments order[offsets[p]:offsets[p + 1]].

    A segment of number FILLER is one pad token.

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
        """[packs], tokens in each."""
        lengths = (
            np.where(self.order >= 0, self.padded[self.order], 1) if len(self.order) else self.order
        )
        ends = np.append(0, np.cumsum(lengths, dtype=np.int64))
        packs: Int64 = np.diff(ends[self.offsets])
        return packs

    def take(self, packs: Int64) -> "Packs":
        """Only these packs, in this order."""
        order, offsets = permuted(self.order, self.offsets, packs)
        return replace(self, order=order, offsets=offsets)

    def filled(self, packs: int) -> "Packs":
        """With `packs` filler packs after the last.

        One pad token each, which has nothing to predict, so no loss.
        """
        order = np.append(self.order, np.full(packs, FILLER))
        return replace(
            self,
            order=order,
            offsets=np.append(self.offsets, self.offsets[-1] + 1 + np.arange(packs)),
        )

    def rows(self, first: int, last: int) -> "SegmentRows":
        """Segments of packs first..last - 1 as they stand."""
        order = self.order[self.offsets[first] : self.offsets[last]]
        filler = order < 0
        chosen, documents = self.segments.take(order), self.documents
        return SegmentRows(
            document=chosen.document,
            document_id=np.where(filler, FILLER, documents.id[chosen.document]),
            start=np.where(filler, 0, chosen.start),
            own=np.where(filler, 0, chosen.own).astype(np.int64),
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
    """Segments of neighbouring packs, in pack order.

    Every array is [segments], but offsets: [packs + 1], the begin of each pack. document: index
    into the arrays of documents, 0 where filler is True. start: offset of the own tokens in it.
    own: how many. bos: whether one more BOS goes before them. padded: tokens in the shard.
    repeated, front, hole: as in Segments.
    """

    document: NDArray[np.int32]
    document_id: Int64
    start: NDArray[np.int32]
    own: Int64
    bos: NDArray[np.bool_]
    padded: Int64
    filler: NDArray[np.bool_]
    repeated: NDArray[np.int32] | None
    front: NDArray[np.int32] | None
    hole: NDArray[np.int32] | None
    offsets: Int64

    @property
    def real(self) -> Int64:
        """[segments], tokens that are no padding."""
        return self.own + self.bos

    @cached_property
    def runs(self) -> "Runs":
        """Runs to copy: each segment's own tokens, in two runs if there is a hole in them."""
        start = self.start.astype(np.int64)
        whole = Runs(
            document=self.document, start=start, own=self.own, bos=self.bos, padded=self.padded
        )
        if self.front is None or self.hole is None:
            return whole
        front = np.minimum(self.front, self.own)  # of filler, 0
        # Runs 2i and 2i + 1 are segment i: what lies before its hole with its BOS, and the rest
        # with its padding.
        return Runs(
            document=np.repeat(self.document, 2),
            start=np.stack([start, start + front + self.hole], axis=1).ravel(),
            own=np.stack([front, self.own - front], axis=1).ravel(),
            bos=np.stack([self.bos, np.zeros_like(self.bos)], axis=1).ravel(),
            padded=np.stack([front + self.bos, self.padded - front - self.bos], axis=1).ravel(),
        )


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Tokens that lie together in a document and in a pack, [runs] each; the fields as in Rows."""

    document: NDArray[np.int32]
    start: Int64
    own: Int64
    bos: NDArray[np.bool_]
    padded: Int64

    def values(self, of_documents: Pointers) -> Pointers:
        """The first of each run's values of a column.

        of_documents: [documents], the first of each document's.
        """
        return of_documents.shifted(self.document, self.start)
