import itertools
import random
from collections import Counter
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from packprep.config.build_config import BuildConfig
from packprep.packing.account import Dropped
from packprep.schemas.index.runs import Pointers
from packprep.windows.cut import cut_segments, wrap_documents
from packprep.windows.labels import Labels, proportional
from packprep.windows.segments import DocumentAccount, Segments
from tests.helpers import reference
from tests.windows.reference import cut_document, infer_seqlen, labelled

LABELLED: dict[str, Any] = {"input_ids_column": "ids", "labels_column": "labels"}


def cut(
    lengths: list[int], ends: int = 0, *, has_bos: bool = True, **options: object
) -> tuple[Segments, DocumentAccount]:
    config = BuildConfig(**{"max_length": 4, **options})  # type: ignore[arg-type]
    return cut_segments(np.array([lengths], np.int32), ends, config, has_bos=has_bos)


def pieces(segments: Segments) -> list[tuple[int, int, int]]:
    columns = (segments.document, segments.start, segments.count)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@st.composite
def configs(draw: st.DrawFn) -> BuildConfig:
    max_length = draw(st.integers(2, 12))
    overflow = draw(st.sampled_from(["split", "truncate", "drop"]))
    options: dict[str, Any] = {}
    if overflow == "split":
        options["continuation_bos"] = draw(st.booleans())
        options["stride"] = draw(st.integers(0, max_length - 1 - bool(options["continuation_bos"])))
        options["train_overlap"] = options["stride"] != 0 and draw(st.booleans())
    elif overflow == "truncate":
        overflow += draw(st.sampled_from([":left", "", ":balanced"]))
    options["min_loss_tokens"] = draw(st.integers(0, 3))
    options |= LABELLED
    min_document_tokens = draw(st.integers(0, 4))
    max_document_tokens = draw(st.none() | st.integers(min_document_tokens, 30))
    options |= {
        "overflow": overflow,
        "min_document_tokens": min_document_tokens,
        "max_document_tokens": max_document_tokens,
    }
    return BuildConfig(max_length=max_length, **options)


@given(
    configs(),
    st.lists(st.integers(0, 40), max_size=8),
    st.integers(0, 2),
    st.none() | st.integers(0),
    st.booleans(),
)
@example(
    BuildConfig(max_length=4, stride=3, min_loss_tokens=2, continuation_bos=False), [30], 0, 5, True
)
@example(
    BuildConfig(max_length=8, stride=6, min_loss_tokens=3, continuation_bos=True), [40], 1, 3, False
)
@example(  # a turn ends where the pack is full
    BuildConfig(max_length=11, overflow="truncate:balanced", **LABELLED),
    [12, 19, 40],
    0,
    10,
    True,
)
def test_cutting_all_documents_at_once_equals_cutting_each_by_hand(
    config: BuildConfig, texts: list[int], ends: int, pattern: int | None, as_mask: bool
) -> None:
    lengths = [text + ends if text else 0 for text in texts]
    bits = random.Random(pattern)
    trained = (
        None
        if pattern is None
        else [[bits.random() < 0.3 for _ in range(length)] for length in lengths]
    )
    segments, account = cut_segments(
        np.array([lengths], np.int32),
        ends,
        config,
        has_bos=ends > 0,
        labels=labels_of(trained, as_mask=as_mask),
    )
    expected, counted = [], []
    for document, length in enumerate(lengths):
        mask = None if trained is None else trained[document]
        by_hand = cut_document(length, ends, config, has_bos=ends > 0, trained=mask)
        expected += [(document, offsets, bos) for offsets, bos in by_hand.pieces]
        if mask is not None:
            counted += [
                sum(labelled(*piece, mask, config, by_hand.pieces[:number]))
                for number, piece in enumerate(by_hand.pieces)
            ]
        assert account.truncated[document] == by_hand.truncated
        assert account.overlap[document] == by_hand.overlap
        assert account.continuation_bos[document] == by_hand.continuation_bos
        assert {reason: n[document] for reason, n in account.dropped.items() if n[document]} == {
            reason: n for reason, n in by_hand.dropped.items() if n
        }
        put_in = length + by_hand.overlap + by_hand.continuation_bos
        kept = sum(len(offsets) + bos for offsets, bos in by_hand.pieces)
        assert put_in == kept + by_hand.truncated + sum(by_hand.dropped.values())
    assert pieces_of(segments) == expected
    if trained is not None:
        assert segments.trained is not None
        assert segments.trained.tolist() == counted


def labels_of(trained: list[list[bool]] | None, *, as_mask: bool) -> Any:
    """Labels of documents with these trained tokens, as a mask or as ids."""
    if trained is None:
        return None
    parts = [
        np.array(row, np.int8) if as_mask else np.where(row, 7, -100).astype(np.int32)
        for row in trained
    ]
    kept = np.concatenate([*parts, np.empty(0, np.int8 if as_mask else np.int32)])
    ends = np.cumsum([0, *map(len, trained)])[:-1].astype(np.int64)
    return Labels(values=Pointers.into(kept, ends))


def pieces_of(segments: Segments) -> list[tuple[int, list[int], bool]]:
    """Document, offsets of its tokens and extra BOS of each segment."""
    fronts = segments.count if segments.front is None else segments.front
    holes = np.zeros_like(segments.count) if segments.hole is None else segments.hole
    columns = (segments.document, segments.start, segments.count, segments.bos, fronts, holes)
    return [
        (document, [start + place + (hole if place >= front else 0) for place in range(count)], bos)
        for document, start, count, bos, front, hole in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]


@given(
    st.lists(st.integers(0, 30), max_size=6), st.integers(0), st.integers(2, 12), st.integers(0, 4)
)
def test_wrapped_drops_documents_and_then_packs_with_too_few_trained_tokens(
    texts: list[int], pattern: int, max_length: int, least: int
) -> None:
    bits = random.Random(pattern)
    trained = [[bits.random() < 0.2 for _ in range(text)] for text in texts]
    config = BuildConfig(max_length=max_length, strategy="wrapped", min_loss_tokens=least)
    enough = [
        text if sum(row[1:]) >= least else 0 for text, row in zip(texts, trained, strict=True)
    ]
    expected = [
        [(document, start, stop - start) for document, start, stop in pack]
        for pack in reference.wrapped(enough, max_length)
        if sum(sum(trained[document][start + 1 : stop]) for document, start, stop in pack) >= least
    ]
    lengths, labels = np.array(texts, np.int32), labels_of(trained, as_mask=True)
    cut_once = cut_segments(lengths[None], 0, config, has_bos=False, labels=labels)
    segments, edges, account = wrap_documents(*cut_once, lengths, config, labels)
    wrapped = pieces(segments)
    assert [wrapped[first:last] for first, last in itertools.pairwise(edges.tolist())] == expected
    packed = Counter(dict.fromkeys(range(len(texts)), 0))
    for document, _, count in wrapped:
        packed[document] += count
    dropped = account.dropped.get(Dropped.FEW_LOSS_TOKENS, np.zeros(len(texts), np.int32))
    assert dropped.tolist() == [text - packed[document] for document, text in enumerate(texts)]


@given(st.integers(0, 300), st.integers(0, 300), st.integers(2, 200))
def test_proportions_are_those_of_llama_factory(source: int, target: int, most: int) -> None:
    if source + target > most:
        front = proportional(np.array([source], np.int32), np.array([target], np.int32), most)
        assert (front[0], most - front[0]) == infer_seqlen(source, target, most)
