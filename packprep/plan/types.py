"""Values of the room: windows of documents, segments, and what became of every token."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..packing.kernels.deal import permuted
from ..schemas.arrays import Bools, Int32, Int64, UInt64
from ..schemas.gather import Table
from ..schemas.tokens import Documents
from ..support.hashing import mix


class Range(NamedTuple):
    """Rows first..last - 1 of the input, those of them whose keys are in low..high.

    key: of the stream of the rows; 0 if it has none, so that all rows are meant. base: input row of
    the first row of the stream.
    """

    first: int
    last: int
    key: int = 0
    base: int = 0
    low: int = 0
    high: int = 2**64 - 1

    def keys(self, rows: Int64) -> UInt64:
        """Keys of input rows; those of one stream never share any."""
        numbers = (rows - self.base).astype(np.uint64)
        return mix(np.uint64(self.key), numbers) if self.key else numbers

    def has(self, rows: Int64) -> Bools:
        """Mask of the input rows that are meant."""
        inside = (rows >= self.first) & (rows < self.last)
        if self.high - self.low == 2**64 - 1:
            return inside
        keys = self.keys(rows)
        return inside & (keys >= np.uint64(self.low)) & (keys <= np.uint64(self.high))


@dataclass(frozen=True, kw_only=True)
class Window:
    """Rows that are packed together. number: over the build. split: train or validation.

    seed: of its plan.
    """

    number: int
    split: str
    seed: int
    ranges: tuple[Range, ...]

    @property
    def name(self) -> str:
        """Name of its work. Example: train-00003."""
        return f"{self.split}-{self.number:05d}"

    @property
    def rows(self) -> int:
        """About how many rows it has."""
        parts = ((r.last - r.first) * (r.high - r.low + 1) >> 64 for r in self.ranges)
        return sum(parts)


class Dropped(StrEnum):
    """Reason why tokens of documents are in no pack; the value is its name in the report.

    place: where the tokens are, with values of options. cure: what keeps them.
    """

    TOO_SHORT = (
        "too_short",
        "in documents shorter than min_document_tokens {min_document_tokens:,}",
        "lower min_document_tokens",
    )
    TOO_LONG = (
        "too_long",
        "in documents longer than max_document_tokens {max_document_tokens:,}",
        "raise max_document_tokens",
    )
    OVERFLOW = (
        "overflow",
        "in documents longer than max_length {max_length:,}",
        "raise max_length or leave out overflow",
    )
    SHORT_TAIL = (
        "short_tail",
        "in last pieces shorter than min_document_tokens {min_document_tokens:,}",
        "lower min_document_tokens",
    )
    FEW_LOSS_TOKENS = (
        "few_loss_tokens",
        "in segments without a trained token",
        "check which tokens of a row are trained",
    )
    SMALL_PACK = (
        "small_pack",
        "in packs smaller than min_pack_tokens {min_pack_tokens:,}",
        "lower min_pack_tokens",
    )
    REMAINDER = (
        "remainder",
        "in packs beyond a multiple of {multiple}",
        "choose multiple N:fill or a smaller multiple",
    )
    NOT_DRAWN = ("not_drawn", "not drawn", "draw more tokens, or other weights")

    place: str
    cure: str

    def __new__(cls, value: str, place: str, cure: str) -> "Dropped":
        reason = str.__new__(cls, value)
        reason._value_, reason.place, reason.cure = value, place, cure
        return reason


@dataclass(frozen=True, kw_only=True)
class Cutting:
    """What `cut` needs of the options. ends: tokens that BOS and EOS add to a document, 0 to 2.

    overflow: split, truncate, drop or error. how: left or balanced, of truncate. multiple: each
    segment is padded to one. has_bos: documents begin with BOS, so continuation_bos can add one.
    pairs: parts 0 and 1 of a row are the sides of a pair, which share a pack. wrapped: long
    documents are cut where packs end, by `wrap`.
    """

    max_length: int
    overflow: str = "split"
    how: str = ""
    stride: int = 0
    continuation_bos: bool = False
    min_document_tokens: int = 0
    max_document_tokens: int | None = None
    multiple: int = 1
    ends: int = 0
    has_bos: bool = False
    pairs: bool = False
    wrapped: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Segments:
    """Documents, or pieces of them, each in one pack; in input order, [segments] each.

    document: index into the documents. start, count: its tokens there. bos: an extra BOS goes
    before. atom: segments of one number share a pack. group: those of different numbers never do.
    trained: tokens that have a label; None if every token is trained. repeated, front, hole: see
    `schemas.gather.Table`; None if no segment has any.
    """

    document: Int32
    start: Int32
    count: Int32
    bos: Bools
    atom: Int32 | None = None
    group: Int32 | None = None
    trained: Int32 | None = None
    repeated: Int32 | None = None
    front: Int32 | None = None
    hole: Int32 | None = None

    def __len__(self) -> int:
        return len(self.count)

    @property
    def lengths(self) -> Int32:
        """Tokens of each segment in a pack, before padding."""
        return self.count + self.bos

    def take(self, kept: Bools) -> "Segments":
        """Select segments by a mask."""
        some = {name: column for name, column in vars(self).items() if column is not None}
        return replace(self, **{name: column[kept] for name, column in some.items()})


@dataclass(frozen=True, kw_only=True, eq=False)
class Lost:
    """Account of each document, [documents] each. dropped: tokens by reason.

    For each document: length + overlap + bos == sum(count + bos of its segments) + truncated +
    sum(dropped); overlap is the sum of `repeated`, and bos that of the added BOS of continuations.
    """

    truncated: Int32
    dropped: Mapping[Dropped, Int32] = field(default_factory=dict)

    @property
    def of_documents(self) -> Int32:
        """Dropped tokens of each document."""
        return sum(self.dropped.values(), np.zeros_like(self.truncated))


@dataclass(frozen=True, kw_only=True, eq=False)
class Packs:
    """Planned packs of one window: pack p is segments order[offsets[p]:offsets[p + 1]].

    padded: tokens of each segment in a pack, padding included, [segments]. order: int64, -1 is a
    filler segment of one pad token. planned: packs before small ones were dropped. bound: lower
    bound on the packs of any plan. measured: figures of the window, by name.
    """

    documents: Documents
    segments: Segments
    lost: Lost
    padded: Int32
    order: Int64
    offsets: Int64
    planned: int
    bound: int
    measured: Mapping[str, float]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64:
        """Tokens of each pack, [packs]."""
        tokens = np.where(self.order < 0, 1, self.padded[self.order] if len(self.padded) else 1)
        ends = np.append(0, np.cumsum(tokens, dtype=np.int64))
        lengths: Int64 = np.diff(ends[self.offsets])
        return lengths

    @property
    def placed(self) -> Bools:
        """True for segments that are in a pack, [segments]."""
        placed = np.zeros(len(self.segments), np.bool_)
        placed[self.order[self.order >= 0]] = True
        return placed

    def take(self, packs: NDArray[np.integer]) -> "Packs":
        """Select these packs, in this order."""
        order, offsets = permuted(self.order, self.offsets, packs)
        return replace(self, order=order, offsets=offsets)

    def filled(self, packs: int) -> "Packs":
        """Add packs of one filler segment at the end."""
        return replace(
            self,
            order=np.append(self.order, np.full(packs, -1)),
            offsets=np.append(self.offsets, self.offsets[-1] + 1 + np.arange(packs)),
        )

    def table(self, first: int, last: int) -> Table:
        """Packs first..last - 1 as `pack_columns` takes them."""
        order = self.order[self.offsets[first] : self.offsets[last]]
        columns = {"length": self.padded, **vars(self.segments)}
        taken = {name: c.take(order) for name, c in columns.items() if c is not None}
        for name in ("atom", "group", "trained"):
            taken.pop(name, None)
        if (filler := order < 0).any():
            for name, of_filler in (("document", -1), ("length", 1)):
                taken[name][filler] = of_filler
            for name in taken.keys() - {"document", "length"}:
                taken[name][filler] = 0
        offsets = self.offsets[first : last + 1] - self.offsets[first]
        return Table(columns=taken, offsets=offsets)
