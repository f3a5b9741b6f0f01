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

from packprep import BuildConfig, build, pack_dataset
from packprep.loaders import PackedLoader, PackedShards, unpack
from packprep.sources.carried import RowShape, carried_types
from packprep.sources.row_text import as_rows
from packprep.support.errors import ConfigError, InputError
from tests.helpers.command import run
from tests.helpers.corpus import one_line, save_tokenizer, tiny_tokenizer, write_jsonl

IDS: dict[str, Any] = {"input_ids_column": "ids"}
VOCABULARY = 100


def read(table: dict[str, Any], **options: Any) -> pa.Table:
    """Rows as a build reads them."""
    rows = pa.table(table)
    config = BuildConfig(**{**IDS, **options})
    types = {name: rows[name].type for name in rows.column_names}
    return as_rows(
        rows, config, RowShape(carried=carried_types(types, config, "rows"), vocab_size=VOCABULARY)
    )


def problems(table: dict[str, Any], **options: Any) -> list[str | None]:
    return [one_line(problem) for problem in read(table, **options)["problem"].to_pylist()]


def packs(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = datasets.load_from_disk(str(path)).to_list()
    return rows


def segments(path: Path, columns: Sequence[str] = ()) -> dict[int, list[Any]]:
    """Tokens of each document that is in one piece, and its values of these columns."""
    found = {}
    kinds = PackedShards(path).column_kinds
    for pack in PackedShards(path):
        ends = pack.cu_seqlens.tolist()
        for number, (document, _, tokens) in enumerate(pack.segments()):
            values = [
                pack.columns[name][ends[number] : ends[number] + len(tokens)].tolist()
                if kinds[name] == "token"
                else pack.columns[name][number].item()
                for name in columns
            ]
            assert document is not None
            found[document] = [tokens.tolist(), *values]
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
    [column] = carried_types(
        {"ids": pa.list_(pa.int64()), "x": values.type}, BuildConfig(**IDS, carry=("x",)), "rows"
    )
    assert (column.kind, column.dtype) == (kind, dtype)
    read_back = read({"ids": pa.array([[5]]), "x": values}, carry=("x",))["x"]
    assert read_back.to_pylist() == [
        value if kind == "segment" else list(value) for value in cast(list[Any], values.to_pylist())
    ]


def test_a_type_may_be_asked_for() -> None:
    found = read({"ids": [[5, 6]], "x": [[1.0, 2.0]]}, carry=("x:int8",))
    assert found["x"].type == pa.list_(pa.int8())
    assert read({"ids": [[5]], "x": [0.1]}, carry=("x:float64",))["x"].to_pylist() == [0.1]


@pytest.mark.parametrize(
    ("row", "options", "problem"),
    [
        ({"ids": [100]}, {}, "bad_ids: 'ids' has 100 at 0, expected 0 to 99"),
        ({"ids": [1, -1]}, {}, "bad_ids: 'ids' has -1 at 1, expected 0 to 99"),
        ({"ids": [2**31]}, {}, "bad_ids: 'ids' has 2147483648 at 0, expected a whole number from"),
        ({"ids": [1.5]}, {}, "bad_ids: 'ids' has 1.5 at 0, expected a whole number from"),
        ({"ids": [1, None]}, {}, "bad_ids: 'ids' has null at 1, expected a number"),
        ({"ids": None}, {}, "null: the row has no 'ids'"),
        ({"ids": "text"}, {}, "not_numbers: 'ids' is string, expected a list of numbers"),
        (
            {"ids": [[1]]},
            {},
            "not_numbers: 'ids' is list<item: list<item: int64>>, expected a list of numbers",
        ),
        (
            {"ids": [1, 2], "l": [1]},
            {"labels_column": "l"},
            "bad_labels: 'l' has 1 values and 'ids' 2, expected one",
        ),
        (
            {"ids": [1], "l": [-1]},
            {"labels_column": "l"},
            "bad_labels: 'l' has -1 at 0, expected -100 or 0 to 99",
        ),
        (
            {"ids": [1, 2], "m": [1]},
            {"loss_mask_column": "m"},
            "bad_mask: 'm' has 1 values and 'ids' 2",
        ),
        (
            {"ids": [1], "m": [2]},
            {"loss_mask_column": "m"},
            "bad_mask: 'm' has 2 at 0, expected 0 or 1",
        ),
        (
            {"ids": [1], "x": [float("nan")]},
            {"carry": "x"},
            "bad_carry: 'x' has nan at 0, expected a finite number",
        ),
        (
            {"ids": [1], "x": float("inf")},
            {"carry": "x"},
            "bad_carry: 'x' is inf, expected a finite number",
        ),
        (
            {"ids": [1], "x": 1e300},
            {"carry": "x"},
            "bad_carry: 'x' is 1e+300, expected a number that float32 holds",
        ),
        ({"ids": [1], "x": [1, 2]}, {"carry": "x"}, "bad_carry: 'x' has 2 values and 'ids' 1"),
        (
            {"ids": [1], "x": 200},
            {"carry": "x:int8"},
            "bad_carry: 'x' is 200, expected a whole number from -128 to 127",
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_is_wrong_with_a_row_is_said_and_its_values_are_left_out(
    row: dict[str, Any], options: dict[str, Any], problem: str
) -> None:
    good = {
        "ids": [3, 4],
        "l": [3, -100],
        "m": [0, 1],
        "x": 7 if not isinstance(row.get("x"), list) else [7, 8],
    }
    both = (
        {name: [good[name], value] for name, value in row.items()}
        if not isinstance(row["ids"], str)
        else None
    )
    if both is None or (isinstance(row["ids"], list) and isinstance(row["ids"][0], list)):
        [said] = problems({name: [value] for name, value in row.items()}, **options)
        assert str(said).startswith(problem)
        return
    found = read(both, **options)
    assert found["problem"][0].as_py() is None
    assert str(one_line(found["problem"][1].as_py())).startswith(problem)
    assert found["ids"].to_pylist() == [[3, 4], []]


def test_values_of_a_slice_of_a_table_are_its_own() -> None:
    columns = {
        "ids": [[1], [2, 3], [4]],
        "x": [[1], [2, 3], [4]],
        "l": [[1], [-100, 3], [4]],
        "m": [[0], [1, 1], [0]],
    }
    config = BuildConfig(**IDS, carry=("x",), labels_column="l", loss_mask_column="m")
    numbers = RowShape(
        carried=carried_types({"x": pa.list_(pa.int64())}, config, "rows"), vocab_size=VOCABULARY
    )
    found = as_rows(pa.table(columns).slice(1), config, numbers)
    assert found.select(["ids", "x", "labels"]).to_pylist() == [
        {"ids": [2, 3], "x": [2, 3], "labels": [-100, 3]},
        {"ids": [4], "x": [4], "labels": [-100]},
    ]


def test_with_labels_and_a_mask_there_is_no_loss_where_either_says_so() -> None:
    table = {"ids": [[1, 2, 3], [4]], "l": [[1, -100, 3], [4]], "m": [[1, 1, 0], [1]]}
    found = read(table, labels_column="l", loss_mask_column="m")["labels"]
    assert found.to_pylist() == [[1, -100, -100], [4]]
    assert read(table, loss_mask_column="m")["labels"].type == pa.list_(pa.int8())


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
    manifest = build(
        BuildConfig(
            sources=(str(source),),
            output=str(tmp_path / "out"),
            vocab_size=VOCABULARY,
            max_length=16,
            **IDS,
        )
    )
    assert {row: [tokens] for row, tokens in enumerate(ids) if tokens} == segments(tmp_path / "out")
    assert (manifest.vocab_size, manifest.run["engine"]) == (VOCABULARY, None)
    assert manifest.ledger["tokens_in"] == manifest.ledger["tokens_packed"] == sum(map(len, ids))
    PackedShards(tmp_path / "out", verify=True)


def test_units_of_token_ids_are_cut_by_four_bytes_a_token(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "rows.jsonl", [{"ids": [5] * 10}] * 10)
    store = tmp_path / "store"
    config = BuildConfig(
        sources=(str(source),),
        output=str(tmp_path / "out"),
        vocab_size=9,
        unit_size=100,
        keep_tokens=str(store),
        **IDS,
    )
    build(config)
    receipts = sorted(store.glob("*/unit-*.json"))
    assert [json.loads(path.read_bytes())["documents"] for path in receipts] == [3, 3, 3, 1]


def test_bos_and_eos_that_are_asked_for_keep_labels_and_columns_in_step(tmp_path: Path) -> None:
    rows = [
        {"ids": [5, 6], "l": [-100, 6], "x": [1, 2]},
        {"ids": [7, 8], "l": [7, -100], "x": [3, 4]},
        {"ids": [], "l": [], "x": []},
    ]
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    options: dict[str, Any] = {
        "tokenizer": str(tokenizer),
        "bos": "<s>",
        "eos": "</s>",
        "labels_column": "l",
        "carry": "x",
    }
    build(BuildConfig(sources=(str(source),), output=str(tmp_path / "out"), **IDS, **options))
    assert segments(tmp_path / "out", ["labels", "x"]) == {
        0: [[0, 5, 6, 1], [-100, -100, 6, 1], [0, 1, 2, 0]],
        1: [[0, 7, 8, 1], [-100, 7, -100, -100], [0, 3, 4, 0]],
    }


def test_a_mask_becomes_labels_and_a_row_without_loss_is_dropped_and_counted(
    tmp_path: Path,
) -> None:
    rows: list[dict[str, Any]] = [
        {"ids": [5, 6, 7], "m": [0, 1, 1]},
        {"ids": [5, 6], "m": [0, 0]},
        {"ids": [5, 6], "m": [True, False]},
    ]
    source = tmp_path / "rows.parquet"
    pq.write_table(
        pa.table(
            {"ids": [row["ids"] for row in rows], "m": [[int(v) for v in row["m"]] for row in rows]}
        ),
        source,
    )
    out = tmp_path / "out"
    manifest = build(
        BuildConfig(
            sources=(str(source),), output=str(out), vocab_size=9, loss_mask_column="m", **IDS
        )
    )
    assert segments(out, ["labels"]) == {0: [[5, 6, 7], [-100, 6, 7]]}
    assert manifest.ledger["dropped"] == {"few_loss_tokens": 4}
    report = json.loads((out / "report.json").read_bytes())
    assert (report["loss_tokens"], report["loss_utilization"]) == (2, 2 / 4096)
    assert report["documents"]["dropped"] == {"few_loss_tokens": 2}


def test_the_command_names_file_and_row_of_a_bad_value_and_skips_it_when_asked(
    tmp_path: Path,
) -> None:
    rows = [
        {"ids": [5], "reward": 0.5},
        {"ids": [99], "reward": 1.5},
        {"ids": [6], "reward": float("nan")},
    ]
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    arguments = (
        "build",
        source,
        "-o",
        tmp_path / "out",
        "--input-ids-column",
        "ids",
        "--vocab-size",
        50,
        "-q",
    )
    found = run(*arguments, "--carry", "reward")
    assert found.code == 2
    assert "rows.jsonl row 1 (line 2): 'ids' has 99 at 0, expected 0 to 49" in found.err
    assert run(*arguments, "--carry", "reward", "--on-error", "skip").code == 0
    report = json.loads((tmp_path / "out" / "report.json").read_bytes())
    assert report["documents"]["skipped"] == {"bad_carry": 1, "bad_ids": 1}
    assert segments(tmp_path / "out", ["reward"]) == {0: [[5], 0.5]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "token ids are checked against a vocabulary; give --vocab-size or --tokenizer"),
        (
            {"vocab_size": 9, "bos": "<s>"},
            "--bos and --eos name tokens of a tokenizer; give --tokenizer too",
        ),
        (
            {"vocab_size": 9, "carry": "tokens"},
            "carry 'tokens' is a column name that packprep uses; rename the column",
        ),
        (
            {"vocab_size": 9, "carry": "labels"},
            "carry 'labels' is a column name that packprep uses; give --labels-column",
        ),
        (
            {"vocab_size": 9, "carry": "x:int9"},
            "carry 'x:int9' has the type 'int9'; did you mean 'int",
        ),
        ({"vocab_size": 9, "carry": "x,x"}, "carry names 'x' twice; give it once"),
        (
            {"vocab_size": 9, "carry": "my column"},
            "carry 'my column' cannot be the name of a column in a shard",
        ),
        (
            {"vocab_size": 9, "truncate_at": "END"},
            "truncate_at is for text and has no meaning for rows of token ids",
        ),
        (
            {"vocab_size": 9, "carry": "word"},
            "has string in 'word' in its first rows, expected numbers or lists of numbers",
        ),
        (
            {"vocab_size": 9, "carry": "nothing"},
            "has no column 'nothing'; it has ids, word: choose with the option that",
        ),
        (
            {"vocab_size": 9, "labels_column": "l"},
            "has no column 'l'; it has ids, word: choose with the option that",
        ),
    ],
)
def test_options_that_cannot_work_are_a_sentence(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    source = write_jsonl(tmp_path / "rows.jsonl", [{"ids": [5], "word": "a"}])
    with pytest.raises((ConfigError, InputError)) as caught:
        build(BuildConfig(sources=(str(source),), output=str(tmp_path / "out"), **IDS, **options))
    assert message in str(caught.value)


def test_a_number_of_each_row_is_carried_beside_text_too(tmp_path: Path) -> None:
    rows = [{"text": "a cat", "weight": 1}, {"text": "the dog sat", "weight": 0.25}]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    (tmp_path / "rows.csv").write_text("text,weight\na cat,1\nthe dog sat,0.25\n")
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    for name in ("rows.jsonl", "rows.csv"):
        out = tmp_path / f"out-{name}"
        build(
            BuildConfig(
                sources=(str(tmp_path / name),),
                output=str(out),
                tokenizer=str(tokenizer),
                carry=("weight",),
            )
        )
        assert [weight for _, weight in segments(out, ["weight"]).values()] == [1, 0.25]
    write_jsonl(tmp_path / "lists.jsonl", [{"text": "a", "weight": [1]}])
    config = BuildConfig(
        sources=(str(tmp_path / "lists.jsonl"),),
        output=str(tmp_path / "o"),
        tokenizer=str(tokenizer),
        carry=("weight",),
    )
    with pytest.raises(InputError, match="a value per token needs the tokens it belongs to"):
        build(config)


def test_another_build_of_the_same_rows_reuses_their_tokens_and_columns(tmp_path: Path) -> None:
    source = write_jsonl(
        tmp_path / "rows.jsonl",
        [{"ids": row, "x": [value / 8 for value in row]} for row in ids_of(40)],
    )
    options: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "carry": "x",
        "keep_tokens": str(tmp_path / "store"),
        **IDS,
    }
    found = []
    for name, length in (("a", 16), ("b", 16), ("c", 32)):
        build(
            BuildConfig(
                sources=(str(source),), output=str(tmp_path / name), max_length=length, **options
            )
        )
        found.append(segments(tmp_path / name, ["x"]))
    assert found[0] == found[1] == found[2]
    assert len(list((tmp_path / "store").iterdir())) == 1


def test_pack_dataset_takes_token_ids_labels_and_carried_columns() -> None:
    rows = {"ids": [[5, 6, 7], [8, 9]], "l": [[-100, 6, 7], [8, 9]], "x": [0.5, 1.5]}
    dataset = datasets.Dataset.from_dict(rows)
    options: dict[str, Any] = {
        "labels_column": "l",
        "carry": "x",
        "vocab_size": 10,
        "max_length": 8,
        "order": "input",
        **IDS,
    }
    [row] = pack_dataset(dataset, None, **options)
    assert row["tokens"] == [5, 6, 7, 8, 9]
    assert row["labels"] == [-100, 6, 7, -100, 9]
    assert row["x"] == [0.5, 1.5]
    with_ends = pack_dataset(
        dataset, tiny_tokenizer(), **{**options, "vocab_size": None, "eos": "</s>", "bos": "none"}
    )
    assert with_ends[0]["labels"] == [-100, 6, 7, 1, -100, 9, 1]


def samples(count: int) -> list[dict[str, Any]]:
    """Samples as slime's trainer has them.

    What belongs to tokens has a value for each token of the response.
    """
    numbers = np.random.default_rng(0)
    found = []
    for _ in range(count):
        prompt, response = (int(size) for size in numbers.integers(1, 30, 2))
        float32 = numbers.standard_normal((3, response)).astype(np.float32)
        found.append(
            {
                "tokens": numbers.integers(0, VOCABULARY, prompt + response).tolist(),
                "loss_masks": numbers.integers(0, 2, response).tolist(),
                "advantages": float32[0].tolist(),
                "returns": float32[1].tolist(),
                "rollout_log_probs": float32[2].tolist(),
                "rewards": float(numbers.standard_normal(1).astype(np.float32)[0]),
                "response_lengths": response,
            }
        )
    return found


def test_samples_of_reinforcement_learning_come_back_exactly_as_slime_packs_and_unpacks_them(
    tmp_path: Path,
) -> None:
    given = samples(60)
    per_token = ("loss_masks", "advantages", "returns", "rollout_log_probs")
    rows = []
    for sample in given:
        prompt = len(sample["tokens"]) - sample["response_lengths"]
        before = {
            name: [0] * prompt + sample[name] for name in per_token
        }  # a value for each token of the prompt too
        rows.append({**sample, **before})
    source = write_jsonl(tmp_path / "rollouts.jsonl", rows)
    carry = ("loss_masks:int8", *per_token[1:], "rewards", "response_lengths")
    config = BuildConfig(
        sources=(str(source),),
        output=str(tmp_path / "out"),
        input_ids_column="tokens",
        vocab_size=VOCABULARY,
        carry=carry,
        max_length=128,
        pad_segment_to_multiple=4,
    )
    build(config)
    loader = PackedLoader(
        PackedShards(tmp_path / "out", verify=True),
        2,
        columns=[*per_token, "rewards", "response_lengths"],
        remainder="fill",
    )
    found: dict[int, dict[str, Any]] = {}
    for batch in loader:
        real = batch.document_ids >= 0
        ids = batch.document_ids[real].tolist()
        parts = {"tokens": unpack(batch.tokens, batch)} | {
            name: unpack(batch.extra[name], batch) for name in per_token
        }
        for place, row in enumerate(ids):
            length = int(batch.extra["response_lengths"][real][place])
            found[row] = {
                name: values[place][-length:].tolist()
                for name, values in parts.items()
                if name != "tokens"
            }
            found[row]["tokens"] = parts["tokens"][place].tolist()
            found[row]["rewards"] = batch.extra["rewards"][real][place].item()
            found[row]["response_lengths"] = length
    assert [found[row] for row in range(len(given))] == given
