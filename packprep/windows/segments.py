"""The table of a window: segments, which are documents or pieces of them, each in one pack.

Planning reads nothing else. What ties segments together is a column: sides of a pair have an atom,
documents of --group-column a group, and a segment that continues another has a parent.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from packprep.packing.account import Dropped
from packprep.schemas.views import chosen
from packprep.support.arrays import Bools, Int32, Int64
from packprep.support.errors import InputError
from packprep.windows.labels import Labels


@dataclass(frozen=True, kw_only=True)
class Segments:
    """Pieces of documents in input order, each of which is in one pack.

    Every array is [segments]; a column that would say nothing is None.

    document: index into the arrays of documents.
    start: offset of the first token in the document.
    count: tokens of the document, without an extra BOS.
    bos: True if an extra BOS goes before.
    atom: consecutive segments with one number share a pack.
    group: segments of different groups never share a pack.
    parent: how many segments before this one is the one that it continues; 0 if none.
    trained: tokens that have a label in the shard; None if every token is trained.
    repeated: tokens at the beginning that an earlier piece has too.
    front, hole: tokens before a hole in the middle of the segment, and tokens of the document
        missing there.
    rows: paths of segments; None if each segment is all of one.
    """

    document: Int32
    start: Int32
    count: Int32
    bos: Bools
    atom: Int32 | Int64 | None = None
    group: Int32 | None = None
    parent: Int64 | None = None
    trained: Int32 | None = None
    repeated: Int32 | None = None
    front: Int32 | None = None
    hole: Int32 | None = None
    rows: "RowTable | None" = None

    def __len__(self) -> int:
        return len(self.count)

    @property
    def lengths(self) -> Int32:
        """Tokens of each segment in a pack before padding, [segments]."""
        return self.count + self.bos

    def take(self, kept: Int64 | Bools) -> "Segments":
        """Select segments of which none continues another."""
        assert self.rows is None
        columns: dict[str, Any] = {
            name: None if column is None else chosen(column, kept)
            for name, column in vars(self).items()
        }
        return Segments(**columns)

    def untrained_head(self, train_overlap: bool) -> Int32:
        """Document tokens at the beginning of each segment that never have a label, [segments]."""
        first = 1 - self.bos.astype(np.int32)  # after an extra BOS, the first token has one
        return first if self.repeated is None or train_overlap else np.maximum(first, self.repeated)

    def count_trained(self, labels: Labels, train_overlap: bool) -> Int32:
        """Tokens of each segment that have a label in the shard, [segments]."""
        head = self.untrained_head(train_overlap)
        if self.front is None or self.hole is None:
            return labels.count(self.document, self.start + head, self.count - head)
        before = labels.count(self.document, self.start + head, self.front - head)
        after = self.start + self.front + self.hole
        late = np.maximum(head - self.front, 0)
        return before + labels.count(self.document, after + late, self.count - self.front - late)


@dataclass(frozen=True, kw_only=True)
class RowTable:
    """Documents, or pieces of them, whose tokens are a path of segments; [rows] but for `first`.

    first: int64 [segments + 1], the first row that ends at each segment, or later.
    document, start: as in Segments.
    trained: tokens that the row trains.
    begin: tokens before the first of them; all tokens if there is none.
    """

    first: Int64
    document: Int32
    start: Int32
    trained: Int32
    begin: Int32

    def ending_at(self, segments: Int64) -> tuple[Int64, Int64]:
        """The first of the rows that end at each of these segments, and their number.

        Filler has none.
        """
        first = self.first.take(segments)
        return first, np.where(segments < 0, 0, self.first.take(segments + 1) - first)


@dataclass(frozen=True, kw_only=True)
class DocumentAccount:
    """Account of the tokens of each document, [documents] each; dropped: by reason.

    shared: tokens that are not written again because another row has them; None if none can be.
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
