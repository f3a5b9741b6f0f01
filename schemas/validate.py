"""Checks of every invariant of a shard, a record batch at a time, as numpy passes.

The writer checks each batch before it writes it, and `verify` each that it reads. Messages name
file, pack, segment and token, such as "data-00003-of-00010.arrow pack 17 segment 2 token 5:
position_ids has 6; expected 5".
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .arrays import Bools
from .columns import FILLER, NO_LOSS, OF_FILLER, schema_of
from .files import FormatError
from .gather import Layout
from .views import ListView, Segments, list_view, segments_of

Values = Mapping[str, NDArray[Any]]
"""Values of all packs of a batch, concatenated, by standard column."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One kind of defect. kind: one or two words. what: the first one and its place."""

    kind: str
    what: str
    count: int = 1


class _Check(NamedTuple):
    """A check of something that each pack, segment or token of a batch has.

    each: pack, segment or token. wrong: mask of what is wrong. values: what they have. expected:
    in words, or for each of them.
    """

    kind: str
    each: str
    name: str
    wrong: Bools
    values: NDArray[Any]
    expected: str | NDArray[Any]


def check_batch(batch: pa.RecordBatch, layout: Layout, where: str, first_pack: int = 0) -> None:
    """Raise FormatError at the first finding; see `findings`."""
    for finding in findings(batch, layout, where, first_pack):
        raise FormatError(finding.what)


def findings(
    batch: pa.RecordBatch, layout: Layout, where: str, first_pack: int = 0
) -> Iterator[Finding]:
    """Every kind of violation in a batch; the page of the format lists the invariants.

    where: name of the file. first_pack: number in the file of the first pack. A batch with wrong
    boundaries has no other findings. Costs about a nanosecond a token for all columns.
    """
    if (expected := schema_of(layout.columns)) != batch.schema:
        names = ", ".join(f"{field.name} ({field.type})" for field in batch.schema)
        wanted = ", ".join(f"{field.name} ({field.type})" for field in expected)
        yield Finding(kind="columns", what=f"{where} has the columns {names}; expected {wanted}")
        return
    try:
        views = {c.standard: list_view(batch, c.name, where) for c in layout.columns}
        segments = segments_of(views, where, first_pack)
    except FormatError as error:
        yield Finding(kind="damaged", what=str(error))
        return
    checks = [check for check in _boundaries(views, segments, layout) if check.wrong.any()]
    if not checks:
        values = {name: view.flat for name, view in views.items()}
        checks += [check for check in _contents(values, segments, layout) if check.wrong.any()]
    for check in checks:
        at = int(np.argmax(check.wrong))
        place = f"{where} {_place(check.each, at, segments, first_pack)}"
        right = check.expected if isinstance(check.expected, str) else check.expected[at]
        what = f"{place}: {check.name} has {check.values[at]}; expected {right}"
        yield Finding(kind=check.kind, what=what, count=int(check.wrong.sum()))


def _place(each: str, at: int, segments: Segments, first_pack: int) -> str:
    """Place of a pack, segment or token of a batch: "pack 17 segment 2 token 5"."""
    if each == "pack":
        return f"pack {first_pack + at}"
    starts = {"token": segments.starts, "segment": segments.first}[each]
    inside = int(np.searchsorted(starts, at, side="right")) - 1
    outer = {"token": "segment", "segment": "pack"}[each]
    return f"{_place(outer, inside, segments, first_pack)} {each} {at - starts[inside]}"


def _boundaries(
    views: Mapping[str, ListView], segments: Segments, layout: Layout
) -> Iterator[_Check]:
    """Checks of the lengths of lists, and of what begins and ends where."""

    def packs(name: str, wrong: Bools, values: NDArray[Any], expected: Any) -> _Check:
        return _Check("boundaries", "pack", name, wrong, values, expected)

    tokens, counts = np.diff(segments.tokens), np.diff(segments.first)
    limit = f"1 to {layout.max_length:,}"
    yield packs("its number of tokens", (tokens < 1) | (tokens > layout.max_length), tokens, limit)
    sizes = {"token": tokens, "segment": counts, "boundary": counts + 1}
    for column in layout.columns:
        size, wanted = np.diff(views[column.standard].offsets), sizes[column.kind]
        yield packs(f"the length of {column.name}", size != wanted, size, wanted)
    starts, ends = segments.starts, segments.ends
    before = np.append(0, ends)[:-1]
    wrong, expected = (starts != before) | (ends <= starts), "more than the end of the one before"
    yield _Check("boundaries", "segment", "its end", wrong, ends, expected)
    last = ends[segments.first[1:] - 1]
    lasts = last - segments.tokens[:-1]
    yield packs("the end of its segments", last != segments.tokens[1:], lasts, tokens)


