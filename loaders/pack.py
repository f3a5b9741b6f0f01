"""One pack: numpy views of its columns, and its segments."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packprep.schemas.trees import path_starts

from .trees import refuse_trees


class Segment(NamedTuple):
    """A document, or a piece of one.

    document_id: input row, -1 for filler. start: offset in the document of the segment's first
    token that no earlier piece has. Either is None if the shards have no such column. tokens:
    without padding at the end, of the type in the file.
    """

    document_id: int | None
    start: int | None
    tokens: NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """One packed sequence.

    columns: every stored column by name, as a read-only view of the file; with mmap=False without
    position_ids, which are computed.
    """

    columns: Mapping[str, NDArray[Any]]

    @property
    def tokens(self) -> NDArray[Any]:
        """Token ids, int32 [tokens]; uint16 if the build stored that (--token-type)."""
        return self.columns["tokens"]

    @property
    def cu_seqlens(self) -> NDArray[np.int32]:
        """int32 [segments + 1]: 0, then the end of each segment."""
        return self.columns["cu_seqlens"]

    @property
    def position_ids(self) -> NDArray[Any]:
        """Position ids, int32 or uint16 [tokens], from 0 in every segment, or along paths of trees.

        Computed from cu_seqlens, as int32, if the column is not stored or was not read.
        """
        if (stored := self.columns.get("position_ids")) is not None:
            return stored
        starts, lengths = self.cu_seqlens[:-1], np.diff(self.cu_seqlens)
        if (parents := self.columns.get("segment_parents")) is not None:
            above = path_starts(parents.astype(np.int64), lengths.astype(np.int64))
            starts = starts - above.astype(np.int32)
        return np.arange(len(self.tokens), dtype=np.int32) - np.repeat(starts, lengths)

    @property
    def document_ids(self) -> NDArray[np.int64] | None:
        """Input row of each segment, int64 [segments].

        -1 for filler; None if the column is not stored.
        """
        return self.columns.get("document_ids")

    @property
    def document_starts(self) -> NDArray[np.int32] | None:
        """Offset in its document of each segment's first new token, int32 [segments].

        New: not repeated from an earlier piece (--stride). None if the column is not stored.
        """
        return self.columns.get("document_starts")

    @property
    def segment_lengths(self) -> NDArray[np.int32] | None:
        """Tokens of each segment without the padding at its end, int32 [segments].

        None if no segment is padded.
        """
        return self.columns.get("segment_lengths")

    @property
    def labels(self) -> NDArray[np.int32] | None:
        """int32 [tokens], unshifted, -100 for no loss; None if the column is not stored."""
        return self.columns.get("labels")

    def segments(self) -> Iterator[Segment]:
        """The segments in pack order, filler included; ValueError if they are nodes of trees."""
        refuse_trees("segment_parents" in self.columns, "Pack.segments")
        first, lengths = self.cu_seqlens[:-1], self.segment_lengths
        last = self.cu_seqlens[1:] if lengths is None else first + lengths
        ids: Iterable[int | None] = (
            repeat(None) if self.document_ids is None else self.document_ids.tolist()
        )
        starts: Iterable[int | None] = (
            repeat(None) if self.document_starts is None else self.document_starts.tolist()
        )
        for document_id, start, begin, end in zip(
            ids, starts, first.tolist(), last.tolist(), strict=False
        ):
            yield Segment(document_id, start, self.tokens[begin:end])
