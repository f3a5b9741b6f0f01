"""Laws of the pure functions, with twins that take one step at a time."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.plan.cut import cut, wrap
from packprep.plan.draw import BLOCK, SourceRows, draw
from packprep.plan.types import Cutting, Dropped, Range
from packprep.read.formats import jsonl
from packprep.read.reading import read, splits
from packprep.read.types import Source, Text
from packprep.schemas.columns import NO_LOSS, STANDARD
from packprep.schemas.gather import Layout, Table, pack_columns
from packprep.schemas.tokens import Documents, Pointers
from packprep.support.errors import ConfigError

LINES = st.lists(
    st.sampled_from(['{"text": "a"}', "", '{"text": "line\\nend"}', '{"text": "' + "x" * 90 + '"}'])
).filter(any)


def documents_of(lengths: Sequence[int], **aligned: Any) -> Documents:
    """Documents of these lengths whose tokens are 0, 1, 2, ... over all of them."""
    ends = np.append(0, np.cumsum(lengths)).astype(np.int64)
    tokens = np.arange(ends[-1] + 1, dtype=np.int32)
    return Documents(
        id=np.arange(len(lengths)),
        part=np.full(len(lengths), -1, np.int32),
        source=np.zeros(len(lengths), np.int32),
        length=np.array(lengths, np.int32),
        tokens=Pointers.into(tokens, ends[:-1]),
        aligned={name: Pointers.into(values, ends[:-1]) for name, values in aligned.items()},
    )


def source_of(path: Path) -> Source:
    size = path.stat().st_size
    return Source(
        number=0, name="a", paths=(str(path),), format="json", bytes=size, digest="", rows=Text()
    )


@given(st.lists(LINES, min_size=1, max_size=4), st.integers(1, 300), st.integers(1, 300))
def test_splits_have_each_row_once_in_order(files: list[list[str]], size: int, block: int) -> None:
    with TemporaryDirectory() as name, patch.multiple(jsonl, BLOCK=block, _REST=block // 9):
        sources = []
        for number, lines in enumerate(files):
            path = Path(name, f"{number}.jsonl")
            path.write_text("\n".join(lines))
            sources.append(Source(**{**vars(source_of(path)), "number": number, "name": path.name}))
        made = [
            text
            for split in splits(sources, size)
            for batch in [*read(split, sources)]
            for text in batch.documents["text"].to_pylist()
        ]
    texts = {'{"text": "a"}': "a", '{"text": "line\\nend"}': "line\nend"}
    assert made == [texts.get(line, "x" * 90) for lines in files for line in lines if line]


def pieces_of(length: int, cutting: Cutting) -> tuple[list[tuple[int, int]], str | None]:
    """Start and count of each piece of a document, and why its rest is dropped; the twin of cut."""
    most, least = cutting.max_length, cutting.min_document_tokens
    if length < max(least, 1):
        return [], Dropped.TOO_SHORT
    if cutting.max_document_tokens is not None and length > cutting.max_document_tokens:
        return [], Dropped.TOO_LONG
    if length <= most:
        return [(0, length)], None
    if cutting.overflow == "drop":
        return [], Dropped.OVERFLOW
    if cutting.overflow == "truncate":
        return [(length - most if cutting.how == "left" else 0, most)], None
    later = most - (cutting.continuation_bos and cutting.has_bos)
    pieces, start = [(0, most)], most - cutting.stride
    while start + cutting.stride < length:
        pieces.append((start, min(later, length - start)))
        start += later - cutting.stride
    if pieces[-1][1] - cutting.stride < least:
        return pieces[:-1], Dropped.SHORT_TAIL
    return pieces, None


def trained_pieces(
    pieces: list[tuple[int, int]], mask: Sequence[int], extra: bool
) -> list[tuple[int, int, int, int]]:
    """Start, count, repeated and trained tokens of the pieces of a document that train any.

    extra: a BOS goes before later pieces.
    """
    made, reached = list[tuple[int, int, int, int]](), 0
    for start, count in pieces:
        repeated = max(reached - start, 0)
        first = start + max(repeated, 0 if extra and start else 1)
        trained = sum(mask[first : start + count])
        if trained:
            made.append((start, count, repeated, trained))
            reached = start + count
    return made


@given(
    lengths=st.lists(st.integers(0, 40), max_size=12),
    most=st.integers(2, 12),
    stride=st.integers(0, 11),
    least=st.integers(0, 6),
    longest=st.none() | st.integers(0, 30),
    overflow=st.sampled_from(["split", "drop", "truncate", "left"]),
    extra=st.booleans(),
    masks=st.none() | st.lists(st.integers(0, 1), min_size=481, max_size=481),
)
def test_cut_is_its_twin_and_accounts_for_every_token(
    lengths: list[int],
    most: int,
    stride: int,
    least: int,
    longest: int | None,
    overflow: str,
    extra: bool,
    masks: list[int] | None,
) -> None:
    extra = extra and overflow == "split"
    cutting = Cutting(
        max_length=most,
        overflow="truncate" if overflow == "left" else overflow,
        how="left" if overflow == "left" else "",
        stride=max(min(stride, most - 1 - extra), 0) if overflow == "split" else 0,
        min_document_tokens=least,
        max_document_tokens=longest,
        continuation_bos=extra,
        has_bos=extra,
    )
    aligned = {} if masks is None else {"mask": np.array(masks, np.int8)}
    segments, lost = cut(documents_of(lengths, **aligned), cutting)
    none = np.zeros(len(segments), np.int32)
    repeated = none if segments.repeated is None else segments.repeated
    columns = (segments.document, segments.start, segments.count, repeated, segments.bos)
    made = list(zip(*(column.tolist() for column in columns), strict=True))
    begin = 0
    for at, length in enumerate(lengths):
        pieces, reason = pieces_of(length, cutting)
        own = [each[1:] for each in made if each[0] == at]
        if masks is None:
            assert [each[:2] for each in own] == pieces
        else:
            twin = trained_pieces(pieces, masks[begin : begin + length], extra)
            assert [each[:3] for each in own] == [each[:3] for each in twin]
            assert segments.trained is not None
            trained = segments.trained[segments.document == at].tolist()
            assert trained == [each[3] for each in twin]
        dropped = {why: int(values[at]) for why, values in lost.dropped.items() if values[at]}
        assert {*dropped} <= {reason, *([] if masks is None else [Dropped.FEW_LOSS_TOKENS])}
        assert [bos for *_, bos in own] == [extra and start > 0 for start, *_ in own]
        overlap, count = sum(each[2] for each in own), sum(each[1] for each in own)
        assert length + overlap == count + lost.truncated[at] + sum(dropped.values())
        begin += length


@given(
    lengths=st.lists(st.integers(0, 20), max_size=12),
    most=st.integers(1, 9),
    mask=st.none() | st.lists(st.integers(0, 1), min_size=240, max_size=240),
)
def test_wrapped_packs_are_full_and_account_for_every_token(
    lengths: list[int], most: int, mask: list[int] | None
) -> None:
    documents = documents_of(lengths, **({} if mask is None else {"mask": np.array(mask, "i1")}))
    segments, lost = cut(documents, Cutting(max_length=most, overflow="split", wrapped=True))
    pieces, offsets, lost = wrap(documents, segments, lost, most)
    sizes = np.diff(np.append(0, np.cumsum(pieces.count))[offsets]).tolist()
    assert sizes[:-1] == [most] * len(sizes[:-1]) or mask is not None
    for at, length in enumerate(lengths):
        count = int(pieces.count[pieces.document == at].sum())
        assert length == count + sum(int(values[at]) for values in lost.dropped.values())


@given(
    lengths=st.lists(st.integers(0, 20), max_size=12),
    most=st.integers(2, 6),
    multiple=st.integers(1, 3),
    overflow=st.sampled_from(["truncate", "drop"]),
)
def test_sides_of_a_pair_stay_together_and_fit_a_pack(
    lengths: list[int], most: int, multiple: int, overflow: str
) -> None:
    lengths = lengths[: len(lengths) // 2 * 2]
    documents = documents_of(lengths)
    documents = replace(documents, part=np.arange(len(lengths), dtype=np.int32) % 2)
    cutting = Cutting(max_length=most * multiple, overflow=overflow, multiple=multiple, pairs=True)
    segments, lost = cut(documents, cutting)
    assert segments.atom is not None
    for pair in range(len(lengths) // 2):
        own = segments.count[segments.atom == pair].tolist()
        both = lengths[2 * pair : 2 * pair + 2]
        assert len(own) == 2 * any(own)
        assert sum(-(-count // multiple) for count in own) <= most
        if sum(-(-length // multiple) for length in both) <= most:
            assert own == ([] if 0 in both else both)
        elif overflow == "truncate" and 0 not in both:
            assert own
    for at, length in enumerate(lengths):
        count = int(segments.count[segments.document == at].sum())
        dropped = sum(int(values[at]) for values in lost.dropped.values())
        assert length == count + lost.truncated[at] + dropped


SOURCES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(1, 400)), min_size=1, max_size=6
)
"""Entry, rows and blocks of files."""


def sources_of(files: list[tuple[int, int, int]]) -> list[SourceRows]:
    """Sources of an input, by entry."""
    return [
        SourceRows((0, entry), f"{at}", rows, blocks * BLOCK)
        for at, (entry, rows, blocks) in enumerate(sorted(files, key=lambda file: file[0]))
    ]


def stream_of(sources: Sequence[SourceRows], entry: int | None) -> list[int]:
    """Input rows of an entry, of all if None."""
    rows: list[int] = []
    first = 0
    for source in sources:
        if entry in (None, source.entry[1]):
            rows += range(first, first + source.rows)
        first += source.rows
    return rows


def rows_of(ranges: Sequence[Range], rows: int) -> list[int]:
    """Input rows that ranges mean, by one look at each row; none may be meant twice."""
    every = np.arange(rows)
    meant = [int(row) for each in ranges for row in np.flatnonzero(each.has(every))]
    assert len(meant) == len({*meant})
    return sorted(meant)


def no_tokens(first: int, last: int) -> Any:
    raise AssertionError("tokens are read, and nothing asks for them")


@given(
    files=SOURCES,
    windows=st.fractions(0, 8, max_denominator=50),
    seed=st.none() | st.integers(0, 3),
)
def test_without_weights_each_row_is_drawn_once_and_windows_are_equal(
    files: list[tuple[int, int, int]], windows: Fraction, seed: int | None
) -> None:
    sources = sources_of(files)
    total = sum(source.rows for source in sources)
    drawn = draw(sources, no_tokens, seed=seed, windows=windows)
    assert len(drawn.windows) == max(1, math.ceil(windows * total / max(1, total)))
    dealt = [rows_of(ranges, total) for ranges in drawn.windows]
    assert sorted(row for rows in dealt for row in rows) == list(range(total))
    assert drawn.left == []
    entries = {None} if seed is None else {source.entry[1] for source in sources}
    for entry in entries:
        own = {*stream_of(sources, entry)}
        counts = [len(own & {*rows}) for rows in dealt]
        assert max(counts) - min(counts) <= 1
    if seed is None:
        assert [row for rows in dealt for row in rows] == list(range(total))


def order_of(sources: Sequence[SourceRows], entry: int, seed: int) -> list[int]:
    """Input rows of an entry in the order of its stream: what each token more draws, by itself."""
    own = [source for source in sources if source.entry[1] == entry]
    rows, order = stream_of(sources, entry), list[int]()
    for size in range(1, len(rows) + 1):
        part = draw(own, lambda first, last: np.ones(last - first, int), seed=seed, max_tokens=size)
        drawn = {rows[at] for window in part.windows for at in rows_of(window, len(rows))}
        assert len(drawn) == size
        assert {*order} <= drawn
        order += drawn - {*order}
    return order


@given(data=st.data())
def test_a_mix_has_its_shares_and_begins_where_the_one_before_ended(data: st.DataObject) -> None:
    sources = sources_of(data.draw(SOURCES))
    rows = sum(source.rows for source in sources)
    tokens = st.lists(st.integers(0, 20), min_size=rows, max_size=rows)
    kept, seed = np.array(data.draw(tokens), np.int64), data.draw(st.integers(0, 3))
    entries = [*dict.fromkeys(source.entry[1] for source in sources)]
    amounts = st.lists(st.integers(1, 9), min_size=len(entries), max_size=len(entries))
    orders = [order_of(sources, entry, seed) for entry in entries]
    places = [0] * len(entries)
    used: Counter[int] = Counter()
    for _ in range(2):
        weights = (
            [Fraction(each) for each in data.draw(amounts)] if data.draw(st.booleans()) else []
        )
        passes = [Fraction(each, 2) for each in data.draw(amounts)] if weights else []
        limits = [
            int(p * len(o))
            for p, o in zip(passes or [Fraction(1)] * len(orders), orders, strict=True)
        ]
        room = [
            int(sum(kept[row] for row in (order * 5)[place:limit]))
            for order, place, limit in zip(orders, places, limits, strict=True)
        ]
        parts = weights or [Fraction(each) for each in room]
        scale = min((r / p for r, p in zip(room, parts, strict=True) if p), default=Fraction(0))
        asked = data.draw(st.none() | st.integers(1, 400))
        options: dict[str, Any] = {"weights": weights, "passes": passes, "max_tokens": asked}
        options |= {"windows": data.draw(st.fractions(0, 6, max_denominator=20)), "seed": seed}
        options |= {"after": places}
        if weights or asked is not None:
            too_many = bool(weights) and asked is not None and asked > scale * sum(parts)
            if too_many or not scale:
                with pytest.raises(ConfigError):
                    draw(sources, lambda first, last: kept[first:last], **options)
                return
            scale = scale if asked is None else min(scale, asked / sum(parts, Fraction()))
        elif any(places) and all(at >= most for at, most in zip(places, limits, strict=True)):
            with pytest.raises(ConfigError, match="nothing is left"):
                draw(sources, lambda first, last: kept[first:last], **options)
            return
        drawn = draw(sources, lambda first, last: kept[first:last], **options)
        dealt = [rows_of(window, rows) for window in drawn.windows]
        assert [each.first for each in drawn.streams] == places
        for number, order in enumerate(orders):
            place, before, longest = places[number], 0, max(kept[order].tolist(), default=0)
            for window, part in enumerate(dealt, 1):
                own = [row for row in part if row in {*order}]
                assert sorted((order * 9)[place : place + len(own)]) == own
                place, before = place + len(own), before + int(kept[own].sum())
                if weights or asked is not None:
                    wanted = parts[number] * scale * window / len(dealt)
                    assert abs(before - wanted) <= longest
            assert places[number] <= place == drawn.streams[number].last
            assert place <= max(limits[number], places[number])
        left = rows_of(drawn.left, rows)
        assert sorted({*left, *itertools.chain(*dealt)}) == list(range(rows))
        assert all(row not in {*left} for part in dealt for row in part)
        used.update(row for part in dealt for row in part)
        places = [each.last for each in drawn.streams]
    for order, place in zip(orders, places, strict=True):
        assert [used[row] for row in order] == [
            place // max(1, len(order)) + (at < place % max(1, len(order)))
            for at in range(len(order))
        ]


@given(data=st.data())
def test_packs_are_copied_token_by_token(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    total = sum(lengths)
    mask = np.array(data.draw(st.lists(st.integers(0, 1), min_size=total + 1, max_size=total + 1)))
    documents = documents_of(lengths, mask=mask.astype(np.int8))
    rows: list[tuple[int, int, int, int, int]] = []
    for _ in range(data.draw(st.integers(0, 8))):
        document = data.draw(st.integers(-1, len(lengths) - 1))
        start = data.draw(st.integers(0, lengths[document] - 1)) if document >= 0 else 0
        count = data.draw(st.integers(1, lengths[document] - start)) if document >= 0 else 0
        bos = data.draw(st.integers(0, 1)) if document >= 0 else 0
        padding = data.draw(st.integers(0, 3)) if document >= 0 else 1
        rows.append((document, start, count, bos, count + bos + padding))
    sizes = data.draw(st.lists(st.integers(0, 3), max_size=6))
    offsets = np.unique(np.clip(np.append(0, np.cumsum([*sizes, len(rows)])), 0, len(rows)))
    names = ("document", "start", "count", "bos", "length")
    columns = {
        name: np.array([row[at] for row in rows], np.bool_ if name == "bos" else np.int32)
        for at, name in enumerate(names)
    }
    wanted = ("tokens", "position_ids", "cu_seqlens", "document_ids", "document_starts", "labels")
    layout = Layout(
        columns=tuple(STANDARD[name] for name in wanted),
        max_length=64,
        vocab_size=1000,
        bos_id=900,
        pad_id=901,
    )
    table = Table(columns=columns, offsets=offsets.astype(np.int64))
    made = pack_columns(table, documents, layout).to_pydict()
    ends = np.append(0, np.cumsum(lengths))
    twin: dict[str, list[list[int]]] = {name: [] for name in wanted}
    for first, last in itertools.pairwise(offsets):
        pack: dict[str, list[int]] = {name: [] for name in wanted}
        pack["cu_seqlens"].append(0)
        for document, start, count, bos, length in rows[first:last]:
            copied = [int(ends[document]) + start + at for at in range(count)]
            padded = length - count - bos
            labels = [NO_LOSS] * bos + [each if mask[each] else NO_LOSS for each in copied]
            labels += [NO_LOSS] * padded
            pack["tokens"] += [900] * bos + copied + [901] * padded
            pack["labels"] += [NO_LOSS, *labels[1:]]
            pack["position_ids"] += range(length)
            pack["cu_seqlens"].append(len(pack["tokens"]))
            pack["document_ids"].append(document)
            pack["document_starts"].append(start)
        for name in wanted:
            twin[name].append(pack[name])
    assert made == twin
