"""Planted faults in rows of packs: each is found, with its file, pack, segment and token."""

from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packprep.inspect.foreign.packed_rows import is_packed
from packprep.inspect.verify import verify
from tests.helpers.corpus import save_tokenizer
from tests.helpers.foreign_packs import (
    BRIDGE,
    ROWS,
    VOCABULARY,
    faults,
    with_value,
    write_rows,
)

BRIDGE_FAULTS: list[tuple[str, int, Any, str]] = [
    (
        "input_ids",
        0,
        [5, 6, 7, 8, 100],
        "pack 0 segment 1 token 1: the id is 100; expected 0 to 99",
    ),
    (
        "input_ids",
        1,
        [],
        "pack 1: input_ids is empty; expected at least one token",
    ),
    (
        "loss_mask",
        1,
        [1, 1],
        "pack 1: loss_mask has 2 values; expected 3, one for each of input_ids",
    ),
    ("loss_mask", 0, [0, 1, 0, 2, 0], "pack 0 segment 1 token 0: loss_mask is 2; expected 0 or 1"),
    ("loss_mask", 2, None, "pack 2: it has no loss_mask"),
    ("seq_start_id", 0, [1, 3], "pack 0: seq_start_id begins with 1; expected 0"),
    (
        "seq_start_id",
        1,
        [],
        "pack 1: seq_start_id has 0 values; expected 0 and the start of each other segment, with "
        "no end",
    ),
    (
        "seq_start_id",
        0,
        [0, 3, 2],
        "pack 0: seq_start_id has 2 after 3, at 2; expected more",
    ),
    (
        "seq_start_id",
        1,
        [0, 3],
        "pack 1: seq_start_id ends with 3; expected less than 3, the number of tokens",
    ),
    ("seq_start_id", 0, [0, None], "pack 0: seq_start_id has null at 1"),
]


@pytest.mark.parametrize(("column", "row", "value", "sentence"), BRIDGE_FAULTS)
def test_ten_faults_of_megatron_bridge_are_found(
    tmp_path: Path, column: str, row: int, value: Any, sentence: str
) -> None:
    path = write_rows(tmp_path / "x.idx.parquet", BRIDGE)
    assert faults(path, vocab_size=VOCABULARY) == []
    write_rows(path, with_value(BRIDGE, column, row, value))
    assert faults(path, vocab_size=VOCABULARY) == [f"x.idx.parquet {sentence}"]


ROW_FAULTS: list[tuple[str, int, Any, str]] = [
    ("input_ids", 1, [10, -11, 12], "pack 1 segment 0 token 1: the id is -11; expected 0 to 99"),
    ("labels", 0, [-100, 6, 7, 8, 9], "pack 0 segment 1 token 0: the first token of the segment"),
    (
        "labels",
        0,
        [-100, 6, 8, -100, 9],
        "pack 0 segment 0 token 2: the label is 8; expected -100 or the id, 7",
    ),
    ("labels", 1, [-100], "pack 1: labels has 1 values; expected 3, one for each of input_ids"),
    (
        "position_ids",
        0,
        [0, 1, 2, 3, 4],
        "pack 0 segment 1 token 0: position_ids has 3; expected 0",
    ),
    (
        "position_ids",
        1,
        [0, 2, 0],
        "pack 1 segment 0 token 1: position_ids has 2; expected 1",
    ),
    ("position_ids", 2, [], "pack 2: position_ids has 0 values; expected 1, one for each of"),
    (
        "seq_lengths",
        0,
        [3, 3],
        "pack 0: seq_lengths add up to 6 tokens; expected the 5 of input_ids",
    ),
    (
        "seq_lengths",
        1,
        [3, 0],
        "pack 1: seq_lengths has 0 for segment 1; expected 1 or more",
    ),
    ("seq_lengths", 1, [4, -1], "pack 1: seq_lengths has -1 for segment 1; expected 1 or more"),
]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
@pytest.mark.parametrize(("column", "row", "value", "sentence"), ROW_FAULTS)
def test_ten_faults_of_rows_for_trl_and_trainer_are_found(
    tmp_path: Path, column: str, row: int, value: Any, sentence: str, suffix: str
) -> None:
    path = write_rows(tmp_path / f"x.{suffix}", ROWS)
    assert faults(path, vocab_size=VOCABULARY) == []
    write_rows(path, with_value(ROWS, column, row, value))
    found = faults(path, vocab_size=VOCABULARY)
    assert found[0].startswith(f"{path.name} {sentence}")
    assert all(line.startswith(f"{path.name} pack {row}") for line in found)


