"""Rows of token ids, and the columns that stay with them.

What is read, what is refused, what comes out of a build.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packprep import build, pack_dataset
from packprep.inspect.report_file import read_report
from packprep.loaders import PackedLoader, PackedShards, unpack
from packprep.schemas import Manifest
from packprep.sources.carried import RowShape, carried_types
from packprep.sources.row_text import as_rows
from packprep.support.errors import ConfigError, InputError
from tests.helpers.command import run
from tests.helpers.corpus import one_line, save_tokenizer, tiny_tokenizer, write_jsonl
from tests.helpers.errors import refused
from tests.helpers.files import config

IDS: dict[str, Any] = {"input_ids_column": "ids"}
VOCABULARY = 100


def read(table: pa.Table, **options: Any) -> pa.Table:
    """Rows as a build reads them."""
    settings = config(**IDS, **options)
    types = dict(zip(table.column_names, table.schema.types, strict=True))
    carried = carried_types(types, settings, "rows")
    return as_rows(table, settings, RowShape(carried=carried, vocab_size=VOCABULARY))


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
    [column] = carried_types(types, config(**IDS, carry="x"), "rows")
    assert (column.kind, column.dtype) == (kind, dtype)
    read_back = read(pa.table({"ids": pa.array([[5]]), "x": values}), carry="x")["x"]
    expected = cast(list[Any], values.to_pylist())
    assert read_back.to_pylist() == [
        value if kind == "segment" else list(value) for value in expected
    ]


def test_a_type_may_be_asked_for() -> None:
    found = read(pa.table({"ids": [[5, 6]], "x": [[1.0, 2.0]]}), carry="x:int8")
    assert found["x"].type == pa.list_(pa.int8())
    doubles = read(pa.table({"ids": [[5]], "x": [0.1]}), carry="x:float64")
    assert doubles["x"].to_pylist() == [0.1]


L, M, X = {"labels_column": "l"}, {"loss_mask_column": "m"}, {"carry": "x"}
GOOD: dict[str, Any] = {"ids": [3, 4], "l": [3, -100], "m": [0, 1], "x": 7}


@pytest.mark.parametrize(
    ("row", "options", "problem"),
    [
        ({"ids": [100]}, {}, "bad_ids: 'ids' has 100 at 0, expected 0 to 99"),
        ({"ids": [1, -1]}, {}, "bad_ids: 'ids' has -1 at 1, expected 0 to 99"),
        ({"ids": [2**31]}, {}, "bad_ids: 'ids' has 2147483648 at 0, expected a whole number from"),
        ({"ids": [1.5]}, {}, "bad_ids: 'ids' has 1.5 at 0, expected a whole number from"),
        ({"ids": [1, None]}, {}, "bad_ids: 'ids' has null at 1, expected a number"),
        ({"ids": None}, {}, "null: the row has no 'ids'"),
        ({"ids": [1, 2], "l": [1]}, L, "bad_labels: 'l' has 1 values and 'ids' 2, expected one"),
        ({"ids": [1], "l": [-1]}, L, "bad_labels: 'l' has -1 at 0, expected -100 or 0 to 99"),
        ({"ids": [1, 2], "m": [1]}, M, "bad_mask: 'm' has 1 values and 'ids' 2"),
        ({"ids": [1], "m": [2]}, M, "bad_mask: 'm' has 2 at 0, expected 0 or 1"),
        ({"ids": [1], "x": [float("nan")]}, X, "bad_carry: 'x' has nan at 0, expected a finite"),
        ({"ids": [1], "x": float("inf")}, X, "bad_carry: 'x' is inf, expected a finite number"),
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


@pytest.mark.parametrize(
    ("value", "kind"), [("text", "string"), ([[1]], "list<item: list<item: int64>>")]
)
def test_a_column_that_holds_no_ids_is_a_problem_of_each_row(value: Any, kind: str) -> None:
    [problem] = read(pa.table({"ids": [value]}))["problem"].to_pylist()
    assert one_line(problem) == f"not_numbers: 'ids' is {kind}, expected a list of numbers"


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


def ids_of(rows: int) -> list[list[int]]:
    return [[5 + (row * 7 + place) % 90 for place in range(row % 9)] for row in range(rows)]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_token_ids_are_packed_as_they_are_and_no_tokenizer_is_needed(
    tmp_path: Path, suffix: str
) -> None:
    ids = ids_of(40)
    source = tmp_path / f"rows.{suffix}"
    if suffix == "jsonl":
        write_jsonl(source, [{"ids": row} for row in ids])
    else:
        pq.write_table(pa.table({"ids": ids}), source)
    manifest = built(source, max_length=16)
    assert {row: [tokens] for row, tokens in enumerate(ids) if tokens} == segments(tmp_path / "out")
    assert (manifest.vocab_size, manifest.run["engine"]) == (VOCABULARY, None)
    assert manifest.ledger["tokens_in"] == manifest.ledger["tokens_packed"] == sum(map(len, ids))
    PackedShards(tmp_path / "out", verify=True)


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


def test_a_mask_becomes_labels_and_a_row_without_loss_is_dropped_and_counted(
    tmp_path: Path,
) -> None:
    rows = {"ids": [[5, 6, 7], [5, 6], [5, 6]], "m": [[0, 1, 1], [0, 0], [1, 0]]}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    manifest = built(tmp_path / "rows.parquet", **M)
    assert segments(tmp_path / "out", ["labels"]) == {0: [[5, 6, 7], [-100, 6, 7]]}
    assert manifest.ledger["dropped"] == {"few_loss_tokens": 4}
    report = read_report(tmp_path / "out")
    assert (report["loss_tokens"], report["loss_utilization"]) == (2, 2 / 4096)
    assert report["documents"]["dropped"] == {"few_loss_tokens": 2}


def test_the_command_names_file_and_row_of_a_bad_value_and_skips_it_when_asked(
    tmp_path: Path,
) -> None:
    values = [([5], 0.5), ([99], 1.5), ([6], float("nan"))]
    rows = [{"ids": ids, "reward": reward} for ids, reward in values]
    arguments = ["build", write_jsonl(tmp_path / "rows.jsonl", rows), "-o", tmp_path / "out", "-q"]
    arguments += ["--input-ids-column", "ids", "--vocab-size", 50, "--carry", "reward"]
    found = run(*arguments)
    assert found.code == 2
    assert "rows.jsonl row 1 (line 2): 'ids' has 99 at 0, expected 0 to 49" in found.err
    assert run(*arguments, "--on-error", "skip").code == 0
    report = read_report(tmp_path / "out")
    assert report["documents"]["skipped"] == {"bad_carry": 1, "bad_ids": 1}
    assert segments(tmp_path / "out", ["reward"]) == {0: [[5], 0.5]}


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"vocab_size": None}, ConfigError, "give --vocab-size or --tokenizer"),
        ({"bos": "<s>"}, ConfigError, "--bos and --eos name tokens of a tokenizer"),
        ({"carry": "tokens"}, ConfigError, "carry 'tokens' is a column name that packprep uses"),
        ({"carry": "labels"}, ConfigError, "give --labels-column"),
        ({"carry": "x:int9"}, ConfigError, "carry 'x:int9' has the type 'int9'; did you mean 'int"),
        ({"carry": "x,x"}, ConfigError, "carry names 'x' twice"),
        ({"carry": "my column"}, ConfigError, "carry 'my column' cannot be the name of a column"),
        ({"truncate_at": "END"}, ConfigError, "truncate_at is for text"),
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


def test_another_build_of_the_same_rows_reuses_their_tokens_and_columns(tmp_path: Path) -> None:
    rows = [{"ids": row, "x": [value / 8 for value in row]} for row in ids_of(40)]
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    found = []
    for name, length in (("a", 16), ("b", 16), ("c", 32)):
        store = {"keep_tokens": tmp_path / "store", "output": tmp_path / name}
        built(source, max_length=length, **X, **store)
        found.append(segments(tmp_path / name, ["x"]))
    assert found[0] == found[1] == found[2]
    assert len(list((tmp_path / "store").iterdir())) == 1


def test_pack_dataset_takes_token_ids_labels_and_carried_columns() -> None:
    rows = {"ids": [[5, 6, 7], [8, 9]], "l": [[-100, 6, 7], [8, 9]], "x": [0.5, 1.5]}
    dataset = datasets.Dataset.from_dict(rows)
    options: dict[str, Any] = {"max_length": 8, "order": "input", **IDS, **L, **X}
    [row] = pack_dataset(dataset, None, vocab_size=10, **options)
    assert row["tokens"] == [5, 6, 7, 8, 9]
    assert (row["labels"], row["x"]) == ([-100, 6, 7, -100, 9], [0.5, 1.5])
    with_ends = pack_dataset(dataset, tiny_tokenizer(), eos="</s>", bos="none", **options)
    assert with_ends[0]["labels"] == [-100, 6, 7, 1, -100, 9, 1]


PER_TOKEN = ("loss_masks", "advantages", "returns", "rollout_log_probs")


def samples(count: int) -> list[dict[str, Any]]:
    """Samples as slime's trainer has them.

    What belongs to tokens has a value for each token of the response.
    """
    numbers = np.random.default_rng(0)
    found = []
    for _ in range(count):
        prompt, response = (int(size) for size in numbers.integers(1, 30, 2))
        floats = numbers.standard_normal((3, response)).astype(np.float32).tolist()
        mask = numbers.integers(0, 2, response).tolist()
        found.append(
            dict(zip(PER_TOKEN, [mask, *floats], strict=True))
            | {
                "tokens": numbers.integers(0, VOCABULARY, prompt + response).tolist(),
                "rewards": float(numbers.standard_normal(1).astype(np.float32)[0]),
                "response_lengths": response,
            }
        )
    return found


def test_samples_of_reinforcement_learning_come_back_exactly_as_slime_packs_and_unpacks_them(
    tmp_path: Path,
) -> None:
    given = samples(60)
    rows = []
    for sample in given:  # a value for each token of the prompt too
        prompt = len(sample["tokens"]) - sample["response_lengths"]
        rows.append(sample | {name: [0] * prompt + sample[name] for name in PER_TOKEN})
    built(
        write_jsonl(tmp_path / "rollouts.jsonl", rows),
        input_ids_column="tokens",
        carry=("loss_masks:int8", *PER_TOKEN[1:], "rewards", "response_lengths"),
        max_length=128,
        pad_segment_to_multiple=4,
    )
    shards = PackedShards(tmp_path / "out", verify=True)
    columns = [*PER_TOKEN, "rewards", "response_lengths"]
    found: dict[int, dict[str, Any]] = {}
    for batch in PackedLoader(shards, 2, columns=columns, remainder="fill"):
        real = batch.document_ids >= 0
        tokens = unpack(batch.tokens, batch)
        parts = {name: unpack(batch.extra[name], batch) for name in PER_TOKEN}
        for place, row in enumerate(batch.document_ids[real].tolist()):
            length = int(batch.extra["response_lengths"][real][place])
            found[row] = {name: part[place][-length:].tolist() for name, part in parts.items()}
            found[row] |= {
                "tokens": tokens[place].tolist(),
                "rewards": batch.extra["rewards"][real][place].item(),
                "response_lengths": length,
            }
    assert [found[row] for row in range(len(given))] == given
