"""What a build reads, names and refuses, through its command line."""

import gzip
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from packprep import BuildConfig, ConfigError, InputError, pack, tokenize
from packprep import build as build_
from packprep.cli.main import main
from tests.helpers.corpus import save_tokenizer, write_jsonl
from tests.helpers.errors import refused
from tests.helpers.token_files import write_npy


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return folder


def build(folder: Path, tokenizer: Path, *arguments: object) -> int:
    """Build into `folder`/out; returns the exit code."""
    common = ["-o", folder / "out", "--tokenizer", tokenizer, "--max-length", 16]
    given = ["packprep", "build", *map(str, (*arguments, *common))]
    with mock.patch.object(sys, "argv", given):
        try:
            main()
        except SystemExit as stopped:
            return int(stopped.code or 0)
    return 0


def test_columns_that_are_not_read_are_named_once_with_their_sources(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_jsonl(tmp_path / "a.jsonl", [{"text": "a", "id": 1, "stars": 2}] * 3)
    second = write_jsonl(tmp_path / "b.jsonl", [{"stars": 1, "text": "b", "url": "x"}] * 3)
    (tmp_path / "c.csv").write_text("id,text,stars\n1,c,3\n")
    rows = datasets.Dataset.from_dict({"text": ["d"], "extra": [1], "stars": [1]})
    rows.to_parquet(third := tmp_path / "d.parquet")
    assert build(tmp_path, tokenizer, first, second, third, "--carry", "stars") == 0
    assert "not read: columns extra, id, url\n" in capsys.readouterr().err
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["not_read"] == {"columns": {"extra": 1, "id": 1, "url": 1}}
    (tmp_path / "e.jsonl.xz").write_bytes(b"x")
    assert build(tmp_path, tokenizer, tmp_path, "--overwrite") == 0
    said = capsys.readouterr().err
    assert "not read, as of no known format: e.jsonl.xz\n" in said
    assert "not read: columns extra, id, stars, url\n" in said


def test_a_bad_row_that_is_skipped_leaves_the_labels_of_its_neighbours(
    tmp_path: Path, tokenizer: Path
) -> None:
    good = {"ids": [5, 6, 7], "labels": [-100, 6, 7], "weight": [1, 2, 3]}
    bad: list[dict[str, Any]] = [
        {"labels": [6]},
        {"ids": [5, 6.5, 7]},
        {"weight": [1]},
        {"labels": [-100, 7, 7]},
    ]
    rows = [good, *({**good, **each} for each in bad), good]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    arguments = ("--ids", "ids,labels", "--carry", "weight", "--on-error", "skip", "-q")
    assert build(tmp_path, tokenizer, path, *arguments) == 0
    packs = datasets.load_from_disk(str(tmp_path / "out"))
    assert [packs[0][name] for name in ("tokens", "labels", "weight")] == [
        good[name] * 2 for name in ("ids", "labels", "weight")
    ]


def test_a_value_is_judged_alike_in_every_format(tmp_path: Path, tokenizer: Path) -> None:
    ids = [[5, 6], [5, 10**6], None, [5, None], [7.0], [8], [9]]
    weights = [1, 1, 1, 1, 1, 300, None]
    rows = [{"ids": each, "w": weight} for each, weight in zip(ids, weights, strict=True)]
    write_jsonl(tmp_path / "a.jsonl", rows)
    (tmp_path / "a.json").write_text(json.dumps(rows))
    table = {"ids": pa.array(ids, pa.list_(pa.float64())), "w": weights}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.json", "a.parquet"):
        options = ("--ids", "ids", "--carry", "w:int8", "--on-error", "skip", "--overwrite", "-q")
        assert build(tmp_path, tokenizer, tmp_path / name, *options) == 0
        report = json.loads((tmp_path / "out/report.json").read_text())
        assert report["documents"]["skipped"] == {"bad_ids": 2, "null": 2, "bad_carry": 1}
        pack = datasets.load_from_disk(str(tmp_path / "out"))[0]
        assert sorted(pack["tokens"]) == [5, 6, 7]
        assert pack["w"] == [1, 1]
    file = write_jsonl(tmp_path / "a.jsonl", [{"text": "a", "w": 2**63 + n} for n in range(3)])
    assert build(tmp_path, tokenizer, file, "--group", "w", "--overwrite", "-q") == 0
    assert len(datasets.load_from_disk(str(tmp_path / "out"))) == 3


def test_labels_beside_ids_that_nobody_named_are_refused(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"input_ids": [5, 6], "labels": [-100, 6]}])
    assert build(tmp_path, tokenizer, path, "--ids", "input_ids") == 2
    assert "--ids input_ids,labels" in capsys.readouterr().err
    assert build(tmp_path, tokenizer, path, "--ids", "input_ids,labels", "-q") == 0
    write_jsonl(tmp_path / "0.jsonl", [{"input_ids": [5]}])
    assert build(tmp_path, tokenizer, tmp_path, "--ids", "input_ids", "--overwrite") == 2
    assert "a.jsonl has 'labels' beside its token ids" in capsys.readouterr().err


