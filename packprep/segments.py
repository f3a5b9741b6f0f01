"""Documents to segments: what fits stays whole, what is too long is split, cut, dropped or refused; all of it counted.

The account of every document is kept as arrays, so that the ledger can be summed by source and must balance:

    tokens_in + overlap + continuation_bos == sum(segment lengths) + truncated + sum(dropped by reason)

Example: one document of 10 tokens, max_length=4, stride=1 -> pieces at 0, 3, 6 of 4 tokens; overlap = 2.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packprep.config import BuildConfig
from packprep.errors import InputError

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Segments:
    """Pieces of documents in input order, each to stand whole in one pack.

    document: [segments], index into the arrays of documents. start: [segments], offset of the first own token within
    the document. own: [segments], tokens taken from the document. bos: [segments], whether an extra BOS goes before.
    """

    document: Int32
    start: Int32
    own: Int32
    bos: Bools

    def __len__(self) -> int:
        return len(self.own)

    @property
    def lengths(self) -> Int32:
        """[segments], tokens each has in a pack before padding."""
        return self.own + self.bos

    def take(self, kept: Int64 | Bools) -> "Segments":
        return Segments(document=self.document[kept], start=self.start[kept], own=self.own[kept], bos=self.bos[kept])


@dataclass(frozen=True, kw_only=True)
class Account:
    """What became of the tokens of each document, [documents] each; dropped by reason."""

    truncated: Int32
    overlap: Int64
    continuation_bos: Int32
    dropped: dict[str, Int32]


def cut_segments(lengths: Int32, ends: int, config: BuildConfig, *, has_bos: bool) -> tuple[Segments, Account]:
    """Segments of documents of these lengths, and the account of what was left out or repeated.

    lengths: [documents], tokens with BOS and EOS, 0 for a document without any. ends: how many of BOS and EOS each has.
    With strategy wrapped, long documents are left whole here: `wrap` cuts them where packs end.
    Raises TooLongError for a document over max_length under overflow error.
    """
    nothing = np.zeros(len(lengths), np.int32)
    short = (lengths > 0) & (lengths < config.min_len + ends)
    long = lengths > config.max_len + ends if config.max_len is not None else np.zeros(len(lengths), np.bool_)
    over = (lengths > config.max_length) & ~short & ~long
    dropped = {"too_short": np.where(short, lengths, 0), "too_long": np.where(long, lengths, 0)}
    kept = np.where(short | long, 0, lengths)
    truncated = start = nothing
    if config.overflow == "error" and over.any():
        raise TooLongError(int(np.flatnonzero(over)[0]), int(lengths[over][0]))
    if config.overflow == "drop":
        dropped["overflow"] = np.where(over, lengths, 0)
        kept = np.where(over, 0, kept)
    elif config.overflow == "truncate":
        truncated = np.where(over, lengths - config.max_length, 0)
        kept = kept - truncated
        start = truncated if config.truncation_side == "left" else nothing
    dropped = {reason: counts.astype(np.int32) for reason, counts in dropped.items() if counts.any()}
    if config.overflow == "split" and config.strategy != "wrapped" and over.any():
        return _split(kept, dropped, config, has_bos=has_bos)
    whole = np.flatnonzero(kept).astype(np.int32)
    segments = Segments(
        document=whole,
        start=start[whole].astype(np.int32),
        own=kept[whole].astype(np.int32),
        bos=np.zeros(len(whole), np.bool_),
    )
    return segments, Account(
        truncated=truncated, overlap=nothing.astype(np.int64), continuation_bos=nothing, dropped=dropped
    )


class TooLongError(InputError):
    """A document over max_length under overflow error; the pipeline knows its file and row."""

    def __init__(self, document: int, tokens: int) -> None:
        super().__init__(f"document {document} has {tokens:,} tokens")
        self.document = document
        self.tokens = tokens


def _split(
    lengths: Int32, dropped: dict[str, Int32], config: BuildConfig, *, has_bos: bool
) -> tuple[Segments, Account]:
    """Pieces of max_length, `max_length - stride` apart, until the end is covered; later ones may carry a BOS."""
    extra = int(config.continuation_bos and has_bos)
    later = config.max_length - extra  # own tokens of a later piece
    step = later - config.stride
    over = np.maximum(lengths.astype(np.int64) - config.max_length, 0)
    pieces = np.where(lengths > 0, 1 - (-over // step), 0)
    document = np.repeat(np.arange(len(lengths), dtype=np.int32), pieces)
    number = np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    # Piece 0 has max_length tokens of its own, so piece 1 starts at max_length - stride; from there on every step.
    start = np.where(number > 0, config.max_length - config.stride + (number - 1) * step, 0)
    own = np.minimum(lengths[document] - start, np.where(number > 0, later, config.max_length))
    new = np.where(number > 0, own - config.stride, own)
    tail = (number > 0) & (number == pieces[document] - 1) & (new < config.min_len)
    if tail.any():
        dropped = dropped | {"short_tail": _sum(document[tail], new[tail], len(lengths))}
    more = (number > 0) & ~tail
    repeated = np.bincount(document[more], minlength=len(lengths)).astype(np.int32)
    account = Account(
        truncated=np.zeros(len(lengths), np.int32),
        overlap=repeated.astype(np.int64) * config.stride,  # a large stride repeats more than a document has
        continuation_bos=repeated * np.int32(extra),
        dropped=dropped,
    )
    segments = Segments(
        document=document, start=start.astype(np.int32), own=own.astype(np.int32), bos=(number > 0) & bool(extra)
    )
    return segments.take(~tail), account


def wrap(segments: Segments, max_length: int) -> tuple[Segments, Int64]:
    """Segments laid end to end and cut where packs end, and the first segment of each pack with one past the last.

    Every pack but the last is full. Example: own=[3, 6], max_length=4 -> own [3, 1, 4, 1], packs start at [0, 2, 3, 4].
    """
    ends = np.cumsum(segments.own, dtype=np.int64)
    begins = ends - segments.own
    total = int(ends[-1]) if len(ends) else 0
    edges = np.arange(max_length, total, max_length)
    cuts = np.union1d(begins, edges)
    source = np.searchsorted(ends, cuts, side="right")
    pieces = Segments(
        document=segments.document[source],
        start=(segments.start[source] + cuts - begins[source]).astype(np.int32),
        own=np.diff(np.append(cuts, total)).astype(np.int32),
        bos=np.zeros(len(cuts), np.bool_),
    )
    firsts = np.searchsorted(cuts, np.append(0, edges)) if total else np.empty(0, np.int64)
    return pieces, np.append(firsts, len(cuts)).astype(np.int64)


def _sum(document: Int32, counts: Int64, documents: int) -> Int32:
    """Sums by document; float64 holds every count exactly."""
    return np.bincount(document, weights=counts, minlength=documents).astype(np.int32)
