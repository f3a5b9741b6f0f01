"""Sources in S3 make the bytes that the same files make on a disk.

One that is replaced is noticed.
"""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import zstandard

from packprep import BuildConfig, build
from packprep.execute import pipeline
from packprep.execute.pipeline import build_share
from packprep.preview.estimate import estimate
from packprep.schemas.storage.stores import Store
from packprep.sources import remote
from packprep.sources.digests import remembered
from packprep.sources.formats import raw_files
from packprep.sources.reading import read_rows
from packprep.sources.resolve import resolve
from packprep.support.errors import InputError
from tests.helpers import command
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.files import config
from tests.helpers.store_servers import StoreServer, Tap
from tests.helpers.token_files import write_datatrove, write_dolma, write_megatron


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Files of every format."""
    folder = tmp_path / "data"
    (folder / "more").mkdir(parents=True)
    plain = write_jsonl(folder / "a.jsonl", texts(60)).read_bytes()
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(plain))
    (folder / "c.jsonl.zst").write_bytes(zstandard.compress(plain))
    table = pa.table({"text": texts(40, seed=3)})
    pq.write_table(table, folder / "d.parquet")
    (folder / "e.parquet.gz").write_bytes(gzip.compress((folder / "d.parquet").read_bytes()))
    with pa.ipc.new_stream(str(folder / "f.arrow"), table.schema) as writer:
        writer.write_table(table)
    pyarrow.csv.write_csv(table, folder / "g.csv")
    (folder / "h.txt").write_text("hello there\n\nagain" * 20)
    (folder / "i.json").write_text(json.dumps([{"text": text} for text in texts(30)]))
    (folder / "k.jsonl.gz").write_bytes(gzip.compress(plain) + bytes(512))  # as tapes pad it
    write_jsonl(folder / "more" / "j.jsonl", texts(20, seed=9))
    write_jsonl(folder / ".hidden.jsonl", ["not this one"])
    (folder / "README.md").write_text("nor this one")
    return folder


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {
        "tokenizer": str(save_tokenizer(tmp_path / "tokenizer")),
        "engine": "hf",
        "max_length": 64,
        "num_proc": 1,
        "unit_size": 5_000,
        "window": 15_000,
    }


@pytest.fixture
def url(
    bucket: str, data: Path, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The same files in a bucket; the working directory holds them as data/."""
    store.put(f"{data}/", f"{bucket}/data/", recursive=True)
    monkeypatch.chdir(tmp_path)
    return bucket


@pytest.mark.parametrize(
    "name", ["data", "data/*.jsonl*", "data/**/*.jsonl", "data/d.parquet", "data/[d-f].*"]
)
def test_sources_in_s3_make_the_bytes_of_the_same_files_here(
    url: str, name: str, options: dict[str, Any]
) -> None:
    here = build(BuildConfig(sources=(name,), output="here", **options))
    there = build(BuildConfig(sources=(f"{url}/{name}",), output="there", **options))
    assert there.data == here.data
    assert there.run["source_paths"] == [f"{url}/{path}" for path in here.run["source_paths"]]
    assert command.run("verify", "there", "--level", "full", "--sample", "20").code == 0


