"""Documents to segments: what fits stays whole, what is too long is split, cut, dropped or refused.

All of it counted.

The account of every document is kept as arrays, so that the ledger can be summed by source and must
balance:

    tokens_in + overlap + continuation_bos
        == sum(segment lengths) + truncated + sum(dropped by reason)

Example: one document of 10 tokens, max_length=4, stride=1 -> pieces at 0, 3, 6 of 4 tokens; overlap
= 2.

Where rows have labels, a segment with fewer trained tokens than `min_loss_tokens` is dropped: a
mean loss over none of them is NaN. With strategy wrapped it is documents, and then packs, so that
every pack but the last is still full.
"""

from dataclasses import replace

import numpy as np

from packprep.config.build_config import BuildConfig
from packprep.packing.account import Dropped
from packprep.support.arrays import Bools, Int32, Int64
from packprep.windows.labels import Labels, proportional
from packprep.windows.segments import DocumentAccount, Segments, TooLongError


def cut_segments(
    lengths: Int32, ends: int, config: BuildConfig, *, has_bos: bool, labels: Labels | None = None
) -> tuple[Segments, DocumentAccount]:
    """Segments of documents of these lengths, and the account of what was left out or repeated.

    lengths: [documents], tokens with BOS and EOS, 0 for a document without any. ends: how many of
    BOS and EOS each has. labels: what is trained, where that is not every token. With strategy
    wrapped, long documents are left whole here: `wrap_documents` cuts them where packs end. Raises
    TooLongError for a document over max_length under overflow error.
    """
    nothing = np.zeros(len(lengths), np.int32)
    short = (lengths > 0) & (lengths < config.min_len + ends)
    long = (
        lengths > config.max_len + ends
        if config.max_len is not None
        else np.zeros(len(lengths), np.bool_)
    )
    over = (lengths > config.max_length) & ~short & ~long
    dropped = {
        Dropped.TOO_SHORT: np.where(short, lengths, 0),
        Dropped.TOO_LONG: np.where(long, lengths, 0),
    }
    kept = np.where(short | long, 0, lengths)
    truncated = start = nothing
    if config.overflow == "error" and over.any():
        raise TooLongError(int(np.flatnonzero(over)[0]), int(lengths[over][0]))
    if config.overflow == "drop":
        dropped[Dropped.OVERFLOW] = np.where(over, lengths, 0)
        kept = np.where(over, 0, kept)
    elif config.overflow == "truncate":
        truncated = np.where(over, lengths - config.max_length, 0)
        kept = kept - truncated
        start = truncated if config.truncation_side == "left" else nothing
    dropped = {
        reason: counts.astype(np.int32) for reason, counts in dropped.items() if counts.any()
    }
    if config.overflow == "split" and config.strategy != "wrapped" and over.any():
        segments, account = _split(kept, dropped, config, has_bos=has_bos)
    else:
        whole = np.flatnonzero(kept).astype(np.int32)
        segments = Segments(
            document=whole,
            start=start[whole].astype(np.int32),
            own=kept[whole].astype(np.int32),
            bos=np.zeros(len(whole), np.bool_),
        )
        if config.truncation_side == "balanced" and labels is not None and over.any():
            segments = _balanced(segments, lengths, truncated, labels, config.max_length)
        account = DocumentAccount(
            truncated=truncated,
            overlap=nothing.astype(np.int64),
            continuation_bos=nothing,
            dropped=dropped,
        )
    return (
        (segments, account)
        if labels is None
        else _trainable(segments, account, lengths, labels, config)
    )


def _balanced(
    segments: Segments, lengths: Int32, truncated: Int32, labels: Labels, most: int
) -> Segments:
    """The same segments, with both prompt and response shortened where one was cut.

    The prompt and the response each lose their ends, in proportion.

    The response begins at the first trained token. A hole at a segment's end is what truncation on
    the right leaves.
    """
    prompt = labels.first(lengths)[segments.document]
    cut = truncated[segments.document] > 0
    whole = lengths[segments.document]
    front = np.where(cut, proportional(prompt, whole - prompt, most), segments.own).astype(np.int32)
    return replace(segments, front=front, hole=np.where(cut, prompt - front, 0).astype(np.int32))


def _trainable(
    segments: Segments,
    account: DocumentAccount,
    lengths: Int32,
    labels: Labels,
    config: BuildConfig,
) -> tuple[Segments, DocumentAccount]:
    """Without the segments that have too few trained tokens; what they alone held is dropped."""
    if segments.repeated is None:
        return _kept(
            segments, segments.trained(labels, config) >= config.min_loss_tokens, account, lengths
        )
    kept, repeated = labels.trainable(
        segments.document,
        segments.start,
        segments.own,
        segments.bos,
        config.min_loss_tokens,
        config.train_overlap,
    )
    return _kept(replace(segments, repeated=repeated), kept, account, lengths)


