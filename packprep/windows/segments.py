"""Segments: documents, or pieces of documents, each of which is in one pack."""

from dataclasses import dataclass

import numpy as np

from packprep.packing.account import Dropped
from packprep.support.arrays import Bools, Int32, Int64
from packprep.support.errors import InputError
from packprep.windows.labels import Labels


@dataclass(frozen=True, kw_only=True)
class Segments:
    """Pieces of documents in input order, each of which is in one pack.

    Every array is [segments]. document: index into the arrays of documents. start: offset of the
    first token in the document. count: tokens of the document, without an extra BOS. bos: True if
    an extra BOS goes before. repeated: tokens at the beginning that an earlier piece has too; None
    without stride. front, hole: tokens before a hole in the middle of the segment, and tokens of
    the document missing there; None without holes.
    """

    document: Int32
    start: Int32
    count: Int32
    bos: Bools
    repeated: Int32 | None = None
    front: Int32 | None = None
    hole: Int32 | None = None

    def __len__(self) -> int:
        return len(self.count)

    @property
    def lengths(self) -> Int32:
        """Tokens of each segment in a pack before padding, [segments]."""
        return self.count + self.bos

    def take(self, kept: Int64 | Bools) -> "Segments":
        repeated, front, hole = (
            None if array is None else array[kept]
            for array in (self.repeated, self.front, self.hole)
        )
        return Segments(
            document=self.document[kept],
            start=self.start[kept],
            count=self.count[kept],
            bos=self.bos[kept],
            repeated=repeated,
            front=front,
            hole=hole,
        )

    def untrained_head(self, train_overlap: bool) -> Int32:
        """Document tokens at the beginning of each segment that never have a label, [segments]."""
        first = 1 - self.bos.astype(np.int32)  # after an extra BOS, the first token has one
        return first if self.repeated is None or train_overlap else np.maximum(first, self.repeated)

    def trained(self, labels: Labels, train_overlap: bool) -> Int32:
        """Tokens of each segment that have a label in the shard, [segments]."""
        head = self.untrained_head(train_overlap)
        if self.front is None or self.hole is None:
            return labels.count(self.document, self.start + head, self.count - head)
        before = labels.count(self.document, self.start + head, self.front - head)
        after = self.start + self.front + self.hole
        late = np.maximum(head - self.front, 0)
        return before + labels.count(self.document, after + late, self.count - self.front - late)


@dataclass(frozen=True, kw_only=True)
class DocumentAccount:
    """Account of the tokens of each document, [documents] each; dropped: by reason.

    shared: tokens that are not written again because another row has them; None without trees.
    """

    truncated: Int32
    overlap: Int64
    continuation_bos: Int32
    dropped: dict[Dropped, Int32]
    shared: Int64 | None = None


class TooLongError(InputError):
    """A document longer than max_length with overflow error; the pipeline adds file and row."""

    def __init__(self, document: int, tokens: int) -> None:
        super().__init__(f"document {document} has {tokens:,} tokens")
        self.document = document
        self.tokens = tokens
