"""Rows of token ids, and the columns that stay with them.

What is read, what is refused, what comes out of a build.
"""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packprep import build, pack_dataset
from packprep.config.yaml_file import from_output
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.schemas import Manifest
from packprep.sources.carried import carried_types
from packprep.sources.formats.row_plan import row_plan
from packprep.sources.row_text import as_rows
from packprep.support.errors import ConfigError, InputError
from tests.helpers.corpus import one_line, resolved, save_tokenizer, tiny_tokenizer, write_jsonl
from tests.helpers.errors import assert_says, refused
from tests.helpers.files import config

IDS: dict[str, Any] = {"input_ids_column": "ids"}
VOCABULARY = 100


def read(table: pa.Table, **options: Any) -> pa.Table:
    """Rows as a build reads them."""
    settings = config(**IDS, **options)
    types = dict(zip(table.column_names, table.schema.types, strict=True))
    plan = row_plan(settings.parsing, VOCABULARY)
    return as_rows(table, replace(plan, carried=carried_types(types, plan, "rows")))


def built(source: Path, **options: Any) -> Manifest:
    """Manifest of a build of rows of token ids, beside the source as `out`."""
    if not {"vocab_size", "tokenizer"} & options.keys():
        options["vocab_size"] = VOCABULARY
    given = {"sources": [source], "output": source.parent / "out", **IDS}
    return build(config(**given | options))


def segments(path: Path, columns: Sequence[str] = ()) -> dict[int, list[Any]]:
    """Tokens of each document that is in one piece, and its values of these columns."""
    found = {}
    shards = PackedShards(path)
    for pack in shards:
        ends = pack.cu_seqlens.tolist()
        for number, (document, _, tokens) in enumerate(pack.segments()):
            its = slice(ends[number], ends[number] + len(tokens))
            assert document is not None
            found[document] = [tokens.tolist()] + [
                pack.columns[name][its].tolist()
                if shards.column_kinds[name] == "token"
                else pack.columns[name][number].item()
                for name in columns
            ]
    return found


@pytest.mark.parametrize(
    ("values", "kind", "dtype"),
    [
        (pa.array([True]), "segment", "int8"),
        (pa.array([1], pa.int64()), "segment", "int64"),
        (pa.array([1], pa.uint16()), "segment", "int32"),
        (pa.array([0.5]), "segment", "float32"),
        (pa.array([[1]], pa.list_(pa.int8())), "token", "int8"),
        (pa.array([[1]], pa.large_list(pa.uint8())), "token", "uint8"),
        (pa.array([[0.5]], pa.list_(pa.float16(), 1)), "token", "float32"),
    ],
    ids=str,
)
def test_a_carried_column_has_the_type_of_its_data(
    values: "pa.Array[Any]", kind: str, dtype: str
) -> None:
    types = {"ids": pa.list_(pa.int64()), "x": values.type}
    [column] = carried_types(types, row_plan(config(**IDS, carry="x").parsing), "rows")
    assert (column.kind, column.dtype) == (kind, dtype)
    read_back = read(pa.table({"ids": pa.array([[5]]), "x": values}), carry="x")["x"]
    assert read_back.to_pylist() == values.to_pylist()


def test_a_type_may_be_asked_for() -> None:
    found = read(pa.table({"ids": [[5]], "x": [[1.0]], "y": [0.1]}), carry="x:int8,y:float64")
    assert found["x"].type == pa.list_(pa.int8())
    assert found["y"].to_pylist() == [0.1]


L, M, X = {"labels_column": "l"}, {"loss_mask_column": "m"}, {"carry": "x"}
GOOD: dict[str, Any] = {"ids": [3, 4], "l": [3, -100], "m": [0, 1], "x": 7}


@pytest.mark.parametrize(
    ("row", "options", "problem"),
    [
        ({"ids": [100]}, {}, "bad_ids: 'ids' has 100 at 0, expected 0 to 99"),
        ({"ids": [1.5]}, {}, "bad_ids: 'ids' has 1.5 at 0, expected a whole number from"),
        ({"ids": [1, None]}, {}, "bad_ids: 'ids' has null at 1, expected a number"),
        ({"ids": None}, {}, "null: the row has no 'ids'"),
        ({"ids": [1, 2], "l": [1]}, L, "bad_labels: 'l' has 1 values and 'ids' 2, expected one"),
        ({"ids": [1], "l": [-1]}, L, "bad_labels: 'l' has -1 at 0, expected -100 or its token, 1"),
        ({"ids": [1], "m": [2]}, M, "bad_mask: 'm' has 2 at 0, expected 0 or 1"),
        ({"ids": [1], "x": [float("nan")]}, X, "bad_carry: 'x' has nan at 0, expected a finite"),
        ({"ids": [1], "x": 1e300}, X, "bad_carry: 'x' is 1e+300, expected a number that float32"),
        ({"ids": [1], "x": [1, 2]}, X, "bad_carry: 'x' has 2 values and 'ids' 1"),
        ({"ids": [1], "x": 200}, {"carry": "x:int8"}, "bad_carry: 'x' is 200, expected a whole"),
    ],
)
def test_what_is_wrong_with_a_row_is_said_and_its_values_are_left_out(
    row: dict[str, Any], options: dict[str, Any], problem: str
) -> None:
    good = GOOD | ({"x": [7, 8]} if isinstance(row.get("x"), list) else {})
    found = read(pa.table({name: [good[name], row[name]] for name in row}), **options)
    first, second = (one_line(each) for each in found["problem"].to_pylist())
    assert first is None
    assert str(second).startswith(problem)
    assert found["ids"].to_pylist() == [[3, 4], []]