OWN = {
    "tokens": ROWS["input_ids"],
    "cu_seqlens": [[0, 3, 5], [0, 2, 3], [0, 1]],
    "position_ids": ROWS["position_ids"],
    "labels": [[5, 6, 7, 50, 9], [-100, 11, -100], [-100]],
}


@pytest.mark.parametrize(
    ("column", "row", "value", "sentence"),
    [
        ("tokens", 2, [100], "pack 2 segment 0 token 0: the id is 100; expected 0 to 99"),
        ("cu_seqlens", 0, [0, 3, 4], "pack 0: cu_seqlens ends with 4; expected 5, the number of"),
        ("cu_seqlens", 0, [0, 3, 3, 5], "pack 0: cu_seqlens has 3 after 3, at 2; expected more"),
        ("cu_seqlens", 2, [1], "pack 2: cu_seqlens has 1 values; expected 0 and the start of"),
        ("position_ids", 1, [0, 1, 2], "pack 1 segment 1 token 0: position_ids has 2; expected 0"),
        ("labels", 1, [-100, 11, 100], "pack 1 segment 1 token 0: the label is 100; expected"),
    ],
)
def test_own_columns_in_parquet_are_checked(
    tmp_path: Path, column: str, row: int, value: Any, sentence: str
) -> None:
    path = write_rows(tmp_path / "x.parquet", OWN)
    verdict = verify(path, vocab_size=VOCABULARY)
    assert verdict.sound
    assert (verdict.packs, verdict.segments, verdict.tokens) == (3, 5, 9)
    write_rows(path, with_value(OWN, column, row, value))
    (found,) = faults(path, vocab_size=VOCABULARY)
    assert found.startswith(f"x.parquet {sentence}")


@pytest.mark.parametrize(
    ("mask", "sentence"),
    [
        ([1, 1, 1, 2, 2], None),
        ([1, 1, 1, 2, 0], None),
        ([1, 1, 1, 1, 1], None),
        ([2, 2, 2, 3, 3], "segment 0 token 0: attention_mask is 2; expected 1"),
        ([1, 1, 1, 3, 3], "segment 1 token 0: attention_mask is 3; expected 1, 2 or 0"),
        ([1, 1, 2, 1, 1], "segment 1 token 0: attention_mask is 1; expected 2, 3 or 0"),
        ([1, 1, 2, 0, 2], "segment 1 token 1: attention_mask is 2; expected 0 to the end"),
    ],
)
def test_numbers_of_segments_in_an_attention_mask_rise(
    tmp_path: Path, mask: list[int], sentence: str | None
) -> None:
    columns = ROWS | {"attention_mask": [mask, [1, 1, 2], [1]]}
    found = faults(write_rows(tmp_path / "x.parquet", columns))
    expected = f"x.parquet pack 0 {sentence}"
    assert (found == []) if sentence is None else found[0].startswith(expected)


def test_positions_alone_separate_segments(tmp_path: Path) -> None:
    columns = {name: ROWS[name] for name in ("input_ids", "labels", "position_ids")}
    verdict = verify(write_rows(tmp_path / "x.parquet", columns))
    assert verdict.sound
    assert (verdict.packs, verdict.segments, verdict.tokens) == (3, 5, 9)
    write_rows(tmp_path / "x.parquet", with_value(columns, "position_ids", 0, [1, 2, 3, 0, 2]))
    assert faults(tmp_path / "x.parquet") == [
        "x.parquet pack 0 segment 0 token 0: position_ids has 1; expected 0",
        "x.parquet pack 0 segment 0 token 1: position_ids has 2; expected 1",
        "x.parquet pack 0 segment 0 token 2: position_ids has 3; expected 2",
        "x.parquet pack 0 segment 1 token 1: position_ids has 2; expected 1",
    ]


