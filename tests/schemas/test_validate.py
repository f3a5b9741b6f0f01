"""Checks of a record batch: they accept what schemas/README.md allows, and name every fault.

The checks of boundaries.py and batch_view.py run as part of them.
"""

import contextlib
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.schemas import STANDARD_COLUMNS, Column, FormatError, check_batch
from tests.helpers.tiny_shards import EXAMPLE, PLAIN, RICH, rich_row, short_segments, to_batch

WHERE = "data-00003-of-00010.arrow"


def check(
    rows: Any, columns: Any = PLAIN, *, max_length: int = 8, vocab_size: int = 32, first: int = 17
) -> None:
    limits: Any = {"max_length": max_length, "vocab_size": vocab_size, "first_pack": first}
    check_batch(to_batch(columns, rows), columns, where=WHERE, **limits)


def test_what_the_readme_allows_is_accepted() -> None:
    """The worked example, all columns, both kinds of padding, no packs, half a million tokens."""
    check(EXAMPLE)
    check([rich_row(0, 3, 4), rich_row(2, 1)], RICH, max_length=12)
    check([])
    check_batch(short_segments(), PLAIN, max_length=4096, vocab_size=1000, where=WHERE)


def test_a_slice_of_a_batch_is_checked_like_a_batch() -> None:
    batch = to_batch(PLAIN, [*EXAMPLE, *EXAMPLE])
    for first in range(4):
        check_batch(batch.slice(first, 2), PLAIN, max_length=8, vocab_size=32, where=WHERE)


TWO, NO_TOKEN = [1, 10, 2, 27, 2, 1, 30, 2], "expected every segment to have a token"


@pytest.mark.parametrize(
    ("row", "column", "value", "words"),
    [
        (1, "cu_seqlens", [1, 3, 5, 8], ": cu_seqlens are [1, 3, 5, 8]; expected them to start at"),
        (1, "cu_seqlens", [0, 3, 5, 7], ": cu_seqlens are [0, 3, 5, 7]; expected them to end at"),
        (1, "cu_seqlens", [0, 5, 5, 8], f" segment 1: it ends at 5 and starts at 5; {NO_TOKEN}"),
        (0, "cu_seqlens", [0], ": cu_seqlens are [0]; expected 0 and the end of each segment"),
        (1, "tokens", [], ": it has no tokens; expected at least one"),
        (1, "tokens", [1] * 9, ": it has 9 tokens; expected at most 8"),
        (1, "tokens", [1, 10, 2, 32, *TWO[4:]], " segment 1 token 0: the id is 32; expected 0 to"),
        (1, "tokens", [*TWO[:7], -1], " segment 2 token 2: the id is -1; expected 0 to 31"),
        (0, "position_ids", [0, 1, 2, 3, 4, 5, 6, 6], " segment 0 token 7: position_ids has 6"),
        (1, "position_ids", [1, 2, 3, 0, 1, 0, 1, 2], " segment 0 token 0: position_ids has 1"),
        (1, "position_ids", [0, 1, 2], ": position_ids has 3 values; expected 8, as a token"),
        (1, "document_ids", [0, 1], ": document_ids has 2 values; expected 3, as a segment column"),
        (1, "document_ids", [0, -2, 2], " segment 1: the document id is -2; expected an input row"),
        (1, "document_ids", [0, -1, 2], " segment 2: document 2 follows filler; expected filler"),
        (1, "document_ids", [0, 1, -1], " segment 2: it has padding but there are no labels"),
        (1, "document_starts", [0, -8, 0], " segment 1: document_starts has -8; expected 0 or"),
    ],
)
def test_a_planted_defect_is_named_with_file_pack_and_segment(
    row: int, column: str, value: list[int], words: str
) -> None:
    rows = [dict(pack) for pack in EXAMPLE]
    rows[row][column] = value
    with pytest.raises(FormatError) as error:
        check(rows)
    assert str(error.value).startswith(f"{WHERE} pack {17 + row}{words}")


