"""Allowed columns, their Arrow schema, and both spellings of their names."""

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.schemas import STANDARD_COLUMNS, Column, FormatError, check_batch
from packprep.schemas.columns import (
    NUMBER_TYPES,
    DType,
    TokenType,
    check_columns,
    columns_of_type,
    number_type,
    token_type,
)
from packprep.schemas.names import (
    column_view,
    packprep_batch,
    packprep_columns,
    stored_batch,
    stored_columns,
)
from tests.helpers.tiny_shards import EXAMPLE, PLAIN, to_batch


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


def test_a_duplicate_name_and_a_missing_required_column_are_refused() -> None:
    columns = [*STANDARD_COLUMNS.values()]
    with pytest.raises(FormatError, match="lists tokens twice"):
        check_columns([*columns, columns[0]])
    with pytest.raises(
        FormatError, match="has no cu_seqlens; every shard has tokens and cu_seqlen"
    ):
        check_columns(columns[:2])


LABELLED = (*PLAIN, STANDARD_COLUMNS["labels"])
ROWS: list[dict[str, Any]] = [
    {**EXAMPLE[0], "labels": [-100, 20, 21, 22, 23, 24, 25, 26]},
    {**EXAMPLE[1], "labels": [-100, 10, 2, -100, 2, -100, 30, 2]},
]


TWO, MOST = ROWS[1]["labels"], 2**31 - 1


def check(batch: pa.RecordBatch) -> None:
    check_batch(batch, LABELLED, max_length=8, vocab_size=32, where="data.arrow")


def edited(column: str, values: list[list[int]]) -> pa.RecordBatch:
    """The two packs with the names of hf, and other values of a column."""
    batch = stored_batch(to_batch(LABELLED, ROWS), "hf")
    number = batch.schema.get_field_index(column)
    return batch.set_column(number, column, pa.array(values, pa.list_(pa.int32())))


packs = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), max_size=5)


@given(packs, st.integers(0, 4), st.integers(0, 4))
def test_boundaries_become_lengths_and_lengths_boundaries_in_any_slice(
    lengths: list[list[int]], first: int, count: int
) -> None:
    ends = [np.cumsum([0, *sizes]).tolist() for sizes in lengths]
    rows = [{"tokens": [0] * each[-1], "cu_seqlens": each} for each in ends]
    columns = (STANDARD_COLUMNS["tokens"], STANDARD_COLUMNS["cu_seqlens"])
    batch = to_batch(columns, rows).slice(first, count)
    stored = stored_batch(batch, "hf")
    assert stored["seq_lengths"].to_pylist() == lengths[first:][:count]
    assert packprep_batch(stored, "data.arrow").to_pylist() == batch.to_pylist()
    whole = stored_batch(to_batch(columns, rows), "hf").slice(first, count)
    view = column_view(whole, "cu_seqlens", "data.arrow")
    assert [view.row(row).tolist() for row in range(len(batch))] == batch["cu_seqlens"].to_pylist()


@pytest.mark.parametrize(
    ("column", "values", "sentence"),
    [
        ("labels", [[*range(20, 28)], TWO], "pack 0 segment 0 token 0: the first token of a"),
        ("labels", [ROWS[0]["labels"], [*TWO[:5], 1, 30, 2]], "pack 1 segment 2 token 0: the"),
        ("seq_lengths", [[8], [3, 2, 2]], "pack 1: cu_seqlens are [0, 3, 5, 7]; expected them to"),
        ("seq_lengths", [[8], [3, -1, 6]], "pack 1 segment 1: it ends at 2 and starts at 3"),
        ("seq_lengths", [[MOST, MOST, 10], [3, 2, 3]], "pack 0 segment 1: it ends at -2 and"),
        ("seq_lengths", [[], [3, 2, 3]], "pack 0: cu_seqlens are [0]; expected 0 and the end of"),
        ("position_ids", [[*range(8)], [*range(8)]], "pack 1 segment 1 token 0: position_ids has"),
    ],
)
def test_damage_under_the_names_of_hf_is_found_at_its_place(
    column: str, values: list[list[int]], sentence: str
) -> None:
    with pytest.raises(FormatError) as error:
        check(edited(column, values))
    assert str(error.value).startswith(f"data.arrow {sentence}")


def test_a_column_that_the_names_of_hf_need_may_not_be_missing_or_of_another_type() -> None:
    stored = stored_columns(LABELLED, "hf")
    assert packprep_columns(stored) == LABELLED
    with pytest.raises(FormatError, match="has input_ids and seq_lengths but no labels; with the"):
        packprep_columns([column for column in stored if column.name != "labels"])
    wrong = Column(name="seq_lengths", kind="boundary", dtype="int32")
    with pytest.raises(FormatError, match="says seq_lengths is a boundary column of int32; with"):
        packprep_columns([wrong if column.name == "seq_lengths" else column for column in stored])
