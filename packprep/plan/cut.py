"""Cut documents into segments: the only place where lengths become pieces and tokens are lost.

Example: a document of 10 tokens, max_length 4, stride 1 -> pieces at 0, 3, 6 of 4 tokens; 2 tokens
overlap.

If rows have labels, a segment without a trained token is dropped: the mean loss over no token is
NaN. Strategy wrapped drops whole documents and packs without one, so that all packs but the last
are full.

A row has labels (int32, -100 where there is no loss) or a mask (int8, 1 where there is one);
without either, every token is trained. These tokens never have a label: the first of a segment
(nothing before it predicts it), an added BOS, padding, and those that an earlier piece trains.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..packing.kernels.common import Out, array_at, kernel, larger
from ..schemas.arrays import Bools, Int32, Int64
from ..schemas.columns import NO_LOSS
from ..schemas.tokens import Documents, Pointers, span
from ..support.errors import InputError
from .types import Cutting, Dropped, Lost, Segments


class TooLongError(InputError):
    """A document longer than a pack with overflow error; the caller says before it which."""

    def __init__(self, document: int, tokens: int, most: int) -> None:
        cure = "leave out --overflow, or choose truncate or drop"
        super().__init__(f"{tokens:,} tokens but a pack holds {most:,}; {cure}")
        self.document = document


def labels_of(documents: Documents) -> Pointers | None:
    """Labels or masks of documents; None if every token is trained."""
    return documents.aligned.get("labels", documents.aligned.get("mask"))


def cut(documents: Documents, cutting: Cutting) -> tuple[Segments, Lost]:
    """Segments of documents, and the account of what is not in them.

    The sides of a pair are cut, dropped or refused together. Raises TooLongError.
    """
    length = documents.length
    atom = np.cumsum(documents.part != 1, dtype=np.int32) - np.int32(1) if cutting.pairs else None
    kept = _any(length > 0, atom)
    dropped: dict[Dropped, Int32] = {}

    def drop(reason: Dropped, wrong: Bools) -> None:
        nonlocal kept
        lost = kept & _any(wrong, atom)
        if lost.any():
            dropped[reason] = np.where(lost, length, 0).astype(np.int32)
        kept = kept & ~lost

    drop(Dropped.TOO_SHORT, length < max(cutting.min_document_tokens + cutting.ends, 1))
    if cutting.max_document_tokens is not None:
        drop(Dropped.TOO_LONG, length > cutting.max_document_tokens + cutting.ends)
    over = kept & (_total(padded(length, cutting.multiple), atom) > cutting.max_length)
    fitting, truncated = length, np.zeros(len(length), np.int32)
    match cutting.overflow:
        case "error" if over.any():
            first = int(np.argmax(over))
            tokens = int(_total(length, atom)[first])
            raise TooLongError(first, tokens, cutting.max_length)
        case "drop":
            drop(Dropped.OVERFLOW, over)
        case "truncate":
            fitting = _truncated(length, over, atom, cutting)
            truncated = (length - fitting).astype(np.int32)
    lost = Lost(truncated=truncated, dropped=dropped)
    if cutting.overflow == "split" and not cutting.wrapped and over.any():
        segments, lost = _split(np.where(kept, length, 0), lost, cutting)
    else:
        document = np.flatnonzero(kept).astype(np.int32)
        start = length - fitting if cutting.how == "left" else np.zeros_like(length)
        segments = Segments(
            document=document,
            start=start[document],
            count=fitting[document],
            bos=np.zeros(len(document), np.bool_),
            atom=None if atom is None else atom[document],
        )
    labels = labels_of(documents)
    if labels is not None:
        if cutting.how == "balanced" and over.any():
            segments = _balanced(segments, length, truncated, labels, cutting.max_length)
        segments, lost = _trainable(segments, lost, length, labels)
    if documents.group is not None:
        segments = replace(segments, group=documents.group[segments.document])
    return segments, lost


def wrap(
    documents: Documents, segments: Segments, lost: Lost, max_length: int
) -> tuple[Segments, Int64, Lost]:
    """Lay segments end to end and cut them where packs end; every pack but the last is full.

    Returns the segments, the first segment of each pack [packs + 1], and the account. Packs without
    a trained token are dropped. Example: count=[3, 6], max_length=4 -> count [3, 1, 4, 1], packs
    start at [0, 2, 3, 4].
    """
    ends = np.cumsum(segments.count, dtype=np.int64)
    begins, total = ends - segments.count, int(ends[-1]) if len(ends) else 0
    edges = np.arange(0, total, max_length)
    cuts = np.unique(np.append(begins, edges))
    source = np.searchsorted(begins, cuts, side="right") - 1
    pieces = Segments(
        document=segments.document[source],
        start=(segments.start[source] + cuts - begins[source]).astype(np.int32),
        count=np.diff(np.append(cuts, total)).astype(np.int32),
        bos=np.zeros(len(cuts), np.bool_),
    )
    offsets = np.append(np.searchsorted(cuts, edges), len(cuts)).astype(np.int64)
    if (labels := labels_of(documents)) is None:
        return pieces, offsets, lost
    trained, _ = count_trained(labels, pieces.document, pieces.start, pieces.count, pieces.bos)
    packs = np.add.reduceat(trained, offsets[:-1]) > 0 if total else offsets[:-1] > 0
    sizes = np.diff(offsets)
    pieces = replace(pieces, trained=trained)
    pieces, lost = _kept(pieces, np.repeat(packs, sizes), lost, documents.length)
    return pieces, np.append(0, np.cumsum(sizes[packs])), lost


def _any(wrong: Bools, atom: Int32 | None) -> Bools:
    """True where it is true of any document of the atom."""
    return wrong if atom is None else np.bincount(atom, wrong)[atom] > 0


def _total(values: Int32 | Int64, atom: Int32 | None) -> Int32 | Int64:
    """Sum over the documents of the atom, [documents]."""
    return values if atom is None else np.bincount(atom, values).astype(np.int64)[atom]


def padded(tokens: Int32, multiple: int) -> Int32 | Int64:
    """Tokens of segments with the padding that makes a multiple."""
    return tokens if multiple == 1 else -(-tokens.astype(np.int64) // multiple) * multiple


def proportional(source: Int32 | Int64, target: Int32 | Int64, most: int | Int32 | Int64) -> Int32:
    """Tokens kept of each source; the rest of `most` is for the target.

    source, target: [rows], tokens of prompts and responses that together are longer than `most`.
    Both are cut in proportion to their lengths; a side of less than half of `most` is not cut. The
    numbers are those of `infer_seqlen` of LLaMA-Factory (processor_utils.py in
    src/llamafactory/data/processor). Example: source 90, target 30, most 60 -> 45 and 15.
    """
    share = (most * (target / np.maximum(source + target, 1))).astype(np.int64)
    most_target = np.where(
        target * 2 < most, most, np.where(source * 2 < most, most - source, share)
    )
    kept_target = np.minimum(most_target, target)
    kept: Int32 = np.minimum(np.maximum(most - kept_target, 0), source).astype(np.int32)
    return kept


def _truncated(length: Int32, over: Bools, atom: Int32 | None, cutting: Cutting) -> Int32:
    """Tokens kept of each document; sides of a pair are cut in proportion."""
    most = cutting.max_length
    if atom is None:
        return np.where(over, np.minimum(length, most), length).astype(np.int32)
    kept, first = length.copy(), np.flatnonzero(over)[::2]
    fair = proportional(length[first], length[first + 1], most)
    share: Int32 | Int64 = padded(fair, cutting.multiple)
    # A pack is a number of whole multiples; each multiple is for one side.
    share = np.clip(share, cutting.multiple, most - cutting.multiple).astype(np.int64)
    kept[first] = np.minimum(length[first], share)
    kept[first + 1] = np.minimum(length[first + 1], most - share)
    return kept


def _split(length: Int32, lost: Lost, cutting: Cutting) -> tuple[Segments, Lost]:
    """Pieces of max_length that start `max_length - stride` apart; later ones may have a BOS."""
    extra = int(cutting.continuation_bos and cutting.has_bos)
    later = cutting.max_length - extra  # document tokens of a later piece
    step = later - cutting.stride
    over = np.maximum(length.astype(np.int64) - cutting.max_length, 0)
    pieces = np.where(length > 0, 1 - (-over // step), 0)
    document = np.repeat(np.arange(len(length), dtype=np.int32), pieces)
    number = np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    is_later = number > 0
    start = np.where(is_later, cutting.max_length - cutting.stride + (number - 1) * step, 0)
    count = np.minimum(length[document] - start, np.where(is_later, later, cutting.max_length))
    new = np.where(is_later, count - cutting.stride, count)
    tail = is_later & (number == pieces[document] - 1) & (new < cutting.min_document_tokens)
    if tail.any():
        short = np.bincount(document[tail], new[tail], len(length)).astype(np.int32)
        lost = replace(lost, dropped={**lost.dropped, Dropped.SHORT_TAIL: short})
    segments = Segments(
        document=document,
        start=start.astype(np.int32),
        count=count.astype(np.int32),
        bos=is_later & bool(extra),
        repeated=np.where(is_later, cutting.stride, 0).astype(np.int32) if cutting.stride else None,
    )
    return segments.take(~tail), lost


def _balanced(
    segments: Segments, length: Int32, truncated: Int32, labels: Pointers, most: int
) -> Segments:
    """Truncate prompt and response of the turn that exceeds `most`, each at its end.

    Turns before it stay whole, turns after it are cut off, as in `SupervisedDatasetProcessor` of
    LLaMA-Factory. A hole at the end of a segment is the same as truncation on the right.
    """
    cut = np.flatnonzero(truncated[segments.document] > 0)
    turns = [turn_at(labels, at, length[at], most) for at in segments.document[cut].tolist()]
    begin, answer, end = np.array(turns, np.int32).reshape(-1, 3).T
    kept = begin + proportional(answer - begin, end - answer, most - begin)
    front, hole = segments.count.copy(), np.zeros_like(segments.count)
    front[cut], hole[cut] = np.minimum(kept, front[cut]), answer - kept
    return replace(segments, front=front, hole=hole)


def _trainable(
    segments: Segments, lost: Lost, length: Int32, labels: Pointers
) -> tuple[Segments, Lost]:
    """Count the trained tokens of segments, and drop atoms in which a segment has none."""
    document, start, count = segments.document, segments.start, segments.count
    front = count if segments.front is None else segments.front
    trained, repeated = count_trained(labels, document, start, front, segments.bos)
    if segments.hole is not None:
        rest = start + front + segments.hole
        trained += count_trained(labels, document, rest, count - front, front > 0)[0]
    if segments.repeated is not None:
        segments = replace(segments, repeated=repeated)
    enough = trained > 0
    if segments.atom is not None:
        enough = ~np.isin(segments.atom, segments.atom[~enough])
    return _kept(replace(segments, trained=trained), enough, lost, length)


def _kept(segments: Segments, kept: Bools, lost: Lost, length: Int32) -> tuple[Segments, Lost]:
    """Take the segments `kept`; tokens that only the others have are few_loss_tokens."""
    if kept.all():
        return segments, lost
    segments = segments.take(kept)
    new = segments.count if segments.repeated is None else segments.count - segments.repeated
    remaining = np.bincount(segments.document, new, len(length)).astype(np.int32)
    # In a fully dropped document, truncated tokens count as dropped.
    truncated = np.where(remaining == 0, 0, lost.truncated).astype(np.int32)
    before = lost.dropped.get(Dropped.FEW_LOSS_TOKENS, 0)  # in `cut`, before packs are cut
    few = before + length - lost.of_documents - truncated - remaining
    return segments, Lost(
        truncated=truncated, dropped={**lost.dropped, Dropped.FEW_LOSS_TOKENS: few}
    )


def count_trained(
    labels: Pointers, document: Int32, start: Int32, count: Int32, bos: Bools
) -> tuple[Int32, Int32]:
    """Trained tokens of pieces, and tokens repeated from an earlier one, [pieces] each.

    Pieces of a document are in order. Tokens that pieces share are trained in the first of these
    pieces that has a trained token. bos: something goes before the piece in its pack.
    """
    trained, repeated = np.zeros(len(document), np.int32), np.zeros(len(document), np.int32)
    like = np.empty(0, labels.dtype)
    pieces = (document, start, count, bos)
    _count(labels.address, *pieces, _untrained(labels), like, trained, repeated)
    return trained, repeated


def turn_at(labels: Pointers, document: int, length: int, most: int) -> tuple[int, int, int]:
    """First token, first trained token and end of the turn of a document that holds token `most`.

    A turn is a run of tokens without loss, such as a question, and the trained tokens after it.
    """
    values = span(labels.address[document], length, labels.dtype)
    trained = values != _untrained(labels)
    begins = np.append(0, np.flatnonzero(trained[:-1] & ~trained[1:]) + 1)
    turn = int(np.searchsorted(begins, most, side="right"))
    begin, end = int(begins[turn - 1]), int(np.append(begins, length)[turn])
    answers = np.flatnonzero(trained[begin:end])
    return begin, begin + int(answers[0]) if len(answers) else end, end


def _untrained(labels: Pointers) -> int:
    return 0 if labels.dtype == np.int8 else NO_LOSS


@kernel
def _count(
    address: Int64,
    document: Int32,
    start: Int32,
    count: Int32,
    bos: Bools,
    untrained: int,
    like: NDArray[Any],
    trained: Out[Int32],
    repeated: Out[Int32],
) -> None:
    """See `count_trained`. like: an array of the type of the values."""
    reached, last = 0, -1  # end of the last piece that trains, and its document
    for piece in range(len(document)):
        if document[piece] == last:
            repeated[piece] = larger(reached - start[piece], 0)
        head = larger(0 if bos[piece] else 1, repeated[piece])
        if count[piece] > head:
            first = address[document[piece]] + like.itemsize * (start[piece] + head)
            for value in array_at(first, count[piece] - head, like):
                trained[piece] += value != untrained
        if trained[piece] > 0:
            reached, last = start[piece] + count[piece], document[piece]
