import itertools
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from packprep.config.build_config import BuildConfig
from packprep.packing.account import Dropped
from packprep.packing.kernels.gather import Pointers
from packprep.windows.cut import cut_segments, wrap, wrap_documents
from packprep.windows.labels import Labels, proportional
from packprep.windows.segments import DocumentAccount, Segments, TooLongError
from tests.helpers import reference
from tests.helpers.reference_segments import cut_document, infer_seqlen, labelled


def cut(
    lengths: list[int], ends: int = 0, *, has_bos: bool = True, **options: object
) -> tuple[Segments, DocumentAccount]:
    config = BuildConfig(**{"max_length": 4, **options})  # type: ignore[arg-type]
    return cut_segments(np.array(lengths, np.int32), ends, config, has_bos=has_bos)


def pieces(segments: Segments) -> list[tuple[int, int, int]]:
    return list(
        zip(
            segments.document.tolist(),
            segments.start.tolist(),
            segments.count.tolist(),
            strict=True,
        )
    )


def test_a_document_that_fits_is_one_segment_and_an_empty_one_is_none() -> None:
    segments, _ = cut([3, 0, 4])
    assert pieces(segments) == [(0, 0, 3), (2, 0, 4)]


def test_split_pieces_start_max_length_minus_stride_apart_and_stop_once_the_end_is_covered() -> (
    None
):
    segments, account = cut([10], stride=1)
    assert pieces(segments) == [(0, 0, 4), (0, 3, 4), (0, 6, 4)]
    assert account.overlap.tolist() == [2]


def test_no_piece_is_completely_inside_the_one_before() -> None:
    segments, _ = cut([90], max_length=50, stride=10)
    assert pieces(segments) == [(0, 0, 50), (0, 40, 50)]


def test_continuation_bos_takes_the_place_of_one_own_token() -> None:
    segments, account = cut([10], continuation_bos=True)
    assert pieces(segments) == [(0, 0, 4), (0, 4, 3), (0, 7, 3)]
    assert segments.bos.tolist() == [False, True, True]
    assert account.continuation_bos.tolist() == [2]


def test_truncate_keeps_exactly_max_length_of_either_side() -> None:
    right, _ = cut([6], overflow="truncate")
    left, account = cut([6], overflow="truncate", truncation_side="left")
    assert (pieces(right), pieces(left)) == ([(0, 0, 4)], [(0, 2, 4)])
    assert account.truncated.tolist() == [2]


def test_drop_counts_every_token_of_a_document_over_max_length() -> None:
    segments, account = cut([5, 4], overflow="drop")
    assert pieces(segments) == [(1, 0, 4)]
    assert account.dropped[Dropped.OVERFLOW].tolist() == [5, 0]


def test_error_names_the_first_document_over_max_length() -> None:
    with pytest.raises(TooLongError) as caught:
        cut([4, 7, 9], overflow="error")
    assert (caught.value.document, caught.value.tokens) == (1, 7)


def test_min_len_and_max_len_count_text_tokens_without_bos_and_eos() -> None:
    segments, account = cut(
        [4, 5, 8, 9], ends=2, max_length=16, min_document_tokens=3, max_document_tokens=6
    )
    assert pieces(segments) == [(1, 0, 5), (2, 0, 8)]
    assert account.dropped[Dropped.TOO_SHORT].tolist() == [4, 0, 0, 0]
    assert account.dropped[Dropped.TOO_LONG].tolist() == [0, 0, 0, 9]


def test_a_last_piece_with_too_few_new_tokens_is_dropped_as_short_tail() -> None:
    segments, account = cut([8], stride=1, min_document_tokens=2)
    assert pieces(segments) == [(0, 0, 4), (0, 3, 4)]
    assert account.dropped[Dropped.SHORT_TAIL].tolist() == [1]


def test_wrap_fills_every_pack_but_the_last() -> None:
    segments, _ = cut([3, 6], strategy="wrapped")
    wrapped, packs = wrap(segments, 4)
    assert pieces(wrapped) == [(0, 0, 3), (1, 0, 1), (1, 1, 4), (1, 5, 1)]
    assert packs.tolist() == [0, 2, 3, 4]


def test_wrap_keeps_the_offset_of_a_document_cut_on_the_left() -> None:
    segments, _ = cut([6, 3], strategy="wrapped", overflow="truncate", truncation_side="left")
    wrapped, packs = wrap(segments, 4)
    assert pieces(wrapped) == [(0, 2, 4), (1, 0, 3)]
    assert packs.tolist() == [0, 1, 2]


def test_wrap_of_no_segments_makes_no_packs() -> None:
    segments, _ = cut([], strategy="wrapped")
    assert wrap(segments, 4)[1].tolist() == [0]