def _contents(values: Values, segments: Segments, layout: Layout) -> Iterator[_Check]:
    """Checks of everything but boundaries."""
    none = np.zeros(len(segments.starts))
    filler = values.get("document_ids", values.get("pair_ids", none)) == FILLER
    yield from _tokens(values["tokens"], layout.vocab_size)
    yield from _positions(values, segments)
    for name, wrong, expected in _documents(values, segments, filler):
        yield _Check("document", "segment", name, wrong, values[name], expected)
    if "labels" in values:
        yield from _labels(values, segments, filler, layout.vocab_size)
    for column in layout.columns:
        if column.dtype.startswith("float"):
            of, each = values[column.standard], "token" if column.kind == "token" else "segment"
            yield _Check("not finite", each, column.name, ~np.isfinite(of), of, "a finite number")


def _tokens(tokens: NDArray[Any], size: int) -> Iterator[_Check]:
    """Tokens must be ids. As unsigned, a negative id is a large one."""
    unsigned = tokens.view(f"u{tokens.itemsize}")
    if len(tokens) and int(unsigned.max()) >= size:
        yield _Check("token id", "token", "tokens", unsigned >= size, tokens, f"0 to {size - 1}")


def _positions(values: Values, segments: Segments) -> Iterator[_Check]:
    """Positions must be 0, 1, 2, ... in each segment."""
    positions, (_, _, starts, ends) = values.get("position_ids"), segments
    if positions is None:
        return
    # n whole numbers that rise from 0 to n - 1 are 0, 1, ..., n - 1.
    rises = np.empty(len(positions), np.bool_)
    np.greater(positions[1:], positions[:-1], out=rises[1:])
    rises[starts] = (positions[starts] == 0) & (positions[ends - 1] == ends - starts - 1)
    if not rises.all():
        expected = np.arange(len(positions)) - np.repeat(starts, ends - starts)
        wrong = positions != expected
        yield _Check("position", "token", "position_ids", wrong, positions, expected)


def _documents(
    values: Values, segments: Segments, filler: Bools
) -> Iterator[tuple[str, Bools, str]]:
    """Columns of segments: (name, mask of what is wrong, what is expected)."""
    for name, least in OF_FILLER.items():
        if (of := values.get(name)) is not None:
            wrong = (of < least) | (filler & (of != least))
            yield name, wrong, f"{least} or more, and {least} of filler"
    if "document_ids" in values:
        after = np.append(False, filler[:-1])
        after[segments.first[:-1]] = False
        yield "document_ids", after & ~filler, "filler at the end of its pack only"
    if (real := values.get("segment_lengths")) is not None:
        wrong = real > segments.ends - segments.starts
        if "document_ids" in values:  # without them nothing says what is filler
            wrong |= ~filler & (real == 0)
        yield "segment_lengths", wrong, "1 to its tokens, or 0 of filler"
    pairs, sides = values.get("pair_ids"), values.get("pair_sides")
    if pairs is not None and sides is not None:
        pack = np.repeat(np.arange(len(segments.first) - 1), np.diff(segments.first))
        wrong = ~filler & ((sides < 0) | (sides > 1) | _alone(pack, pairs, sides))
        yield "pair_sides", wrong, "0 and 1 of each pair in one pack"
        if "document_ids" in values:
            yield "pair_ids", pairs != values["document_ids"], "the document of its segment"


def _alone(pack: NDArray[Any], pairs: NDArray[Any], sides: NDArray[Any]) -> Bools:
    """Segments whose pair has no segment of the other side in their pack."""
    of_pairs, number = np.unique(np.stack([pack, pairs]), axis=1, return_inverse=True)
    number = number.reshape(-1)
    has = np.zeros((of_pairs.shape[1], 2), np.bool_)
    has[number, np.clip(sides, 0, 1)] = True
    alone: Bools = ~(has[:, 0] & has[:, 1])
    return alone[number]


def _labels(values: Values, segments: Segments, filler: Bools, size: int) -> Iterator[_Check]:
    """Labels must be -100 or ids, and -100 at the first token, in padding and in filler.

    Padding is the part of a segment after its real length.
    """
    real, labels, (_, _, starts, ends) = values.get("segment_lengths"), values["labels"], segments
    wrong = labels.view("u4") >= size
    wrong &= labels != NO_LOSS
    yield _Check("label", "token", "labels", wrong, labels, f"-100 or 0 to {size - 1}")
    first, expected = labels[starts], "-100 at the first token"
    yield _Check("label", "segment", "labels", first != NO_LOSS, first, expected)
    if real is None and not filler.any():
        return
    begins = np.where(filler, starts, ends if real is None else starts + real)
    before = np.append(0, np.cumsum(labels != NO_LOSS))
    trained = before[ends] - before[begins]
    yield _Check("padding", "segment", "padding", trained > 0, trained, "0 labels")