PADDED = [5, 5, 5, -100, *[5] * 4, *[-100] * 4]


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("labels", [5, 5, 5, 0, *PADDED[4:]], " 0: padding has the label 0; expected -100"),
        ("labels", [*PADDED[:11], 7], " 2: padding has the label 7; expected -100"),
        ("labels", [5, -1, *PADDED[2:]], " 0 token 1: the label is -1; expected -100 or 0 to 31"),
        ("segment_lengths", [3, 5, 0], " 1: segment_lengths has 5; expected 0 to the segment's"),
        ("segment_lengths", [-3, 4, 0], " 0: segment_lengths has -3; expected 0 to the segment's"),
        ("segment_lengths", [0, 4, 0], " 0: segment_lengths has 0; expected 1 or more in a doc"),
        ("segment_lengths", [3, 4, 1], " 2: segment_lengths has 1; expected 0, as the segment is"),
        ("weight", [0.5] * 11 + [float("nan")], " 2 token 3: weight has nan; expected a finite"),
    ],
)
def test_a_defect_of_padding_is_named_too(column: str, value: list[float], words: str) -> None:
    with pytest.raises(FormatError) as error:
        check([{**rich_row(0, 3, 4), column: value}], RICH, max_length=12)
    assert str(error.value).startswith(f"{WHERE} pack 17 segment{words}")


def test_infinity_in_segment_and_boundary_columns_is_found() -> None:
    reward = Column(name="reward", kind="segment", dtype="float32")
    columns = (*PLAIN, reward, Column(name="edge", kind="boundary", dtype="float32"))
    row = {**EXAMPLE[1], "reward": [0.0, 1.0, 2.0], "edge": [0.0, 0.0, 0.0, 0.0]}
    check([row], columns)
    with pytest.raises(FormatError, match="pack 17 segment 2: reward has inf"):
        check([{**row, "reward": [0.0, 1.0, float("inf")]}], columns)
    with pytest.raises(FormatError, match="pack 17: edge has -inf"):
        check([{**row, "edge": [0.0, 1.0, 0.0, float("-inf")]}], columns)


def test_nulls_are_refused_as_values_and_as_lists() -> None:
    columns = [STANDARD_COLUMNS["tokens"], STANDARD_COLUMNS["cu_seqlens"]]
    for tokens in ([1, None], None):
        lists = [pa.array([each], pa.list_(pa.int32())) for each in (tokens, [0, 2])]
        batch = pa.record_batch(lists, ["tokens", "cu_seqlens"])
        with pytest.raises(FormatError, match="column tokens holds nulls"):
            check_batch(batch, columns, max_length=8, vocab_size=32, where=WHERE)


@pytest.mark.parametrize(
    "offsets", [[0, 8, 17], [0, 17, 16], [-1, 8, 16], [8, 0, 16], [0, 2**31 - 1, 16]]
)
def test_list_offsets_that_leave_the_values_are_an_error_and_not_a_crash(
    offsets: list[int],
) -> None:
    whole = to_batch(PLAIN, EXAMPLE)
    stored = np.array([0, 8, 16], np.int32)
    values = cast("pa.ListArray[Any]", whole.column("tokens")).values
    buffers = [None, pa.py_buffer(stored.data)]
    tokens = pa.Array.from_buffers(pa.list_(pa.int32()), 2, buffers, children=[values])
    batch = pa.record_batch([tokens, *whole.columns[1:]], schema=whole.schema)
    stored[:] = offsets  # behind Arrow's back, as in a file that was changed
    with pytest.raises(FormatError, match=r"column tokens (is damaged|has list offsets)"):
        check_batch(batch, PLAIN, max_length=8, vocab_size=32, where=WHERE)