@st.composite
def configs(draw: st.DrawFn) -> BuildConfig:
    max_length = draw(st.integers(2, 12))
    overflow = draw(st.sampled_from(["split", "truncate", "drop"]))
    options: dict[str, object] = {}
    if overflow == "split":
        options["continuation_bos"] = draw(st.booleans())
        options["stride"] = draw(st.integers(0, max_length - 1 - bool(options["continuation_bos"])))
        options["train_overlap"] = options["stride"] != 0 and draw(st.booleans())
    elif overflow == "truncate":
        options["truncation_side"] = draw(st.sampled_from(["left", "right", "balanced"]))
        if options["truncation_side"] == "balanced":
            options["input_ids_column"] = "ids"
    options["min_loss_tokens"] = draw(st.integers(0, 3))
    options["input_ids_column"] = "ids"
    min_document_tokens = draw(st.integers(0, 4))
    max_document_tokens = draw(st.none() | st.integers(min_document_tokens, 30))
    options |= {
        "overflow": overflow,
        "min_document_tokens": min_document_tokens,
        "max_document_tokens": max_document_tokens,
    }
    return BuildConfig(max_length=max_length, **options)  # type: ignore[arg-type]


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
        np.array(lengths, np.int32),
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
        assert segments.trained(labels_of(trained, as_mask=as_mask), config).tolist() == counted


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


def test_a_row_without_a_trained_token_is_dropped_and_counted() -> None:
    labels = labels_of([[False] * 3, [True, False, False], [False, True, True]], as_mask=True)
    segments, account = cut_segments(
        np.array([3, 3, 3], np.int32), 0, BuildConfig(), has_bos=False, labels=labels
    )
    assert pieces(segments) == [(2, 0, 3)], "the first token of a row is never trained"
    assert account.dropped[Dropped.FEW_LOSS_TOKENS].tolist() == [3, 3, 0]


def test_tokens_of_a_dropped_piece_are_trained_in_the_next_piece_that_has_them() -> None:
    trained = [12 <= token < 16 or token >= 18 for token in range(24)]
    config = BuildConfig(max_length=16, stride=8, min_loss_tokens=5)
    labels = labels_of([trained], as_mask=True)
    segments, account = cut_segments(
        np.array([24], np.int32), 0, config, has_bos=False, labels=labels
    )
    assert pieces(segments) == [(0, 8, 16)], "the first piece has 4 trained tokens"
    assert segments.trained(labels, config).tolist() == [10]
    assert account.overlap.tolist() == [0], "nothing is in two pieces"
    assert account.dropped[Dropped.FEW_LOSS_TOKENS].tolist() == [8]


def test_a_piece_is_kept_for_tokens_it_shares_with_a_dropped_piece() -> None:
    trained = [4 <= token < 10 for token in range(16)]
    config = BuildConfig(max_length=8, stride=4, min_loss_tokens=5)
    labels = labels_of([trained], as_mask=False)
    segments, account = cut_segments(
        np.array([16], np.int32), 0, config, has_bos=False, labels=labels
    )
    # [0, 8) has 4, [4, 12) has those and 2 more (5 without its first token), [8, 16) has no others.
    assert (pieces(segments), segments.trained(labels, config).tolist()) == ([(0, 4, 8)], [5])
    assert account.dropped[Dropped.FEW_LOSS_TOKENS].tolist() == [8]


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
    cut_once = cut_segments(lengths, 0, config, has_bos=False, labels=labels)
    segments, edges, account = wrap_documents(*cut_once, lengths, config, labels)
    wrapped = pieces(segments)
    assert [wrapped[first:last] for first, last in itertools.pairwise(edges.tolist())] == expected
    packed = Counter(dict.fromkeys(range(len(texts)), 0))
    for document, _, count in wrapped:
        packed[document] += count
    dropped = account.dropped.get(Dropped.FEW_LOSS_TOKENS, np.zeros(len(texts), np.int32))
    assert dropped.tolist() == [text - packed[document] for document, text in enumerate(texts)]


def test_truncation_that_leaves_no_trained_token_drops_the_row() -> None:
    labels = labels_of([[False] * 5 + [True]], as_mask=False)
    config = BuildConfig(max_length=4, overflow="truncate")
    segments, account = cut_segments(
        np.array([6], np.int32), 0, config, has_bos=False, labels=labels
    )
    assert (pieces(segments), account.truncated.tolist()) == ([], [0])
    assert account.dropped[Dropped.FEW_LOSS_TOKENS].tolist() == [6]


def test_balanced_truncation_keeps_part_of_the_prompt_and_part_of_the_response() -> None:
    labels = labels_of([[False] * 9 + [True] * 3], as_mask=True)
    config = BuildConfig(
        max_length=8, overflow="truncate", truncation_side="balanced", input_ids_column="ids"
    )
    segments, _ = cut_segments(np.array([12], np.int32), 0, config, has_bos=False, labels=labels)
    assert pieces_of(segments) == [(0, [0, 1, 2, 3, 4, 9, 10, 11], False)]


def test_balanced_truncation_of_a_conversation_cuts_the_turn_that_exceeds_the_pack() -> None:
    turns = [False] * 3 + [True] * 2 + [False] * 6 + [True] * 6 + [False, True]
    config = BuildConfig(
        max_length=11, overflow="truncate", truncation_side="balanced", input_ids_column="ids"
    )
    segments, account = cut_segments(
        np.array([19], np.int32), 0, config, has_bos=False, labels=labels_of([turns], as_mask=True)
    )
    assert pieces_of(segments) == [(0, [0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13], False)]
    assert account.truncated.tolist() == [8]


@given(st.integers(0, 300), st.integers(0, 300), st.integers(2, 200))
def test_proportions_are_those_of_llama_factory(source: int, target: int, most: int) -> None:
    if source + target > most:
        front = proportional(np.array([source], np.int32), np.array([target], np.int32), most)
        assert (front[0], most - front[0]) == infer_seqlen(source, target, most)
