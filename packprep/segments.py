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

Int64 = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Segments:
    """Pieces of documents in input order, each to stand whole in one pack.

    document: [segments], index into the arrays of documents. start: [segments], offset of the first own token within
    the document. own: [segments], tokens taken from the document. bos: [segments], whether an extra BOS goes before.
    """

    document: Int64
    start: Int64
    own: Int64
    bos: Bools

    def __len__(self) -> int:
        return len(self.own)

    @property
    def lengths(self) -> Int64:
        """[segments], tokens each has in a pack before padding."""
        return self.own + self.bos

    def take(self, kept: NDArray[np.int64] | Bools) -> "Segments":
        return Segments(document=self.document[kept], start=self.start[kept], own=self.own[kept], bos=self.bos[kept])


@dataclass(frozen=True, kw_only=True)
class Account:
    """What became of the tokens of each document, [documents] each; dropped by reason."""

    truncated: Int64
    overlap: Int64
    continuation_bos: Int64
    dropped: dict[str, Int64]


def cut_segments(lengths: Int64, ends: int, config: BuildConfig, *, has_bos: bool) -> tuple[Segments, Account]:
    """Segments of documents of these lengths, and the account of what was left out or repeated.

    lengths: [documents], tokens with BOS and EOS, 0 for a document without any. ends: how many of BOS and EOS each has.
    With strategy wrapped, long documents are left whole here: `wrap` cuts them where packs end.
    Raises InputError, its first word the document's index, for a document too long under overflow error.
    """
    documents = np.arange(len(lengths))
    text = np.where(lengths > 0, lengths - ends, 0)
    short = (lengths > 0) & (text < config.min_len)
    long = (lengths > 0) & (text > config.max_len) if config.max_len is not None else np.zeros(len(lengths), np.bool_)
    over = (lengths > config.max_length) & ~short & ~long
    dropped = {"too_short": np.where(short, lengths, 0), "too_long": np.where(long, lengths, 0)}
    kept = np.where(short | long, 0, lengths)
    nothing = np.zeros(len(lengths), np.int64)
    truncated = nothing
    start = nothing
    if config.overflow == "error" and over.any():
        raise TooLongError(int(np.flatnonzero(over)[0]), int(lengths[over][0]))
    if config.overflow == "drop":
        dropped["overflow"] = np.where(over, lengths, 0)
        kept = np.where(over, 0, kept)
    elif config.overflow == "truncate":
        truncated = np.where(over, lengths - config.max_length, 0)
        kept = kept - truncated
        start = truncated if config.truncation_side == "left" else nothing
    if config.overflow == "split" and config.strategy != "wrapped":
        return _split(kept, dropped, config, has_bos=has_bos)
    whole = np.flatnonzero(kept)
    segments = Segments(
        document=documents[whole], start=start[whole], own=kept[whole], bos=np.zeros(len(whole), np.bool_)
    )
    return segments, Account(truncated=truncated, overlap=nothing, continuation_bos=nothing, dropped=dropped)


class TooLongError(InputError):
    """A document over max_length under overflow error; the pipeline knows its file and row."""

    def __init__(self, document: int, tokens: int) -> None:
        super().__init__(f"document {document} has {tokens:,} tokens")
        self.document = document
        self.tokens = tokens


def _split(
    lengths: Int64, dropped: dict[str, Int64], config: BuildConfig, *, has_bos: bool
) -> tuple[Segments, Account]:
    """Pieces of max_length, `max_length - stride` apart, until the end is covered; later ones may carry a BOS."""
    extra = int(config.continuation_bos and has_bos)
    later = config.max_length - extra  # own tokens of a later piece
    step = later - config.stride
    pieces = np.where(lengths > 0, 1 + np.maximum(0, -(-(lengths - config.max_length) // step)), 0)
    document = np.repeat(np.arange(len(lengths)), pieces)
    number = np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    # Piece 0 has max_length tokens of its own, so piece 1 starts at max_length - stride; from there on every step.
    start = np.where(number > 0, config.max_length - config.stride + (number - 1) * step, 0)
    own = np.minimum(lengths[document] - start, np.where(number > 0, later, config.max_length))
    new = np.where(number > 0, own - config.stride, own)
    tail = (number > 0) & (number == pieces[document] - 1) & (new < config.min_len)
    dropped = dropped | {"short_tail": _sum(document[tail], new[tail], len(lengths))}
    more = (number > 0) & ~tail
    account = Account(
        truncated=np.zeros(len(lengths), np.int64),
        overlap=_sum(document[more], np.full(int(more.sum()), config.stride), len(lengths)),
        continuation_bos=_sum(document[more], np.full(int(more.sum()), extra), len(lengths)),
        dropped=dropped,
    )
    segments = Segments(document=document, start=start, own=own, bos=(number > 0) & bool(extra))
    return segments.take(~tail), account


def wrap(segments: Segments, max_length: int) -> tuple[Segments, Int64]:
    """Segments laid end to end and cut where packs end, and the first segment of each pack with one past the last.

    Every pack but the last is full. Example: own=[3, 6], max_length=4 -> own [3, 1, 4, 1], packs start at [0, 2, 3, 4].
    """
    ends = np.cumsum(segments.own)
    total = int(ends[-1]) if len(ends) else 0
    edges = np.arange(max_length, total, max_length)
    cuts = np.union1d(ends - segments.own, edges)
    source = np.searchsorted(ends, cuts, side="right")
    own = np.diff(np.append(cuts, total))
    start = segments.start[source] + cuts - (ends - segments.own)[source]
    pieces = Segments(document=segments.document[source], start=start, own=own, bos=np.zeros(len(cuts), np.bool_))
    return pieces, np.append(np.searchsorted(cuts, np.append(0, edges)) if total else [], len(cuts)).astype(np.int64)


def _sum(document: Int64, counts: Int64, documents: int) -> Int64:
    """Exact sums by document; float64 holds every count below 2^53."""
    return np.bincount(document, weights=counts, minlength=documents).astype(np.int64)