def test_a_schema_that_is_not_the_manifests_is_refused() -> None:
    batch = to_batch(PLAIN, EXAMPLE)
    limits: dict[str, Any] = {"max_length": 8, "vocab_size": 32, "where": WHERE}
    wide = batch.cast(pa.schema([(name, pa.large_list(pa.int32())) for name in batch.schema.names]))
    described = batch.replace_schema_metadata({"huggingface": "{}"})
    two = [STANDARD_COLUMNS["tokens"], STANDARD_COLUMNS["cu_seqlens"]]
    for wrong, columns, words in (
        (batch, two, "has the columns tokens, position_ids, .*; expected tokens, cu_seqlens"),
        (wide, PLAIN, "column tokens is large_list<.*>; expected list<item: int32>"),
        (described, PLAIN, r"has schema metadata \(huggingface\); expected none"),
    ):
        with pytest.raises(FormatError, match=words):
            check_batch(wrong, columns, **limits)


def obeys(row: dict[str, list[int]], max_length: int, vocab_size: int) -> bool:
    """The invariants of schemas/README.md for a pack in plain Python."""
    tokens, cu, labels = row["tokens"], row["cu_seqlens"], row["labels"]
    ids, starts, real = row["document_ids"], row["document_starts"], row["segment_lengths"]
    segments = list(pairwise(cu))
    lengths = [last - first for first, last in segments]
    positions = [position for length in lengths for position in range(length)]
    return (
        1 <= len(tokens) <= max_length
        and (cu[:1], cu[-1:]) == ([0], [len(tokens)])
        and min(lengths, default=0) > 0
        and row["position_ids"] == positions
        and len(labels) == len(tokens)
        and len(ids) == len(starts) == len(real) == len(segments)
        and all(0 <= token < vocab_size for token in tokens)
        and all(label == -100 or 0 <= label < vocab_size for label in labels)
        and min(ids) >= -1
        and min(starts) >= 0
        and not any(one == -1 != other for one, other in pairwise(ids))
        and all(
            0 <= kept <= length
            and (kept == 0) == (document == -1)
            and not (document == -1 and start)
            and {*labels[first + kept : last]} <= {-100}
            for (first, last), length, document, start, kept in zip(
                segments, lengths, ids, starts, real, strict=True
            )
        )
    )


@st.composite
def packs(draw: st.DrawFn) -> list[dict[str, list[int]]]:
    """Valid packs, in which some values may have been changed.

    Or lists lengthened or shortened.
    """
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
        filler = draw(st.integers(0, len(lengths)))
        real = [draw(st.integers(1, length)) for length in lengths[:filler]]
        real += [0] * (len(lengths) - filler)
        tokens = draw(st.lists(st.integers(0, 9), min_size=sum(lengths), max_size=sum(lengths)))
        inside = [n < keep for size, keep in zip(lengths, real, strict=True) for n in range(size)]
        pairs = zip(tokens, inside, strict=True)
        rows.append(
            {
                "tokens": tokens,
                "position_ids": [n for length in lengths for n in range(length)],
                "cu_seqlens": [sum(lengths[:n]) for n in range(len(lengths) + 1)],
                "document_ids": [n if n < filler else -1 for n in range(len(lengths))],
                "document_starts": [0] * len(lengths),
                "labels": [token if keep else -100 for token, keep in pairs],
                "segment_lengths": real,
            }
        )
    for _ in range(draw(st.integers(0, 2))):
        values = draw(st.sampled_from(rows))[draw(st.sampled_from(sorted(rows[0])))]
        what = draw(st.sampled_from(["change", "append", "remove"]))
        if what == "append":
            values.append(draw(st.integers(-101, 17)))
        elif values:
            place = draw(st.integers(0, len(values) - 1))
            if what == "remove":
                del values[place]
            else:
                values[place] = draw(st.integers(-101, 17))
    return rows


@given(packs())
def test_it_accepts_exactly_what_the_rules_in_plain_python_accept(
    rows: list[dict[str, list[int]]],
) -> None:
    columns = tuple(STANDARD_COLUMNS[name] for name in rows[0])
    expected = all(obeys(row, max_length=14, vocab_size=10) for row in rows)
    with contextlib.nullcontext() if expected else pytest.raises(FormatError):
        check(rows, columns, max_length=14, vocab_size=10)
