"""Cut documents into segments; split, truncate, drop or refuse documents that are too long.

The account of every document is kept in arrays. The ledger is summed from it by source, and must
balance:

    tokens_in + overlap + continuation_bos
        == sum(segment lengths) + truncated + sum(dropped by reason)

Example: one document of 10 tokens, max_length=4, stride=1 -> pieces at 0, 3, 6 of 4 tokens; overlap
= 2.

If rows have labels, segments with fewer trained tokens than `min_loss_tokens` are dropped: the mean
loss over no token is NaN. Strategy wrapped drops documents and then packs, so every pack but the
last is still full.
"""

from dataclasses import replace

import numpy as np

from packprep.config.stages import Cutting
from packprep.packing.account import Dropped
from packprep.schemas.index.runs import Pointers
from packprep.support.arrays import Bools, Int32, Int64
from packprep.windows.filters import Uncut, filtered, tokens_of
from packprep.windows.labels import Labels, proportional
from packprep.windows.segments import DocumentAccount, Segments, TooLongError


def cut_segments(
    parts: Int32,
    ends: int,
    cutting: Cutting,
    *,
    has_bos: bool,
    multiple: int = 1,
    labels: Labels | None = None,
    tokens: Pointers | None = None,
    skipped: Bools | None = None,
) -> tuple[Segments, DocumentAccount]:
    """Segments of documents with these parts, and the account of dropped and repeated tokens.

    A part is a segment, and the parts of a document are an atom: cut, dropped or refused together.
    Only a document of one part is split.

    parts: [parts, documents], tokens with BOS and EOS, 0 for an empty document. ends: number of
    tokens added to each part, BOS and EOS. multiple: of tokens, to which segments are padded.
    labels: the trained tokens, or None if every token is trained. tokens, skipped: see `Uncut`.
    With strategy wrapped, long documents are not cut here: `wrap_documents` cuts them where packs
    end. Raises TooLongError for a document longer than max_length with overflow error.
    """
    lengths = parts.sum(axis=0, dtype=np.int32)
    kept, rows_dropped = filtered(
        Uncut(parts=parts, ends=ends, tokens=tokens, skipped=skipped), cutting
    )
    places = lengths if multiple == 1 else _padded(parts, multiple).sum(axis=0)
    over = kept & (places > cutting.max_length)
    fitting, truncated = parts, np.zeros(len(lengths), np.int32)
    if cutting.too_long.name == "error" and over.any():
        raise TooLongError(int(np.flatnonzero(over)[0]), int(lengths[over][0]))
    if cutting.too_long.name == "drop":
        rows_dropped[Dropped.OVERFLOW] = over
        kept = kept & ~over
    elif cutting.too_long.name == "truncate" and over.any():
        fitting = parts.copy()
        fitting[:, over] = _truncated(parts[:, over], cutting.max_length, multiple)
        truncated = lengths - fitting.sum(axis=0, dtype=np.int32)
    account = DocumentAccount(
        truncated=truncated,
        overlap=np.zeros(len(lengths), np.int64),
        continuation_bos=np.zeros(len(lengths), np.int32),
        dropped=tokens_of(rows_dropped, lengths),
    )
    if cutting.too_long.name == "split" and cutting.packer.name != "wrapped" and over.any():
        segments, account = _split(np.where(kept, lengths, 0), account, cutting, has_bos=has_bos)
    else:
        start = np.zeros_like(parts)
        for number in range(1, len(parts)):
            start[number] = start[number - 1] + parts[number - 1]
        if cutting.too_long.side == "left":
            start += parts - fitting
        rows = np.flatnonzero(kept).astype(np.int32)
        document, atom = rows, None
        if len(parts) > 1:
            document = atom = np.repeat(rows, len(parts))
        segments = Segments(
            document=document,
            start=start[:, rows].T.ravel(),
            count=fitting[:, rows].T.ravel(),
            bos=np.zeros(len(document), np.bool_),
            atom=atom,
        )
        if cutting.too_long.side == "balanced" and labels is not None and over.any():
            segments = _balanced(segments, lengths, account.truncated, labels, cutting.max_length)
    return (
        (segments, account)
        if labels is None
        else _trainable(segments, account, lengths, labels, cutting)
    )