@pytest.mark.parametrize("as_parquet", [False, True])
def test_padding_beside_ids_is_refused_and_a_mask_of_ones_is_not_named(
    as_parquet: bool, tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, mask, code in (("ones", [1, 1], 0), ("padded", [1, 0], 2)):
        rows = [{"ids": [5, 6, 7], "attention_mask": [1, *mask]}, {"ids": [5]}]
        path = write_jsonl(tmp_path / f"{name}.jsonl", rows)
        if as_parquet:
            path = path.with_suffix(".parquet")
            pq.write_table(pa.Table.from_pylist(rows), path)
        assert build(tmp_path, tokenizer, path, "--ids", "ids", "--overwrite") == code
        said = capsys.readouterr().err
        assert "not read" not in said
    assert "row 0" in said
    assert "'attention_mask' has 0 at 2, expected only 1" in said


@pytest.mark.parametrize("option", ["text", "ids", "pieces", "pairs", "messages", "carry", "group"])
def test_a_missing_column_is_named_with_those_that_are_there_and_its_option(
    option: str, tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, template = write_jsonl(tmp_path / "a.jsonl", [{"text": "a"}]), tmp_path / "t.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}</s>{% endfor %}")
    columns = "no,other" if option == "pairs" else "no"
    more = ["--chat-template", template] if option == "messages" else []
    assert build(tmp_path, tokenizer, path, f"--{option}", columns, *more) == 2
    expected = f"a.jsonl has no column 'no'; it has text; name one with --{option}\n"
    assert capsys.readouterr().err.endswith(expected)


@pytest.mark.parametrize("name", ["p.parquet.gz", "p.arrow.zst", "p.bin.gz"])
def test_files_that_are_read_at_many_places_are_not_compressed(
    name: str, tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"PAR1"))
    assert build(tmp_path, tokenizer, tmp_path / name) == 2
    assert capsys.readouterr().err.endswith("of text also .gz and .zst: uncompress others\n")


@pytest.mark.parametrize("name", ["row", "part", "labels", "tokens"])
def test_a_carried_column_has_no_name_of_the_build(
    name: str, tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "a", name: 5}] * 2)
    assert build(tmp_path, tokenizer, path, "--carry", name) == 2
    assert repr(name) in capsys.readouterr().err


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("how", ["folder", "glob", "names"])
@pytest.mark.parametrize("ending", ["parquet", "jsonl.gz", "arrow"])
def test_a_file_without_rows_among_others_is_passed_over(
    tmp_path: Path, tokenizer: Path, ending: str, how: str, place: int
) -> None:
    types: Any = {"text": pa.string(), "other": pa.int64()}
    schema = pa.schema(types)
    for number in range(3):
        rows = [] if number == place else [{"text": f"words {number}", "other": 1}]
        path = tmp_path / "in" / f"{number}.{ending}"
        path.parent.mkdir(exist_ok=True)
        if ending == "jsonl.gz":
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            path.write_bytes(gzip.compress(lines.encode()))
        elif ending == "parquet":
            pq.write_table(pa.Table.from_pylist(rows, schema), path)
        else:
            with pa.ipc.new_stream(str(path), schema) as stream:
                stream.write_table(pa.Table.from_pylist(rows, schema))
    folder = tmp_path / "in"
    names = {"folder": [folder], "glob": [folder / "*"], "names": sorted(folder.iterdir())}
    assert build(tmp_path, tokenizer, *names[how]) == 0
    assert json.loads((tmp_path / "out" / "report.json").read_bytes())["documents"]["in"] == 2


