"""Packs of a record batch as flat arrays, with the place of each pack, segment and token."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .columns import FILLER, NO_LOSS
from .findings import Finding
from .views import ListView


@dataclass(frozen=True, kw_only=True)
class BatchView:
    """Packs of a record batch whose boundaries are valid.

    columns: values of all packs, concatenated. pack_tokens, pack_segments: int64 [packs + 1], first
    token and first segment of each pack. starts, ends: int64 [segments], first token and the one
    after the last. pack_rows: int64 [packs + 1], first row of each pack, if there are trees.
    numbers: int64 [segments], number of each in its pack, if that is not its place.
    """

    where: str
    first_pack: int
    columns: dict[str, NDArray[Any]]
    pack_tokens: NDArray[np.int64]
    pack_segments: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    pack_rows: NDArray[np.int64] | None = None
    numbers: NDArray[np.int64] | None = None

    def pack(self, pack: int, kind: str, what: str) -> Finding:
        """A finding in a pack of the batch."""
        return Finding(kind=kind, what=what, file=self.where, pack=self.first_pack + pack)

    def segment(self, segment: int, kind: str, what: str) -> Finding:
        """A finding in a segment of the batch."""
        pack = int(np.searchsorted(self.pack_segments, segment, side="right")) - 1
        number = self.number(segment, pack)
        return Finding(
            kind=kind, what=what, file=self.where, pack=self.first_pack + pack, segment=number
        )

    def token(self, token: int, kind: str, what: str) -> Finding:
        """A finding at a token of the batch."""
        segment = self.segment_of(token)
        place = self.segment(segment, kind, what)
        return Finding(
            kind=kind,
            what=what,
            file=self.where,
            pack=place.pack,
            segment=place.segment,
            token=int(token - self.starts[segment]),
        )

    def number(self, segment: int, pack: int) -> int:
        """Number of a segment of the batch in its pack."""
        if self.numbers is not None:
            return int(self.numbers[segment])
        return int(segment - self.pack_segments[pack])

    def segment_of(self, token: int) -> int:
        """The segment that holds a token of the batch."""
        return int(np.searchsorted(self.starts, token, side="right")) - 1

    @cached_property
    def unlabelled(self) -> int:
        """Tokens without a label; labels must be among the columns."""
        return int(np.count_nonzero(self.columns["labels"] == NO_LOSS))

    @property
    def filler(self) -> NDArray[np.bool_]:
        """[segments], True for filler.

        Without document_ids, it is the packs of trees that have no rows, or the segments of pairs
        without a row; else none is known.
        """
        filler: NDArray[np.bool_] = np.zeros(len(self.starts), np.bool_)
        ids = self.columns.get("document_ids", self.columns.get("pair_ids"))
        if ids is not None:
            filler = ids == FILLER
        elif self.pack_rows is not None:
            filler = np.repeat(np.diff(self.pack_rows) == 0, np.diff(self.pack_segments))
        return filler

    @property
    def real(self) -> NDArray[np.int64]:
        """[segments], number of tokens that are not padding."""
        lengths = self.columns.get("segment_lengths")
        if lengths is None:
            return np.where(self.filler, 0, self.ends - self.starts)
        return lengths.astype(np.int64)


def batch_view(views: dict[str, ListView], where: str, first_pack: int) -> BatchView:
    """The view of a batch whose boundaries are valid.

    where, first_pack: file and number of the first pack, for messages.
    """
    columns = {name: view.flat for name, view in views.items()}
    tokens, cu, flat_cu = views["tokens"], views["cu_seqlens"], columns["cu_seqlens"]
    pack_tokens = tokens.offsets.astype(np.int64) - int(tokens.offsets[0])
    cu_offsets = cu.offsets.astype(np.int64) - int(cu.offsets[0])
    # In a pack with cu_seqlens [0, 3, 8] that starts at token 100 of the batch: starts [100, 103],
    # ends [103, 108].
    first, last = np.zeros(len(flat_cu), np.bool_), np.zeros(len(flat_cu), np.bool_)
    first[cu_offsets[:-1]] = True
    last[cu_offsets[1:] - 1] = True
    rows = views.get("row_ids")
    base = np.repeat(pack_tokens[:-1], np.diff(cu_offsets) - 1)
    return BatchView(
        where=where,
        first_pack=first_pack,
        columns=columns,
        pack_tokens=pack_tokens,
        pack_segments=cu_offsets - np.arange(len(cu_offsets)),
        starts=base + flat_cu[~last],
        ends=base + flat_cu[~first],
        pack_rows=None if rows is None else rows.offsets.astype(np.int64) - int(rows.offsets[0]),
    )
