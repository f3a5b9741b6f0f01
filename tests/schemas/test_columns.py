"""Allowed columns, and the Arrow schema that they make."""

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.schemas import STANDARD_COLUMNS, Column, FormatError
from packprep.schemas.columns import (
    NUMBER_TYPES,
    DType,
    TokenType,
    check_columns,
    columns_of_type,
    number_type,
    token_type,
)


def test_every_type_is_one_of_the_manifests_schema_and_of_numpy_and_arrow() -> None:
    manifest = json.loads(Path("schemas/manifest.schema.json").read_text())
    enums = [dtypes for dtypes in _values(manifest, "enum") if "float64" in dtypes]
    assert enums == [list(NUMBER_TYPES)] == [list(get_args(DType))]
    for name in NUMBER_TYPES:
        assert number_type(pa.from_numpy_dtype(np.dtype(name))) == name


def _values(tree: Any, key: str) -> list[Any]:
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    own = [tree[key]] if isinstance(tree, dict) and key in tree else []
    return own + [value for child in children for value in _values(child, key)]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "my column"}, "column name 'my column' is not of the form"),
        ({"name": ""}, "column name '' is not of the form"),
        ({"name": "a" * 129}, "at most 128 characters"),
        ({"name": 3}, "column name 3 is not"),
        ({"kind": "line"}, "column reward has kind 'line'; expected one of token, segment, "),
        ({"dtype": "float16"}, "column reward has dtype 'float16'; expected one of int8, uint8"),
        ({"dtype": ["int32"]}, "column reward has dtype"),
    ],
)
def test_a_column_the_format_cannot_hold_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        Column(**{"name": "reward", "kind": "token", "dtype": "float32", **wrong})


def test_a_standard_name_cannot_be_used_for_something_else() -> None:
    columns = [*STANDARD_COLUMNS.values()][:3]
    with pytest.raises(FormatError, match="labels is a segment column of int32; the format fixes"):
        check_columns([*columns, Column(name="labels", kind="segment", dtype="int32")])


@given(st.sampled_from(get_args(TokenType)), st.integers(1, 1 << 17))
def test_positions_have_the_type_of_tokens_unless_packs_are_longer_than_it_counts(
    tokens: TokenType, max_length: int
) -> None:
    columns = columns_of_type(tokens, max_length)
    assert token_type(columns.values()) == tokens
    positions = columns["position_ids"].numpy_dtype
    assert max_length - 1 <= np.iinfo(positions).max
    assert positions == (tokens if max_length <= 65_536 else "int32")
    assert check_columns(columns.values()) == tuple(columns.values())
    rest = [name for name in STANDARD_COLUMNS if name not in ("tokens", "position_ids")]
    assert [columns[name] for name in rest] == [STANDARD_COLUMNS[name] for name in rest]


@pytest.mark.parametrize("name", [*STANDARD_COLUMNS, "reward"])
def test_only_tokens_and_positions_may_be_uint16(name: str) -> None:
    kind = STANDARD_COLUMNS[name].kind if name in STANDARD_COLUMNS else "token"
    column = Column(name=name, kind=kind, dtype="uint16")
    columns = {**{key: STANDARD_COLUMNS[key] for key in ("tokens", "cu_seqlens")}, name: column}
    if name in ("tokens", "position_ids"):
        assert column in check_columns(columns.values())
        return
    with pytest.raises(FormatError, match=f"{name} is a column of uint16; only tokens and positi"):
        check_columns(columns.values())


def test_compact_columns_of_another_kind_are_refused() -> None:
    wrong = Column(name="tokens", kind="segment", dtype="uint16")
    with pytest.raises(FormatError, match="tokens is a segment column of uint16; the format fixes"):
        check_columns([wrong, STANDARD_COLUMNS["cu_seqlens"]])


def test_a_duplicate_name_and_a_missing_required_column_are_refused() -> None:
    columns = [*STANDARD_COLUMNS.values()]
    with pytest.raises(FormatError, match="lists tokens twice"):
        check_columns([*columns, columns[0]])
    with pytest.raises(
        FormatError, match="has no cu_seqlens; every shard has tokens and cu_seqlen"
    ):
        check_columns(columns[:2])
