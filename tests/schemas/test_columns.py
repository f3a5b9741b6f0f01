"""Allowed columns, and the Arrow schema that they make."""

from typing import Any

import pyarrow as pa
import pytest

from packprep.schemas import STANDARD_COLUMNS, Column, FormatError, shard_schema
from packprep.schemas.columns import check_columns


def test_the_schema_of_the_standard_columns_is_lists_in_this_order_without_metadata() -> None:
    schema = shard_schema(list(STANDARD_COLUMNS.values()))
    int32, int64 = pa.list_(pa.int32()), pa.list_(pa.int64())
    fields: list[tuple[str, pa.DataType]] = [
        ("tokens", int32),
        ("position_ids", int32),
        ("cu_seqlens", int32),
        ("document_ids", int64),
        ("document_starts", int32),
        ("labels", int32),
        ("segment_lengths", int32),
        ("pair_ids", int64),
        ("pair_sides", pa.list_(pa.int8())),
        ("turn_ids", int32),
        ("segment_parents", int32),
        ("label_weights", int32),
        ("row_ids", int64),
        ("row_starts", int32),
        ("row_turns", int32),
        ("row_sides", pa.list_(pa.int8())),
        ("row_segments", int32),
        ("row_ends", int32),
        ("row_trained", int32),
        ("row_label_starts", int32),
    ]
    assert schema == pa.schema(fields)
    assert schema.metadata is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "my column"}, "column name 'my column' is not of the form"),
        ({"name": ""}, "column name '' is not of the form"),
        ({"name": "a" * 129}, "at most 128 characters"),
        ({"name": 3}, "column name 3 is not"),
        ({"kind": "line"}, "column reward has kind 'line'; expected one of token, segment, "),
        (
            {"dtype": "float16"},
            "column reward has dtype 'float16'; expected one of int8, uint8, int16, int32, int64",
        ),
        ({"dtype": ["int32"]}, "column reward has dtype"),
    ],
)
def test_a_column_the_format_cannot_hold_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        Column(**{"name": "reward", "kind": "token", "dtype": "float32", **wrong})


def test_a_standard_name_cannot_be_used_for_something_else() -> None:
    columns = [*STANDARD_COLUMNS.values()][:3]
    with pytest.raises(
        FormatError,
        match="labels is a segment column of int32; the format fixes it as a token column",
    ):
        check_columns([*columns, Column(name="labels", kind="segment", dtype="int32")])


def test_a_duplicate_name_and_a_missing_required_column_are_refused() -> None:
    columns = [*STANDARD_COLUMNS.values()]
    with pytest.raises(FormatError, match="lists tokens twice"):
        check_columns([*columns, columns[0]])
    with pytest.raises(
        FormatError, match="has no cu_seqlens; every shard has tokens and cu_seqlens"
    ):
        check_columns(columns[:2])


def test_the_meaning_of_a_column_does_not_count_for_equality() -> None:
    assert Column(name="tokens", kind="token", dtype="int32") == STANDARD_COLUMNS["tokens"]