def test_the_first_label_of_a_segment_is_no_fault_where_the_collator_removes_it(
    tmp_path: Path,
) -> None:
    columns = {name: ROWS[name] for name in ("input_ids", "seq_lengths")}
    path = write_rows(tmp_path / "x.parquet", columns | {"labels": ROWS["input_ids"]})
    assert faults(path) == []


def test_rows_of_a_saved_dataset_with_positions_alone_are_checked(tmp_path: Path) -> None:
    columns = {name: ROWS[name] for name in ("input_ids", "labels", "position_ids")}
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "saved")
    assert faults(tmp_path / "saved", vocab_size=VOCABULARY) == []
    bad = with_value(columns, "labels", 0, [5, 6, 7, -100, 9])
    datasets.Dataset.from_dict(bad).save_to_disk(tmp_path / "bad")
    assert faults(tmp_path / "bad") == [
        "data-00000-of-00001.arrow pack 0 segment 0 token 0: the first token of the segment has "
        "the label 5; expected -100, because the token before it is of another document"
    ]


def test_a_list_of_another_type_is_found(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "x.parquet", ROWS | {"labels": [["a"], ["b"], ["c"]]})
    assert faults(path) == [
        "x.parquet: labels is list<element: string>; expected lists of whole numbers"
    ]


def test_rows_without_boundaries_are_a_fault_of_a_file_and_no_packs_of_a_folder(
    tmp_path: Path,
) -> None:
    path = write_rows(tmp_path / "x.parquet", {"input_ids": ROWS["input_ids"]})
    assert faults(path) == [
        "x.parquet: it has the columns input_ids; expected input_ids and one of seq_start_id, "
        "seq_lengths, position_ids"
    ]
    write_rows(tmp_path / "y.parquet", BRIDGE)
    assert verify(tmp_path).files == 1


def test_a_file_that_was_cut_is_found(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "x.parquet", BRIDGE)
    path.write_bytes(path.read_bytes()[:-20])
    (sentence,) = faults(tmp_path)
    assert sentence.startswith("x.parquet: it cannot be read to its end: ")
    path = write_rows(tmp_path / "y.jsonl", ROWS)
    path.write_bytes(path.read_bytes()[:-20])
    assert "y.jsonl pack 2: the line is no JSON object" in faults(path)


def test_places_are_right_beyond_the_first_batch_of_rows(tmp_path: Path) -> None:
    columns = {name: values * 700 for name, values in BRIDGE.items()}
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=250)
    verdict = verify(path)
    assert (verdict.packs, verdict.segments, verdict.tokens) == (2100, 3500, 6300)
    write_rows(path, with_value(columns, "input_ids", 1999, [10, 11, 700]))
    assert faults(path, vocab_size=VOCABULARY) == [
        "x.parquet pack 1999 segment 1 token 0: the id is 700; expected 0 to 99"
    ]


def test_the_vocabulary_is_that_of_a_tokenizer(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path / "tokenizer")  # of 320 tokens
    path = write_rows(tmp_path / "x.parquet", with_value(BRIDGE, "input_ids", 2, [320]))
    assert faults(path, tokenizer=str(tokenizer)) == [
        "x.parquet pack 2 segment 0 token 0: the id is 320; expected 0 to 319"
    ]


def test_packs_are_known_by_their_columns() -> None:
    assert is_packed(["input_ids", "seq_start_id"])
    assert not is_packed(["input_ids", "labels", "attention_mask"])
    assert not is_packed(["tokens", "position_ids"])
    assert is_packed(["tokens", "cu_seqlens", "labels"])