SHIFTED = "each label of the row is the next token, so they are shifted already"


@pytest.mark.parametrize(
    ("ids", "labels", "place", "token", "is_shifted"),
    [
        ([5, 6, 7], [6, 7, -100], 0, 5, True),
        ([5, 6, 7, 8], [-100, -100, 8, 9], 2, 7, True),  # the last one is of no token here
        ([5, 6, 7, 8], [-100, 7, -100, -100], 1, 6, True),
        ([5, 6, 7, 8], [5, 6, 8, -100], 2, 7, False),  # one token is another
        ([5, 6, 7, 8], [1, 1, 1, 0], 0, 5, False),  # a mask that is said to be labels
        ([5, 6, 7], [5, 0, 7], 1, 6, False),  # 0 for a token without loss
        ([5, 6, 7], [-1, -1, 7], 0, 5, False),
        ([5], [6], 0, 5, False),
    ],
)
def test_a_label_that_is_not_its_token_is_refused_with_its_place(
    tmp_path: Path, ids: list[int], labels: list[int], place: int, token: int, is_shifted: bool
) -> None:
    good = {"ids": [9, 9, 9], "labels": [-100, 9, 9]}
    rows = [good, good | {"labels": [-100] * 3}, {"ids": ids, "labels": labels}, good]
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    if is_shifted:
        source = tmp_path / "rows.parquet"
        pq.write_table(pa.Table.from_pylist(rows), source)
    options = {"labels_column": "labels:labels"}
    with pytest.raises(InputError) as caught:
        built(source, **options)
    found = f"has {labels[place]} at {place}, expected -100 or its token, {token}"
    assert_says(str(caught.value), f"{source} row 2", found, "fix it, or skip such rows")
    assert (SHIFTED in str(caught.value)) == is_shifted
    built(source, **options, on_error="skip")
    assert [*segments(tmp_path / "out")] == [0, 3]


def test_labels_of_rows_beside_rows_of_another_length_are_compared_with_their_tokens() -> None:
    columns = {"ids": [[1, 2], [3, 4], [5]], "l": [[1], [3, -100], [6]]}
    found = read(pa.table(columns), **L)
    problems = [one_line(each) for each in found["problem"].to_pylist()]
    assert "'l' has 1 values and 'ids' 2" in str(problems[0])
    assert problems[1] is None
    assert "'l' has 6 at 0, expected -100 or its token, 5" in str(problems[2])


def test_values_of_a_slice_of_a_table_are_its_own() -> None:
    columns = {"ids": [[1], [2, 3], [4]], "x": [[1], [2, 3], [4]]}
    columns |= {"l": [[1], [-100, 3], [4]], "m": [[0], [1, 1], [0]]}
    found = read(pa.table(columns).slice(1), **L, **M, **X)
    assert found.select(["ids", "x", "labels"]).to_pylist() == [
        {"ids": [2, 3], "x": [2, 3], "labels": [-100, 3]},
        {"ids": [4], "x": [4], "labels": [-100]},
    ]


def test_with_labels_and_a_mask_there_is_no_loss_where_either_says_so() -> None:
    table = pa.table({"ids": [[1, 2, 3], [4]], "l": [[1, -100, 3], [4]], "m": [[1, 1, 0], [1]]})
    assert read(table, **L, **M)["labels"].to_pylist() == [[1, -100, -100], [4]]
    assert read(table, **M)["labels"].type == pa.list_(pa.int8())


_EITHER = "has only 0 and 1 in 'x' and in its token ids, so it may be labels or a mask; give"
ROWS = [([[7]] * 513, [[1]] * 512 + [[5]], "mask"), ([[0, 1]], [[True, False]], "mask")]
ROWS += [([[7, 8], [9]], [[1, 1], [5]], "labels"), ([[0, 1]], [[-100, 1]], "labels")]
ROWS += [([[], [7]], [[], [0]], "mask"), ([[]], [[]], "labels"), ([[1]], [[0]], _EITHER)]


@pytest.mark.parametrize(("ids", "values", "kind"), ROWS)
def test_the_first_rows_decide_between_labels_and_a_mask(
    tmp_path: Path, ids: list[Any], values: list[Any], kind: str
) -> None:
    pq.write_table(pa.table({"ids": ids, "x": values}), tmp_path / "rows.parquet")
    rows = pa.table({"ids": ids, "x": values}).to_pylist()
    for path in (write_jsonl(tmp_path / "rows.jsonl", rows), tmp_path / "rows.parquet"):
        with refused(InputError, kind) if " " in kind else nullcontext():
            [source] = resolved(config(sources=path, labels_column="x", **IDS), tmp_path)
            assert source.labels == kind


