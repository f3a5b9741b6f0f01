"""Laws of the pure functions of the second edition, with twins that take one step at a time."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packprep.next.plan.cut import cut
from packprep.next.plan.draw import equal_places, permuted, streams
from packprep.next.plan.types import Cutting, Dropped
from packprep.next.read.reading import read, splits
from packprep.next.read.types import Source, Text
from packprep.next.schemas.columns import NO_LOSS, column_of
from packprep.next.schemas.gather import Layout, Table, pack_columns
from packprep.next.schemas.tokens import Documents, Pointers

LINES = st.lists(
    st.sampled_from(['{"text": "a"}', "", '{"text": "line\\nend"}', '{"text": "' + "x" * 90 + '"}'])
)


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


@given(files=st.lists(LINES.filter(any), min_size=1, max_size=4), size=st.integers(1, 300))
def test_splits_have_each_row_once_and_in_order(files: list[list[str]], size: int) -> None:
    with TemporaryDirectory() as name:
        sources = []
        for number, lines in enumerate(files):
            path = Path(name, f"{number}.jsonl")
            path.write_text("\n".join(lines))
            sources.append(Source(**{**vars(source_of(path)), "number": number, "name": path.name}))
        made = [
            text
            for split in splits(sources, size)
            for batch in read(split, sources)
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
    pieces, start = [(0, most)], most - cutting.stride
    while start + cutting.stride < length:
        pieces.append((start, min(most, length - start)))
        start += most - cutting.stride
    if pieces[-1][1] - cutting.stride < least:
        return pieces[:-1], Dropped.SHORT_TAIL
    return pieces, None


@given(
    lengths=st.lists(st.integers(0, 40), max_size=12),
    most=st.integers(2, 12),
    stride=st.integers(0, 11),
    least=st.integers(0, 6),
    longest=st.none() | st.integers(0, 30),
    overflow=st.sampled_from(["split", "drop", "truncate", "left"]),
)
def test_cut_is_its_twin_and_accounts_for_every_token(
    lengths: list[int], most: int, stride: int, least: int, longest: int | None, overflow: str
) -> None:
    cutting = Cutting(
        max_length=most,
        overflow="truncate" if overflow == "left" else overflow,
        how="left" if overflow == "left" else "",
        stride=min(stride, most - 1) if overflow == "split" else 0,
        min_document_tokens=least,
        max_document_tokens=longest,
    )
    segments, lost = cut(documents_of(lengths), cutting)
    made = list(
        zip(
            segments.document.tolist(),
            segments.start.tolist(),
            segments.count.tolist(),
            strict=True,
        )
    )
    twin = [pieces_of(length, cutting) for length in lengths]
    assert made == [(at, *piece) for at, (pieces, _) in enumerate(twin) for piece in pieces]
    for at, length in enumerate(lengths):
        dropped = {reason: int(values[at]) for reason, values in lost.dropped.items() if values[at]}
        assert {*dropped} <= {twin[at][1]}
        kept = sum(count for document, _, count in made if document == at)
        assert length + lost.overlap[at] == kept + lost.truncated[at] + sum(dropped.values())


@given(
    groups=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), min_size=1, max_size=3),
    windows=st.integers(1, 6),
    seed=st.none() | st.integers(0, 3),
)
def test_windows_have_each_document_once_and_an_equal_part_of_each_source(
    groups: list[list[int]], windows: int, seed: int | None
) -> None:
    sizes = np.array([size for group in groups for size in group], np.int64)
    ends = np.cumsum([len(group) for group in groups])
    files = [range(end - len(group), end) for group, end in zip(groups, ends, strict=True)]
    drawn: list[tuple[int, int]] = []
    for each in streams(files, sizes, seed):
        places = equal_places(each, windows)
        counts = []
        for first, last in itertools.pairwise(places):
            ranges = each.ranges(first, last)
            counts.append(sum(part.last - part.first for part in ranges))
            drawn += [
                (part.file, int(at))
                for part in ranges
                for at in permuted(int(sizes[part.file]), part.order)[part.first : part.last]
            ]
        assert max(counts) - min(counts) <= 1
    assert sorted(drawn) == [(file, at) for file, size in enumerate(sizes) for at in range(size)]
    if seed is None:
        assert drawn == sorted(drawn)


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
        columns=tuple(column_of(name, vocab_size=1000, max_length=64) for name in wanted),
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