def test_of_many_files_each_has_its_own_rows(tmp_path: Path) -> None:
    names = [
        str(write_jsonl(tmp_path / f"{n}.jsonl", [{"ids": [n] * n}] * n)) for n in range(1, 13)
    ]
    options: dict[str, Any] = {"ids": "ids", "tokenizer": 13, "output": str(tmp_path / "out")}
    out = build_(BuildConfig(sources=names, **options))
    sources = json.loads(out.files.read("report.json"))["sources"]
    assert [each["tokens"]["tokens_in"] for each in sources] == [n * n for n in range(1, 13)]


def test_the_same_bytes_under_another_ending_are_another_input(
    tmp_path: Path, tokenizer: Path
) -> None:
    for ending, code in (("csv", 0), ("tsv", 2)):  # the output is of another input
        (tmp_path / f"a.{ending}").write_text("text,b\ttext\n1,2\t3\n")
        assert build(tmp_path, tokenizer, tmp_path / f"a.{ending}") == code


@pytest.mark.parametrize("dtype", ["?", "u1", "i4"])
def test_a_mask_beside_token_ids_may_be_of_any_type(dtype: str, tmp_path: Path) -> None:
    write_npy(tmp_path / "in", [[1, 2, 3, 4, 5], [6, 7, 8, 9]])
    np.save(tmp_path / "in/x.label_mask.npy", (np.arange(9) % 4 > 0).astype(dtype))
    options: dict[str, Any] = {"ids": "input_ids,loss_mask:mask", "output": str(tmp_path / "out")}
    build_(BuildConfig(sources=[str(tmp_path / "in")], tokenizer=10, **options))
    labels = datasets.load_from_disk(options["output"]).to_dict()["labels"]
    assert {label for row in labels for label in row} == {-100, 2, 3, 4, 7, 8}


def test_stores_with_pairs_and_without_are_not_packed_together(tmp_path: Path) -> None:
    path = str(write_jsonl(tmp_path / "a.jsonl", [{"ids": [1, 2], "b": [3]}]))
    stores = [str(tmp_path / "one"), str(tmp_path / "two")]
    tokenize(BuildConfig(sources=[path], ids="ids", tokenizer=9, store=stores[0]))
    tokenize(BuildConfig(sources=[path], ids="auto", pairs="ids,b", tokenizer=9, store=stores[1]))
    for order in (1, -1):
        with refused(ConfigError, "only some of the stores have pairs"):
            pack(BuildConfig(sources=stores[::order], output=str(tmp_path / "out")))


def test_a_saved_dataset_of_several_files_is_one_source(tmp_path: Path, tokenizer: Path) -> None:
    rows = datasets.Dataset.from_dict({"text": [f"text {n}" for n in range(9)]})
    rows.save_to_disk(tmp_path / "saved", num_shards=3)
    assert build(tmp_path, tokenizer, tmp_path / "saved", "-q") == 0
    sources = json.loads((tmp_path / "out/report.json").read_text())["sources"]
    assert [(each["name"], each["rows"]) for each in sources] == [(str(tmp_path / "saved"), 9)]