def test_a_mask_is_recorded_as_in_earlier_versions_and_not_beside_labels(tmp_path: Path) -> None:
    mask = write_jsonl(tmp_path / "m.jsonl", [{"ids": [5, 6, 7], "x": [0, 1, 1]}])
    labels = write_jsonl(tmp_path / "l.jsonl", [{"ids": [5, 6, 7], "x": [5, 6, 7]}])
    earlier = built(mask, loss_mask_column="x")
    assert built(mask, labels_column="x").data == earlier.data
    assert built(mask, labels_column="x:mask").data == earlier.data
    source = {"path": mask, "labels_column": "x"}
    of_source = built(mask, sources=source, labels_column="y", overwrite=True)
    assert of_source.data["inputs"]["sources"][0]["reading"] == {"loss_mask_column": "x"}
    assert verify(tmp_path / "out", level="full").sound
    again = from_output(tmp_path / "out" / "build.yaml")
    assert (again["labels_column"], again["sources"][0]["labels_column"]) == ("y:mask", "x:mask")
    with refused(
        InputError, f"{labels} has labels and {mask} a mask; expected one of them for all"
    ):
        built(mask, sources=[mask, labels], labels_column="x", output=tmp_path / "both")


def test_units_of_token_ids_are_cut_by_four_bytes_a_token(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "rows.jsonl", [{"ids": [5] * 10}] * 10)
    built(source, unit_size=100, keep_tokens=str(tmp_path / "store"))
    receipts = sorted((tmp_path / "store").glob("*/unit-*.json"))
    assert [json.loads(path.read_bytes())["documents"] for path in receipts] == [3, 3, 3, 1]


def test_bos_and_eos_that_are_asked_for_keep_labels_and_columns_in_step(tmp_path: Path) -> None:
    rows = [
        {"ids": [5, 6], "l": [-100, 6], "x": [1, 2]},
        {"ids": [7, 8], "l": [7, -100], "x": [3, 4]},
        {"ids": [], "l": [], "x": []},
    ]
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    built(source, tokenizer=tokenizer, bos="<s>", eos="</s>", **L, **X)
    assert segments(tmp_path / "out", ["labels", "x"]) == {
        0: [[0, 5, 6, 1], [-100, -100, 6, 1], [0, 1, 2, 0]],
        1: [[0, 7, 8, 1], [-100, 7, -100, -100], [0, 3, 4, 0]],
    }


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"vocab_size": None}, ConfigError, "give vocab_size or tokenizer"),
        ({"bos": "<s>"}, ConfigError, "bos and eos name tokens of a tokenizer"),
        ({"carry": "word"}, InputError, "has string in 'word' in its first rows"),
        ({"carry": "nothing"}, InputError, "has no column 'nothing'; it has ids, word"),
        (L, InputError, "has no column 'l'; it has ids, word"),
    ],
)
def test_options_that_cannot_work_are_refused(
    tmp_path: Path, options: dict[str, Any], kind: type[ValueError], words: str
) -> None:
    source = write_jsonl(tmp_path / "rows.jsonl", [{"ids": [5], "word": "a"}])
    with refused(kind, words):
        built(source, **options)


def test_a_number_of_each_row_is_carried_beside_text_too(tmp_path: Path) -> None:
    rows = [{"text": "a cat", "weight": 1}, {"text": "the dog sat", "weight": 0.25}]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    (tmp_path / "rows.csv").write_text("text,weight\na cat,1\nthe dog sat,0.25\n")
    write_jsonl(tmp_path / "lists.jsonl", [{"text": "a", "weight": [1]}])
    text: dict[str, Any] = {"tokenizer": save_tokenizer(tmp_path / "tokenizer"), "carry": "weight"}
    text |= {"input_ids_column": None, "overwrite": True}
    for name in ("rows.jsonl", "rows.csv"):
        built(tmp_path / name, **text)
        weights = [weight for _, weight in segments(tmp_path / "out", ["weight"]).values()]
        assert weights == [1, 0.25]
    with refused(InputError, "a value per token needs the tokens it belongs to"):
        built(tmp_path / "lists.jsonl", **text)


def test_pack_dataset_takes_token_ids_labels_and_carried_columns() -> None:
    rows = {"ids": [[5, 6, 7], [8, 9]], "l": [[-100, 6, 7], [8, 9]], "x": [0.5, 1.5]}
    dataset = datasets.Dataset.from_dict(rows)
    options: dict[str, Any] = {"max_length": 8, "order": "input", **IDS, **L, **X}
    [row] = pack_dataset(dataset, None, vocab_size=10, **options)
    assert row["tokens"] == [5, 6, 7, 8, 9]
    assert (row["labels"], row["x"]) == ([-100, 6, 7, -100, 9], [0.5, 1.5])
    with_ends = pack_dataset(dataset, tiny_tokenizer(), eos="</s>", bos="none", **options)
    assert with_ends[0]["labels"] == [-100, 6, 7, 1, -100, 9, 1]