def _padded(tokens: Int32, multiple: int) -> Int64:
    return -(-tokens.astype(np.int64) // multiple) * multiple


def _truncated(parts: Int32, most: int, multiple: int) -> Int32:
    """Tokens kept of each part, [parts, documents]: the end of a whole document is cut off.

    Sides of pairs are cut in proportion; a side of less than half a pack is not cut.
    Example: sides of 6 and 2 tokens, most=6 -> 4 and 2.
    """
    if len(parts) == 1:
        return np.minimum(parts, most)
    first = _padded(proportional(parts[0], parts[1], most), multiple)
    # A pack is a number of whole multiples; each multiple is for one side.
    taken = np.clip(first, multiple, most - multiple)
    return np.minimum(parts, [taken, most - taken]).astype(np.int32)


def _balanced(
    segments: Segments, lengths: Int32, truncated: Int32, labels: Labels, most: int
) -> Segments:
    """Truncate the prompt and the response of the turn that exceeds `most`, each at its end.

    Turns before it stay whole, turns after it are cut off, as in `SupervisedDatasetProcessor` of
    LLaMA-Factory. A response is a run of trained tokens. A hole at the end of a segment is the same
    as truncation on the right.
    """
    begin, answer, end = (each[segments.document] for each in labels.turns_at(lengths, most))
    cut = truncated[segments.document] > 0
    kept = begin + proportional(answer - begin, end - answer, most - begin)
    front = np.where(cut, kept, segments.count).astype(np.int32)
    return replace(segments, front=front, hole=np.where(cut, answer - front, 0).astype(np.int32))


def _trainable(
    segments: Segments,
    account: DocumentAccount,
    lengths: Int32,
    labels: Labels,
    cutting: Cutting,
) -> tuple[Segments, DocumentAccount]:
    """Count the trained tokens of segments, and drop atoms in which a segment has too few."""
    least, train_overlap = cutting.min_loss_tokens, cutting.train_overlap
    if segments.repeated is None:
        trained = segments.count_trained(labels, train_overlap)
    else:
        trained, repeated = labels.trainable(
            segments.document, segments.start, segments.count, segments.bos, least, train_overlap
        )
        segments = replace(segments, repeated=repeated)
    enough = trained >= least
    if segments.atom is not None:
        enough = ~np.isin(segments.atom, segments.atom[~enough])
    return _kept(replace(segments, trained=trained), enough, account, lengths)


def _kept(
    segments: Segments, kept: Bools, account: DocumentAccount, lengths: Int32
) -> tuple[Segments, DocumentAccount]:
    """Take the segments `kept`; add tokens that only the others have to few_loss_tokens."""
    if kept.all():
        return segments, account
    segments = segments.take(kept)
    documents = len(lengths)
    overlap = np.zeros(documents, np.int64)
    if segments.repeated is not None:
        overlap = np.bincount(
            segments.document, weights=segments.repeated, minlength=documents
        ).astype(np.int64)
    remaining = (
        np.bincount(segments.document, weights=segments.count, minlength=documents).astype(np.int64)
        - overlap
    )
    expected = (
        lengths - account.truncated - sum(account.dropped.values(), np.zeros(documents, np.int32))
    )
    # In a fully dropped document, truncated tokens count as dropped.
    empty = remaining == 0
    truncated = np.where(empty, 0, account.truncated).astype(np.int32)
    few = np.where(empty, expected + account.truncated, expected - remaining).astype(np.int32)
    few += account.dropped.get(Dropped.FEW_LOSS_TOKENS, np.zeros(documents, np.int32))
    return segments, DocumentAccount(
        truncated=truncated,
        overlap=overlap,
        continuation_bos=_sum(segments.document, segments.bos.astype(np.int64), documents),
        dropped=account.dropped | {Dropped.FEW_LOSS_TOKENS: few},
    )


def _split(
    lengths: Int32, account: DocumentAccount, cutting: Cutting, *, has_bos: bool
) -> tuple[Segments, DocumentAccount]:
    """Pieces of max_length that start `max_length - stride` apart, up to the end of the document.

    Later pieces may have an extra BOS.
    """
    extra = int(cutting.continuation_bos and has_bos)
    later = cutting.max_length - extra  # document tokens of a later piece
    step = later - cutting.stride
    over = np.maximum(lengths.astype(np.int64) - cutting.max_length, 0)
    pieces = np.where(lengths > 0, 1 - (-over // step), 0)
    document = np.repeat(np.arange(len(lengths), dtype=np.int32), pieces)
    number = np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    # Piece 0 has max_length document tokens, so piece 1 starts at max_length - stride; each later
    # piece starts `step` further.
    start = np.where(number > 0, cutting.max_length - cutting.stride + (number - 1) * step, 0)
    count = np.minimum(lengths[document] - start, np.where(number > 0, later, cutting.max_length))
    new = np.where(number > 0, count - cutting.stride, count)
    tail = (number > 0) & (number == pieces[document] - 1) & (new < cutting.min_document_tokens)
    dropped = account.dropped
    if tail.any():
        dropped = dropped | {Dropped.SHORT_TAIL: _sum(document[tail], new[tail], len(lengths))}
    more = (number > 0) & ~tail
    pieces_more = np.bincount(document[more], minlength=len(lengths)).astype(np.int32)
    account = replace(
        account,
        overlap=pieces_more.astype(np.int64)
        * cutting.stride,  # a large stride repeats more than a document has
        continuation_bos=pieces_more * np.int32(extra),
        dropped=dropped,
    )
    segments = Segments(
        document=document,
        start=start.astype(np.int32),
        count=count.astype(np.int32),
        bos=(number > 0) & bool(extra),
        repeated=np.where(number > 0, np.int32(cutting.stride), np.int32(0))
        if cutting.stride
        else None,
    )
    return segments.take(~tail) if tail.any() else segments, account


def _sum(document: Int32, counts: Int64, documents: int) -> Int32:
    """Sums by document; float64 represents every count exactly."""
    return np.bincount(document, weights=counts, minlength=documents).astype(np.int32)


def wrap(segments: Segments, max_length: int) -> tuple[Segments, Int64]:
    """Lay segments end to end and cut them where packs end. Every pack but the last is full.

    Returns the segments and the first segment of each pack [packs + 1]. Example: count=[3, 6],
    max_length=4 -> count [3, 1, 4, 1], packs start at [0, 2, 3, 4].
    """
    ends = np.cumsum(segments.count, dtype=np.int64)
    begins = ends - segments.count
    total = int(ends[-1]) if len(ends) else 0
    edges = np.arange(max_length, total, max_length)
    # Pieces begin where segments begin, and at edges inside them. They are merged by place: sorting
    # takes ten times as long.
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
    # There are no holes: config refuses overflow truncate:balanced with strategy wrapped.
    pieces = Segments(
        document=segments.document[source],
        start=(segments.start[source] + cuts - begins[source]).astype(np.int32),
        count=np.diff(np.append(cuts, total)).astype(np.int32),
        bos=np.zeros(len(cuts), np.bool_),
    )
    firsts = np.append(0, place + before) if total else np.empty(0, np.int64)
    return pieces, np.append(firsts, len(cuts)).astype(np.int64)


def wrap_documents(
    segments: Segments,
    account: DocumentAccount,
    lengths: Int32,
    cutting: Cutting,
    labels: Labels | None = None,
) -> tuple[Segments, Int64, DocumentAccount]:
    """Segments of `wrap`, without packs that have fewer than `min_loss_tokens` trained tokens.

    Returns the segments, the first segment of each pack [packs + 1], and the account.
    """
    pieces, edges = wrap(segments, cutting.max_length)
    if labels is None:
        return pieces, edges, account
    sizes = np.diff(edges)
    trained = pieces.count_trained(labels, cutting.train_overlap)
    pieces = replace(pieces, trained=trained)
    trained_before = np.append(0, np.cumsum(trained, dtype=np.int64))
    packs = np.diff(trained_before[edges]) >= cutting.min_loss_tokens
    pieces, account = _kept(pieces, np.repeat(packs, sizes), account, lengths)
    return pieces, np.append(0, np.cumsum(sizes[packs])), account
