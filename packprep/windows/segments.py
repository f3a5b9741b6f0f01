"""Segments: documents, or pieces of documents, that each stand whole in one pack."""

from dataclasses import dataclass

import numpy as np

from packprep.config.build_config import BuildConfig
from packprep.packing.account import Dropped
from packprep.support.arrays import Bools, Int32, Int64
from packprep.support.errors import InputError
from packprep.windows.labels import Labels


@dataclass(frozen=True, kw_only=True)
class Segments:
    """Pieces of documents in input order, each to stand whole in one pack.

    document: [segments], index into the arrays of documents. start: [segments], offset of the first
    own token within the document. own: [segments], tokens taken from the document. bos: [segments],
    whether an extra BOS goes before. repeated: [segments] or None, where stride makes pieces
    overlap: own tokens at the beginning that an earlier piece has too. front, hole: [segments] or
    None, of segments that lack tokens of their document in the middle: own tokens before the hole,
    and tokens in it.
    """

    document: Int32
    start: Int32
    own: Int32
    bos: Bools
    repeated: Int32 | None = None
    front: Int32 | None = None
    hole: Int32 | None = None

    def __len__(self) -> int:
        return len(self.own)

    @property
    def lengths(self) -> Int32:
        """[segments], tokens each has in a pack before padding."""
        return self.own + self.bos

    def take(self, kept: Int64 | Bools) -> "Segments":
        repeated, front, hole = (
            None if array is None else array[kept]
            for array in (self.repeated, self.front, self.hole)
        )
        return Segments(
            document=self.document[kept],
            start=self.start[kept],
            own=self.own[kept],
            bos=self.bos[kept],
            repeated=repeated,
            front=front,
            hole=hole,
        )

    def untrained_head(self, config: BuildConfig) -> Int32:
        """[segments], own tokens at the beginning of each that never have a label."""
        first = 1 - self.bos.astype(np.int32)  # behind an extra BOS, the first own token has one
        return (
            first
            if self.repeated is None or config.train_overlap
            else np.maximum(first, self.repeated)
        )

    def trained(self, labels: Labels, config: BuildConfig) -> Int32:
        """[segments], tokens of each that have a label in the shard."""
        head = self.untrained_head(config)
        if self.front is None or self.hole is None:
            return labels.count(self.document, self.start + head, self.own - head)
        before = labels.count(self.document, self.start + head, self.front - head)
        after = self.start + self.front + self.hole
        late = np.maximum(head - self.front, 0)
        return before + labels.count(self.document, after + late, self.own - self.front - late)


@dataclass(frozen=True, kw_only=True)
class DocumentAccount:
    """Outcome of the tokens of each document, [documents] each; dropped by reason."""

    truncated: Int32
    overlap: Int64
    continuation_bos: Int32
    dropped: dict[Dropped, Int32]


class TooLongError(InputError):
    """A document over max_length under overflow error; the pipeline knows its file and row."""

    def __init__(self, document: int, tokens: int) -> None:
        super().__init__(f"document {document} has {tokens:,} tokens")
        self.document = document
        self.tokens = tokens