@pytest.mark.parametrize(
    "name", ["tokens/x.bin", "tokens/x.idx", "tokens/x", "tokens/", "tokens/*", "tokens/y.npy"]
)
def test_token_files_in_s3_make_the_bytes_of_the_same_files_here(
    bucket: str, store: Any, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    documents = [[number] * (number % 7) for number in range(90)]
    write_megatron(tmp_path / "tokens", documents)
    write_dolma(tmp_path / "tokens", documents, name="y")
    write_datatrove(tmp_path / "tokens", documents, name="z")
    store.put(f"{tmp_path}/tokens/", f"{bucket}/tokens/", recursive=True)
    options = {"vocab_size": 90, "max_length": 64, "input_ids_column": "input_ids"}
    here = build(config(sources=name, output="here", **options))
    there = build(config(sources=f"{bucket}/{name}", output="there", **options))
    assert there.data == here.data
    assert there.run["source_paths"] == [f"{bucket}/{path}" for path in here.run["source_paths"]]


def test_a_token_file_in_s3_that_is_replaced_while_it_is_built_from_is_an_error(
    bucket: str, store: Any, tmp_path: Path
) -> None:
    for folder, documents in (("old", [[1, 2], [3]]), ("new", [[1], [2, 3]])):
        write_megatron(tmp_path / folder, documents)
    store.put(f"{tmp_path}/old/", f"{bucket}/tokens/", recursive=True)
    options = config(sources=f"{bucket}/tokens/x.bin", vocab_size=9)
    (source,) = resolve(options, tmp_path)
    store.put(f"{tmp_path}/new/", f"{bucket}/tokens/", recursive=True)
    with pytest.raises(InputError, match="has changed since the build began: it was replaced"):
        list(read_rows(source, options, tmp_path))


def test_a_mix_of_sources_in_s3_and_here_has_the_bytes_of_one_here(
    url: str, options: dict[str, Any]
) -> None:
    def mix(first: str, second: str) -> tuple[dict[str, Any], ...]:
        return (
            {"path": [first], "weight": 60},
            {"path": second, "weight": 40, "text_template": "{text}\n"},
        )

    here = build(
        BuildConfig(sources=mix("data/a.jsonl", "data/d.parquet"), output="here", **options)
    )
    there = build(
        BuildConfig(sources=mix(f"{url}/data/a.jsonl", "data/d.parquet"), output="there", **options)
    )
    assert there.data == here.data


@pytest.mark.parametrize("splits", [False, True])
def test_a_saved_dataset_in_s3_is_read_as_one_here(
    bucket: str,
    store: Any,
    tmp_path: Path,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    splits: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = datasets.Dataset.from_dict({"text": texts(70, seed=4)})
    saved = datasets.DatasetDict({"train": rows, "test": rows.select(range(5))}) if splits else rows
    saved.save_to_disk(
        "saved", **({"num_shards": {"train": 2, "test": 1}} if splits else {"num_shards": 2})
    )
    store.put("saved/", f"{bucket}/saved/", recursive=True)
    own = options | ({"split": "train"} if splits else {})
    here = build(BuildConfig(sources=("saved",), output="here", **own))
    assert build(BuildConfig(sources=(f"{bucket}/saved",), output="there", **own)).data == here.data
    if splits:
        with pytest.raises(InputError, match="has several splits; choose --split from test, train"):
            build(BuildConfig(sources=(f"{bucket}/saved",), output="no", **options))
    Store(f"{bucket}/saved").delete(
        [name for name in Store(f"{bucket}/saved").list() if name.endswith("-of-00002.arrow")]
    )
    with pytest.raises(InputError, match=r"saved is incomplete: .*arrow is missing"):
        build(BuildConfig(sources=(f"{bucket}/saved",), output="no", **own))


@pytest.mark.parametrize("every", [64 << 20, 500])
def test_tasks_of_an_array_read_sources_in_s3(
    url: str, options: dict[str, Any], every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packprep.execute.places._BEGINS_EVERY", every)
    here = build(BuildConfig(sources=("data",), output="here", **options))
    there = options | {
        "sources": (f"{url}/data",),
        "output": f"{url}/data/packed",
        "executor": "array",
        "num_tasks": 2,
    }
    for index in ("1", "0"):
        build_share(BuildConfig(**there, task_index=index))
    assert build(BuildConfig(**there, task_index="merge")).data == here.data
    assert build(BuildConfig(**there, task_index="merge")).data == here.data, (
        "the output is none of its sources"
    )


def test_an_object_is_read_for_its_digest_once(
    url: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BuildConfig(sources=(f"{url}/data",), **options)
    read: list[str] = []
    opened = raw_files.opened

    def counted(name: str, version: str) -> Any:
        read.append(name)
        return opened(name, version)

    monkeypatch.setattr(remote, "opened", counted)
    with remembered(tmp_path / "digests.json"):
        first = resolve(config, tmp_path)
    assert len(read) == len(first) == 11
    with remembered(tmp_path / "digests.json"):
        assert resolve(config, tmp_path) == first
    assert len(read) == 11
    Store(url).write("data/a.jsonl", b'{"text": "another"}\n')
    with remembered(tmp_path / "digests.json"):
        assert resolve(config, tmp_path)[1:] == first[1:]
    assert read[11:] == [f"{url}/data/a.jsonl"]


@pytest.mark.parametrize("name", ["a.jsonl", "d.parquet"])
def test_a_source_that_is_replaced_under_a_build_is_named(
    url: str, name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaced(*arguments: Any) -> Any:
        found = resolve(*arguments)
        Store(url).write(f"data/{name}", Store(url).read(f"data/{name}") + b"\n")
        return found

    def gone(*arguments: Any) -> Any:
        found = resolve(*arguments)
        Store(url).delete([f"data/{name}"])
        return found

    config = BuildConfig(sources=(f"{url}/data/{name}",), output="out", **options)
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "resolve", replaced)
        with pytest.raises(
            InputError,
            match=rf"{name} has changed since the build began: it was replaced by another",
        ):
            build(config)
        patch.setattr(pipeline, "resolve", gone)
        with pytest.raises(
            InputError, match=rf"{name} has changed since the build began: it is gone"
        ):
            build(config)
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "{}/none.jsonl",
            r"none.jsonl: there is no such object and no such folder; check the address",
        ),
        ("{}/data/*.tsv", r"no file matches [a-z0-9]+://.*/data/\*.tsv; check the pattern"),
        ("{}/data/README.md", r"README.md has no known format; expected"),
        ("{}/empty/", r"empty holds no file of a known format; expected"),
        ("{}/empty/a.jsonl", r"empty/a.jsonl is empty; expected at least one document"),
        (
            "s3://nobody-has-this/a.jsonl",
            r"nobody-has-this/a.jsonl: there is no such bucket; check the address",
        ),
        (
            "s3://key:secret@bucket/a.jsonl",
            r"s3://\*\*\*@bucket/a.jsonl holds credentials; put them into",
        ),
        (
            "https://example.org/a.jsonl",
            r"is an address; packprep reads files, so download it first",
        ),
        (
            "foo://bucket/a.jsonl",
            r"it is not the address of a store: Protocol not known: foo; check the address",
        ),
    ],
)
def test_a_source_that_is_none_is_named(
    url: str, name: str, message: str, options: dict[str, Any]
) -> None:
    Store(url).write("empty/.a.jsonl", b"{}")
    if name.endswith("empty/a.jsonl"):
        Store(url).write("empty/a.jsonl", b"")
    with pytest.raises(InputError, match=message):
        build(BuildConfig(sources=(name.format(url),), output="out", **options))
    assert not [path for path in Path.cwd().iterdir() if path.name.startswith("out")]


def test_bad_rows_and_damage_are_named_as_in_files_here(url: str, options: dict[str, Any]) -> None:
    Store(url).write("bad/a.jsonl", b'{"text": "good"}\n{"text": 7}\n')
    Store(url).write("bad/b.jsonl.gz", Store(url).read("data/b.jsonl.gz")[:-50])
    with pytest.raises(
        InputError,
        match=r"[a-z0-9]+://.*/bad/a.jsonl row 1 .line 2.: 'text' is a number, expected text",
    ):
        build(BuildConfig(sources=(f"{url}/bad/a.jsonl",), output="out", **options))
    with pytest.raises(
        InputError,
        match=r"bad/b.jsonl.gz is cut off at byte [0-9,]+: the compressed data ends early",
    ):
        build(BuildConfig(sources=(f"{url}/bad/b.jsonl.gz",), output="out", **options))


@pytest.mark.usefixtures("new_clients")
def test_a_network_that_goes_away_while_sources_are_read_ends_a_build_that_goes_on_later(
    url: str,
    options: dict[str, Any],
    store_server: StoreServer,
    store_environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tap = Tap(store_environment)
    for name, value in tap.environment.items():
        monkeypatch.setenv(name, value)
    store_server.give_up_at_once(monkeypatch)
    arguments = ["build", f"{url}/data", "-o", "out", "-q"]
    arguments += [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    tap.cut_at(50)
    ended = command.run(*arguments)
    assert (ended.code, ended.out, ended.err.count("\n")) == (3, "", 1), ended
    assert re.search(
        r"[a-z0-9]+://.*: the store says: .*so run the same command to resume", ended.err
    )
    tap.cut = False
    assert command.run(*arguments).code == 0
    tap.close()


def test_an_estimate_of_sources_in_s3_is_that_of_files_here(
    url: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    predicted = [
        estimate(BuildConfig(sources=(name,), **options))["prediction"]
        for name in ("data", f"{url}/data")
    ]
    assert predicted[0] == predicted[1]
    monkeypatch.setattr(
        "packprep.preview.estimate.SAMPLE_BYTES", 2_000
    )  # so that pieces of the files are read
    predicted = [
        estimate(BuildConfig(sources=(name,), **options))["prediction"]
        for name in ("data", f"{url}/data")
    ]
    assert predicted[0] == predicted[1]