def _kept(
    segments: Segments, kept: Bools, account: DocumentAccount, lengths: Int32
) -> tuple[Segments, DocumentAccount]:
    """The segments that are kept, and the account.

    What the others alone held is added to few_loss_tokens.
    """
    if kept.all():
        return segments, account
    segments = segments.take(kept)
    documents = len(lengths)
    overlap = np.zeros(documents, np.int64)
    if segments.repeated is not None:
        overlap = np.bincount(
            segments.document, weights=segments.repeated, minlength=documents
        ).astype(np.int64)
    held = (
        np.bincount(segments.document, weights=segments.own, minlength=documents).astype(np.int64)
        - overlap
    )
    gone = (
        lengths - account.truncated - sum(account.dropped.values(), np.zeros(documents, np.int32))
    )
    # A document that is wholly dropped has nothing left that truncation took.
    empty = held == 0
    truncated = np.where(empty, 0, account.truncated).astype(np.int32)
    few = np.where(empty, gone + account.truncated, gone - held).astype(np.int32)
    few += account.dropped.get(Dropped.FEW_LOSS_TOKENS, np.zeros(documents, np.int32))
    return segments, DocumentAccount(
        truncated=truncated,
        overlap=overlap,
        continuation_bos=_sum(segments.document, segments.bos.astype(np.int64), documents),
        dropped=account.dropped | {Dropped.FEW_LOSS_TOKENS: few},
    )


def _split(
    lengths: Int32, dropped: dict[Dropped, Int32], config: BuildConfig, *, has_bos: bool
) -> tuple[Segments, DocumentAccount]:
    """Pieces of max_length, `max_length - stride` apart, until the end is covered.

    Later ones may carry a BOS.
    """
    extra = int(config.continuation_bos and has_bos)
    later = config.max_length - extra  # own tokens of a later piece
    step = later - config.stride
    over = np.maximum(lengths.astype(np.int64) - config.max_length, 0)
    pieces = np.where(lengths > 0, 1 - (-over // step), 0)
    document = np.repeat(np.arange(len(lengths), dtype=np.int32), pieces)
    number = np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    # Piece 0 has max_length tokens of its own, so piece 1 starts at max_length - stride; from there
    # on every step.
    start = np.where(number > 0, config.max_length - config.stride + (number - 1) * step, 0)
    own = np.minimum(lengths[document] - start, np.where(number > 0, later, config.max_length))
    new = np.where(number > 0, own - config.stride, own)
    tail = (number > 0) & (number == pieces[document] - 1) & (new < config.min_len)
    if tail.any():
        dropped = dropped | {Dropped.SHORT_TAIL: _sum(document[tail], new[tail], len(lengths))}
    more = (number > 0) & ~tail
    pieces_more = np.bincount(document[more], minlength=len(lengths)).astype(np.int32)
    account = DocumentAccount(
        truncated=np.zeros(len(lengths), np.int32),
        overlap=pieces_more.astype(np.int64)
        * config.stride,  # a large stride repeats more than a document has
        continuation_bos=pieces_more * np.int32(extra),
        dropped=dropped,
    )
    segments = Segments(
        document=document,
        start=start.astype(np.int32),
        own=own.astype(np.int32),
        bos=(number > 0) & bool(extra),
        repeated=np.where(number > 0, np.int32(config.stride), np.int32(0))
        if config.stride
        else None,
    )
    return segments.take(~tail) if tail.any() else segments, account


def _sum(document: Int32, counts: Int64, documents: int) -> Int32:
    """Sums by document; float64 holds every count exactly."""
    return np.bincount(document, weights=counts, minlength=documents).astype(np.int32)


def wrap(segments: Segments, max_length: int) -> tuple[Segments, Int64]:
    """Segments laid end to end and cut where packs end.

    Also the first segment of each pack, with one past the last.

    Every pack but the last is full. Example: own=[3, 6], max_length=4 -> own [3, 1, 4, 1], packs
    start at [0, 2, 3, 4].
    """
    ends = np.cumsum(segments.own, dtype=np.int64)
    begins = ends - segments.own
    total = int(ends[-1]) if len(ends) else 0
    edges = np.arange(max_length, total, max_length)
    # Pieces begin where segments do and at edges inside them. Merged by place: sorting takes ten
    # times as long.
    place = np.searchsorted(begins, edges)
    inside = (
        begins[np.minimum(place, len(begins) - 1)] != edges if len(edges) else np.zeros(0, np.bool_)
    )
    before = np.cumsum(inside) - inside  # edges inside segments, before each edge
    later = np.zeros(
        len(begins) + np.count_nonzero(inside), np.bool_
    )  # pieces that are not their segment's first
    later[(place + before)[inside]] = True
    cuts = np.empty(len(later), np.int64)
    cuts[~later], cuts[later] = begins, edges[inside]
    source = np.cumsum(~later) - 1
    # a document over max_length, cut by `truncate` before, has no hole: config sees to that
    pieces = Segments(
        document=segments.document[source],
        start=(segments.start[source] + cuts - begins[source]).astype(np.int32),
        own=np.diff(np.append(cuts, total)).astype(np.int32),
        bos=np.zeros(len(cuts), np.bool_),
    )
    firsts = np.append(0, place + before) if total else np.empty(0, np.int64)
    return pieces, np.append(firsts, len(cuts)).astype(np.int64)


def wrap_documents(
    segments: Segments,
    account: DocumentAccount,
    lengths: Int32,
    config: BuildConfig,
    labels: Labels | None = None,
) -> tuple[Segments, Int64, DocumentAccount]:
    """Segments of `wrap` but those of packs with few trained tokens, and the account.

    Few: fewer than `min_loss_tokens`.
    """
    pieces, edges = wrap(segments, config.max_length)
    if labels is None:
        return pieces, edges, account
    sizes = np.diff(edges)
    trained = np.append(0, np.cumsum(pieces.trained(labels, config), dtype=np.int64))
    packs = np.diff(trained[edges]) >= config.min_loss_tokens
    pieces, account = _kept(pieces, np.repeat(packs, sizes), account, lengths)
    return pieces, np.append(0, np.cumsum(sizes[packs])), account
