"""Checks of every invariant of a shard, a record batch at a time, as numpy passes.

The writer checks each batch before it writes it, and `verify` each that it reads. Messages name
file, pack, segment and token, such as "data-00003-of-00010.arrow pack 17 segment 2 token 5:
position_ids has 6; expected 5".
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .arrays import Bools, Int64
from .columns import FILLER, NO_LOSS, WHOLE, schema_of
from .errors import FormatError
from .gather import Layout
from .views import ListView, list_view


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One kind of defect. kind: one or two words. what: the first one and its place."""

    kind: str
    what: str
    count: int = 1


def check_batch(batch: pa.RecordBatch, layout: Layout, where: str, first_pack: int = 0) -> None:
    """Raise FormatError at the first finding; see `findings`."""
    for finding in findings(batch, layout, where, first_pack):
        raise FormatError(finding.what)


def findings(
    batch: pa.RecordBatch, layout: Layout, where: str, first_pack: int = 0
) -> Iterator[Finding]:
    """Every kind of violation in a batch; README.md lists the invariants.

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
    except FormatError as error:
        yield Finding(kind="damaged", what=str(error))
        return
    packs = _Packs(views, where, first_pack)
    wrong = list(_boundaries(packs, layout))
    yield from wrong or _contents(packs, layout)


class _Packs:
    """Packs of a batch as flat arrays, and sentences about places in them.

    tokens, segments: first of each pack and the end, int64 [packs + 1]. starts, ends: of each
    segment, int64 [segments]; valid once boundaries are.
    """

    def __init__(self, views: dict[str, ListView], where: str, first_pack: int) -> None:
        self.views, self.where, self.first_pack = views, where, first_pack
        self.columns = {name: view.flat for name, view in views.items()}
        self.tokens = _from_zero(views["tokens"])
        if (lengths := views.get("seq_lengths")) is not None:
            self.segments = _from_zero(lengths)
            self.ends = np.cumsum(lengths.flat, dtype=np.int64)
            self.starts = self.ends - lengths.flat
            return
        entries = _from_zero(views["cu_seqlens"])
        self.segments = entries - np.arange(len(entries))
        values = views["cu_seqlens"].flat
        first, last = np.zeros((2, len(values)), np.bool_)
        has = entries[1:] > entries[:-1]
        first[entries[:-1][has]] = True
        last[entries[1:][has] - 1] = True
        base = np.repeat(self.tokens[:-1], np.maximum(np.diff(entries) - 1, 0))
        self.starts, self.ends = base + values[~last], base + values[~first]

    def get(self, name: str) -> NDArray[Any] | None:
        """Values of a standard column."""
        return self.columns.get(name)

    def of_pack(self, kind: str, wrong: Bools, what: Callable[[int], str]) -> Iterator[Finding]:
        """A finding if any pack is wrong. what: f(pack of the batch) -> rest of the sentence."""
        if wrong.any():
            pack = int(np.argmax(wrong))
            place = f"{self.where} pack {self.first_pack + pack}"
            yield Finding(kind=kind, what=f"{place}: {what(pack)}", count=int(wrong.sum()))

    def of_segment(self, kind: str, wrong: Bools, what: Callable[[int], str]) -> Iterator[Finding]:
        """A finding if any segment is wrong, [segments]."""
        if wrong.any():
            segment = int(np.argmax(wrong))
            pack = int(np.searchsorted(self.segments, segment, side="right")) - 1
            number = segment - int(self.segments[pack])
            place = f"{self.where} pack {self.first_pack + pack} segment {number}"
            yield Finding(kind=kind, what=f"{place}: {what(segment)}", count=int(wrong.sum()))

    def of_token(self, kind: str, wrong: Bools, what: Callable[[int], str]) -> Iterator[Finding]:
        """A finding if any token is wrong, [tokens]."""
        if wrong.any():
            token = int(np.argmax(wrong))
            segment = int(np.searchsorted(self.starts, token, side="right")) - 1
            pack = int(np.searchsorted(self.segments, segment, side="right")) - 1
            place = f"{self.where} pack {self.first_pack + pack} segment "
            place += (
                f"{segment - int(self.segments[pack])} token {token - int(self.starts[segment])}"
            )
            yield Finding(kind=kind, what=f"{place}: {what(token)}", count=int(wrong.sum()))


def _boundaries(packs: _Packs, layout: Layout) -> Iterator[Finding]:
    """Packs whose boundaries, or list lengths, are wrong."""
    lengths, segments = np.diff(packs.tokens), np.diff(packs.segments)
    yield from packs.of_pack(
        "boundaries",
        (lengths < 1) | (lengths > layout.max_length),
        lambda pack: f"it has {lengths[pack]:,} tokens; expected 1 to {layout.max_length:,}",
    )
    for column in layout.columns:
        sizes = np.diff(packs.views[column.standard].offsets)
        wanted = {"token": lengths, "segment": segments, "boundary": segments + 1}[column.kind]
        yield from packs.of_pack(
            "boundaries",
            sizes != wanted,
            lambda pack, sizes=sizes, wanted=wanted, name=column.name: (  # type: ignore[misc]
                f"{name} has {sizes[pack]} values; expected {wanted[pack]}"
            ),
        )
    if (segments < 1).any():
        yield from packs.of_pack(
            "boundaries", segments < 1, lambda pack: "it has no segment; expected at least one"
        )
        return
    first, last = packs.segments[:-1], packs.segments[1:] - 1
    bad = np.zeros(len(lengths), np.bool_)
    np.logical_or.at(bad, np.repeat(np.arange(len(bad)), segments), packs.ends <= packs.starts)
    bad |= (packs.starts[first] != packs.tokens[:-1]) | (packs.ends[last] != packs.tokens[1:])
    yield from packs.of_pack(
        "boundaries",
        bad,
        lambda pack: f"cu_seqlens must start at 0, rise, and end at its {lengths[pack]:,} tokens",
    )


def _contents(packs: _Packs, layout: Layout) -> Iterator[Finding]:
    """Everything but boundaries."""
    yield from _ids(packs, layout.vocab_size)
    yield from _positions(packs)
    ids, parts = packs.get("document_ids"), packs.get("turn_ids")
    starts, real, sides = (
        packs.get(n) for n in ("document_starts", "segment_lengths", "pair_sides")
    )
    lengths, pairs = packs.ends - packs.starts, packs.get("pair_ids")
    numbers = ids if ids is not None else pairs
    filler = np.zeros(len(lengths), np.bool_) if numbers is None else numbers == FILLER

    def segments(name: str, values: NDArray[Any], wrong: Bools, expected: str) -> Iterator[Finding]:
        return packs.of_segment(
            "document", wrong, lambda segment: f"{name} has {values[segment]}; expected {expected}"
        )

    if ids is not None:
        after = np.append(False, filler[:-1])
        after[packs.segments[:-1]] = False
        yield from segments("document_ids", ids, ids < FILLER, "an input row, or -1 for filler")
        yield from segments("document_ids", ids, after & ~filler, "filler at the end of its pack")
    if starts is not None:
        wrong = (starts < 0) | (filler & (starts > 0))
        yield from segments("document_starts", starts, wrong, "0 or more, and 0 of filler")
    if parts is not None:
        wrong = (parts < WHOLE) | (filler & (parts != FILLER))
        yield from segments("turn_ids", parts, wrong, "a part, or -1 for a row and for filler")
    if real is not None:
        wrong = (real < 0) | (real > lengths) | (filler != (real == 0))
        yield from segments("segment_lengths", real, wrong, "1 to its tokens, and 0 of filler")
    if pairs is not None and sides is not None:
        pack = np.repeat(np.arange(len(packs.tokens) - 1), np.diff(packs.segments))
        wrong = (sides < FILLER) | (sides > 1) | (filler != (sides == FILLER))
        wrong |= ~filler & _alone(pack, pairs, sides)
        yield from segments("pair_sides", sides, wrong, "0 and 1 of each pair in one pack")
        if ids is not None:
            yield from segments("pair_ids", pairs, pairs != ids, "the document of its segment")
    yield from _padding(packs, filler, real)
    for column in layout.columns:
        values = packs.columns[column.standard]
        if values.dtype.kind == "f":
            place = packs.of_token if column.kind == "token" else packs.of_segment
            yield from place(
                "not finite",
                ~np.isfinite(values),
                lambda at, values=values, name=column.name: (  # type: ignore[misc]
                    f"{name} has {values[at]}; expected a finite number"
                ),
            )


def _ids(packs: _Packs, vocab_size: int) -> Iterator[Finding]:
    """Tokens must be ids, and labels -100 or ids. As unsigned, a negative id is a large one."""
    tokens, labels = packs.columns["tokens"], packs.get("labels")
    unsigned = tokens.view(f"u{tokens.itemsize}")
    if len(tokens) and int(unsigned.max()) >= vocab_size:
        yield from packs.of_token(
            "token id",
            unsigned >= vocab_size,
            lambda token: f"the id is {tokens[token]}; expected 0 to {vocab_size - 1}",
        )
    if labels is not None:
        wrong = labels.view("u4") >= vocab_size
        wrong &= labels != NO_LOSS
        yield from packs.of_token(
            "label",
            wrong,
            lambda token: f"the label is {labels[token]}; expected -100 or 0 to {vocab_size - 1}",
        )
        first = np.zeros(len(labels), np.bool_)
        first[packs.starts] = labels[packs.starts] != NO_LOSS
        yield from packs.of_token(
            "label at start",
            first,
            lambda token: (
                f"the first token of a segment has the label {labels[token]}; expected -100"
            ),
        )


def _positions(packs: _Packs) -> Iterator[Finding]:
    """Positions must be 0, 1, 2, ... in each segment."""
    positions = packs.get("position_ids")
    if positions is None:
        return
    # n whole numbers that rise from 0 to n - 1 are 0, 1, ..., n - 1.
    rises = np.empty(len(positions), np.bool_)
    np.greater(positions[1:], positions[:-1], out=rises[1:])
    last = positions[packs.ends - 1]
    rises[packs.starts] = (positions[packs.starts] == 0) & (last == packs.ends - packs.starts - 1)
    if not rises.all():
        expected = np.arange(len(positions)) - np.repeat(packs.starts, packs.ends - packs.starts)
        yield from packs.of_token(
            "position",
            positions != expected,
            lambda token: f"position_ids has {positions[token]}; expected {expected[token]}",
        )


def _padding(packs: _Packs, filler: Bools, real: NDArray[Any] | None) -> Iterator[Finding]:
    """Padding, the part of a segment after its real length, and filler must have no label."""
    if real is None and not filler.any():
        return
    kept = packs.starts + (packs.ends - packs.starts if real is None else real)
    begins = np.where(filler, packs.starts, kept)
    padded, labels = begins < packs.ends, packs.get("labels")
    if labels is None:
        yield from packs.of_segment("padding", padded, lambda _: "it has padding, and no labels")
        return
    before = np.append(0, np.cumsum(labels != NO_LOSS))
    yield from packs.of_segment(
        "padding",
        padded & (before[packs.ends] > before[begins]),
        lambda _: "padding has a label; expected -100",
    )


def _alone(pack: Int64, pairs: NDArray[Any], sides: NDArray[Any]) -> Bools:
    """Segments whose pair has no segment of the other side in their pack."""
    order = np.lexsort((pairs, pack))
    new = np.append(True, (np.diff(pack[order]) != 0) | (np.diff(pairs[order]) != 0))
    group = np.cumsum(new) - 1
    both = np.zeros((int(group[-1]) + 1 if len(group) else 0, 2), np.bool_)
    both[group, np.clip(sides[order], 0, 1)] = True
    paired: Bools = np.logical_and(both[:, 0], both[:, 1])
    alone = np.empty(len(pack), np.bool_)
    alone[order] = ~paired[group]
    return alone


def _from_zero(view: ListView) -> Int64:
    return view.offsets.astype(np.int64) - int(view.offsets[0])
