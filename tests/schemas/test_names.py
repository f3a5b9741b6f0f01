"""Both spellings of the columns mean the same packs."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.schemas import STANDARD_COLUMNS, Column, FormatError, check_batch
from packprep.schemas.names import (
    column_view,
    packprep_batch,
    packprep_columns,
    stored_batch,
    stored_columns,
)
from tests.helpers.tiny_shards import EXAMPLE, PLAIN, to_batch

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