def test_splits_of_a_saved_dataset_are_chosen_like_those_of_a_folder(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = datasets.Dataset.from_dict({"text": ["a", "b"]})
    saved = tmp_path / "saved"
    datasets.DatasetDict({"train": rows, "test": rows, "other": rows}).save_to_disk(saved)
    assert build(tmp_path, tokenizer, saved) == 2
    assert f"{saved}#train+other+test" in capsys.readouterr().err
    for name in (f"{saved}#other+no", f"{saved}/test#train"):
        assert build(tmp_path, tokenizer, name) == 2
    assert build(tmp_path, tokenizer, f"{saved}#other+train", "-q") == 0
    sources = json.loads((tmp_path / "out/report.json").read_text())["sources"]
    assert [each["name"] for each in sources] == [f"{saved}/other", f"{saved}/train"]
    for name in ("rest.txt", "testing.txt", "wiki.train.txt"):
        (tmp_path / name).write_text(name)
    assert build(tmp_path, tokenizer, tmp_path / "*.txt") == 2
    assert "*.txt has files of splits train, test; name one" in capsys.readouterr().err
    assert build(tmp_path, tokenizer, f"{tmp_path}/*.txt#train", "--overwrite") == 0
    assert "documents           2\n" in capsys.readouterr().out


@pytest.mark.parametrize("value", ["a", "\ud800", ["\ud800"], {"a": 1}, 2**70])
def test_a_carried_column_that_has_no_numbers_is_refused(
    value: Any, tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "a", "stars": value}] * 2)
    assert build(tmp_path, tokenizer, path, "--carry", "stars") == 2
    assert "'stars'" in capsys.readouterr().err


@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.parametrize("damage", [lambda all_: all_[:-5], lambda all_: all_ + b"more"])
def test_a_damaged_compressed_file_is_refused_and_two_frames_are_one_text(
    ending: str, damage: Any, tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compress: Any = {".gz": gzip.compress, ".zst": zstandard.compress}[ending]
    frames = compress(b'{"text": "a"}\n{"te') + compress(b'xt": "b"}\n')
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(damage(frames))
    assert build(tmp_path, tokenizer, path) == 2
    assert f"{path.name} does not decompress by byte" in capsys.readouterr().err
    path.write_bytes(frames)
    assert build(tmp_path, tokenizer, path) == 0


def test_a_wide_window_of_zstandard_is_refused_with_the_command_that_unpacks_it(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = zstandard.ZstdCompressionParameters(window_log=29)
    with (
        (tmp_path / "a.jsonl.zst").open("wb") as file,
        zstandard.ZstdCompressor(compression_params=wide).stream_writer(file) as writer,
    ):
        writer.write(b'{"text": "a"}\n' * 20)
    assert build(tmp_path, tokenizer, tmp_path / "a.jsonl.zst") == 2
    assert "zstd -d --long=31" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("one", "other", "column"),
    [
        ({"n": 3}, {"n": 0.5}, "n"),
        ({"n": [1, 2]}, {"n": [0.5, 1]}, "n"),
        ({"n": 3}, {"n": [1, 2]}, "n"),
        ({}, {"labels": [-100, 2]}, "labels"),
        ({"labels": [-100, 2]}, {}, "labels"),
    ],
)
def test_columns_of_two_sources_are_never_read_as_each_other_and_no_labels_are_lost(
    one: dict[str, Any],
    other: dict[str, Any],
    column: str,
    tmp_path: Path,
) -> None:
    carry: dict[str, Any] = {"carry": ["n"]} if column == "n" else {}
    entries, stores = list[dict[str, str]](), list[str]()
    for name, row in (("one", one), ("other", other)):
        source = str(write_jsonl(tmp_path / f"{name}.jsonl", [{"ids": [1, 2], **row}] * 3))
        entries.append({"path": source, "ids": "ids,labels" if "labels" in row else "ids"})
        stores.append(str(tmp_path / name))
        each: dict[str, Any] = {"sources": [source], "ids": entries[-1]["ids"], **carry}
        tokenize(BuildConfig(**each, tokenizer=9, store=stores[-1]))
    out, size = str(tmp_path / "out"), 8
    with refused(InputError, "one.jsonl and", "other.jsonl differ", repr(column)):
        pack(BuildConfig(sources=stores, output=out, max_length=size))
    with refused(InputError, "one.jsonl and", "other.jsonl differ", repr(column)):
        build_(
            BuildConfig(
                sources=entries, ids="ids", tokenizer=9, output=out, max_length=size, **carry
            )
        )
