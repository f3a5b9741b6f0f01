"""Sources in S3 make the bytes that the same files make on a disk.

One that is replaced is noticed.
"""

import gzip
import json
import re
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import zstandard

from packprep import build
from packprep.execute import work
from packprep.execute.pipeline import build_share, of_build
from packprep.preview.estimate import estimate
from packprep.schemas import Manifest
from packprep.schemas.storage.stores import Store
from packprep.sources import remote
from packprep.sources.digests import remembered
from packprep.sources.formats import raw_files
from packprep.sources.resolve import resolve
from packprep.support.errors import InputError
from tests.helpers import command
from tests.helpers.corpus import resolved, rows_in, save_tokenizer, texts, write_jsonl
from tests.helpers.errors import refused
from tests.helpers.files import config
from tests.helpers.store_servers import Tap
from tests.helpers.token_files import write_datatrove, write_dolma, write_megatron

LONG = pytest.mark.long


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
    sizes = {"max_length": 64, "num_proc": 1, "unit_size": 5_000, "window": 15_000}
    return {"tokenizer": str(save_tokenizer(tmp_path / "tokenizer")), "engine": "hf", **sizes}


@pytest.fixture
def url(
    bucket: str, data: Path, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The same files in a bucket; the working directory holds them as data/."""
    store.put(f"{data}/", f"{bucket}/data/", recursive=True)
    monkeypatch.chdir(tmp_path)
    return bucket


def built(sources: Any, output: str, **options: Any) -> Manifest:
    return build(config(sources=sources, output=output, **options))


def same_bytes(url: str, name: str, **options: Any) -> bool:
    """Build from this name here and in the store, and compare the manifests."""
    here, there = built(name, "here", **options), built(f"{url}/{name}", "there", **options)
    paths = [f"{url}/{path}" for path in here.run["source_paths"]]
    return there.data == here.data and there.run["source_paths"] == paths


@pytest.mark.parametrize("name", ["x.idx", "x", "", "*", "y.npy"])
def test_token_files_in_s3_make_the_bytes_of_the_same_files_here(
    bucket: str, store: Any, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    documents = [[number] * (number % 7) for number in range(90)]
    write_megatron(tmp_path / "tokens", documents)
    write_dolma(tmp_path / "tokens", documents, name="y")
    write_datatrove(tmp_path / "tokens", documents, name="z")
    store.put(f"{tmp_path}/tokens/", f"{bucket}/tokens/", recursive=True)
    ids = {"vocab_size": 90, "max_length": 64, "input_ids_column": "input_ids"}
    assert same_bytes(bucket, f"tokens/{name}", **ids)


def test_a_token_file_in_s3_that_is_replaced_while_it_is_built_from_is_refused(
    bucket: str, store: Any, tmp_path: Path
) -> None:
    write_megatron(tmp_path / "old", [[1, 2], [3]])
    write_megatron(tmp_path / "new", [[1], [2, 3]])
    store.put(f"{tmp_path}/old/", f"{bucket}/tokens/", recursive=True)
    options = config(sources=f"{bucket}/tokens/x.bin", vocab_size=9)
    (source,) = resolved(options, tmp_path)
    store.put(f"{tmp_path}/new/", f"{bucket}/tokens/", recursive=True)
    with refused(InputError, "has changed since the build began", "it was replaced"):
        list(rows_in(source, options, tmp_path))


@LONG
def test_a_saved_dataset_in_s3_is_read_as_one_here(
    bucket: str,
    store: Any,
    tmp_path: Path,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = datasets.Dataset.from_dict({"text": texts(70, seed=4)})
    saved = datasets.DatasetDict({"train": rows, "test": rows.select(range(5))})
    saved.save_to_disk("saved", num_shards={"train": 2, "test": 1})
    store.put("saved/", f"{bucket}/saved/", recursive=True)
    own = options | {"split": "train"}
    here, there = built("saved", "here", **own), built(f"{bucket}/saved", "there", **own)
    assert there.data == here.data
    with refused(InputError, f"several splits; name the folder of one: {bucket}/saved/test"):
        built(f"{bucket}/saved", "no", **options)
    remote_files = Store(f"{bucket}/saved")
    remote_files.delete([name for name in remote_files.list() if "-of-00002.arrow" in name])
    with refused(InputError, "saved is incomplete", "arrow is missing"):
        built(f"{bucket}/saved", "no", **own)


@LONG
def test_tasks_of_an_array_read_sources_in_s3(
    url: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packprep.execute.places._BEGINS_EVERY", 500)
    here = built("data", "here", **options)
    there = options | {"sources": f"{url}/data", "output": f"{url}/data/packed"}
    for index in ("1", "0"):
        build_share(config(**there, part=f"{index}/2"))
    for _ in range(2):  # the output is none of its sources
        assert build(config(**there, part="merge")).data == here.data


def test_an_object_is_read_for_its_digest_once(
    url: str, options: dict[str, Any], tmp_path: Path
) -> None:
    def found() -> Any:
        with remembered(tmp_path / "digests.json"):
            return resolved(config(sources=f"{url}/data", **options), tmp_path)

    with mock.patch.object(remote, "opened", wraps=raw_files.opened) as opened:
        first = found()
        assert found() == first
        assert opened.call_count == len(first) == 11
        Store(url).write("data/a.jsonl", b'{"text": "another"}\n')
        assert found()[1:] == first[1:]
    assert [call.args[0] for call in opened.mock_calls[11:]] == [f"{url}/data/a.jsonl"]


@pytest.mark.parametrize("name", ["a.jsonl", "d.parquet"])
@pytest.mark.parametrize("change", ["it was replaced by another", "it is gone"])
def test_a_source_that_is_replaced_under_a_build_is_named(
    url: str, name: str, change: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(*arguments: Any) -> Any:
        found = resolve(*arguments)
        if change == "it is gone":
            Store(url).delete([f"data/{name}"])
        else:
            Store(url).write(f"data/{name}", Store(url).read(f"data/{name}") + b"\n")
        return found

    monkeypatch.setattr(work, "resolve", changed)
    with refused(InputError, f"{name} has changed since the build began", change):
        built(f"{url}/data/{name}", "out", **options)
    assert not Path("out").exists()


def test_what_cannot_be_a_source_is_named(url: str, options: dict[str, Any]) -> None:
    for name, content in [
        ("empty/.a.jsonl", b"{}"),
        ("none/a.jsonl", b""),
        ("bad/a.jsonl", b'{"text": "good"}\n{"text": 7}\n'),
        ("bad/b.jsonl.gz", Store(url).read("data/b.jsonl.gz")[:-50]),
    ]:
        Store(url).write(name, content)
    for name, *words in [
        (f"{url}/none.jsonl", "none.jsonl: there is no such object and no such folder"),
        (f"{url}/data/*.tsv", f"no file matches {url}/data/*.tsv"),
        (f"{url}/data/README.md", "README.md has no known format; expected"),
        (f"{url}/empty/", "empty holds no file of a known format; expected"),
        (f"{url}/none/a.jsonl", "none/a.jsonl is empty"),
        ("s3://nobody-has-this/a.jsonl", "nobody-has-this/a.jsonl: there is no such bucket"),
        ("s3://key:secret@bucket/a.jsonl", "s3://***@bucket/a.jsonl holds credentials"),
        ("https://example.org/a.jsonl", "is an address; packprep reads files"),
        ("foo://bucket/a.jsonl", "it is not the address of a store", "foo"),
        (f"{url}/bad/a.jsonl", f"{url}/bad/a.jsonl row 1 (line 2): 'text' is a number"),
        (f"{url}/bad/b.jsonl.gz", "bad/b.jsonl.gz is cut off at byte"),
    ]:
        with refused(InputError, *words):
            built(name, "out", **options)
        assert not [*Path.cwd().glob("out*")] or "/bad/" in name


@LONG
@pytest.mark.usefixtures("new_clients")
def test_a_network_that_goes_away_while_sources_are_read_ends_a_build_that_resumes_later(
    url: str, options: dict[str, Any], tap: Tap
) -> None:
    arguments = ["build", f"{url}/data", "-o", "out", "-q"]
    arguments += [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    tap.cut_at(50)
    ended = command.run(*arguments)
    assert (ended.code, ended.out, ended.err.count("\n")) == (3, "", 1), ended
    assert re.search(r"://.*: the store says: .*so run the same command to resume", ended.err)
    tap.cut = False
    assert command.run(*arguments).code == 0


@pytest.mark.parametrize("sample", [None, 2_000])  # with 2,000, pieces of the files are read
def test_an_estimate_of_sources_in_s3_is_that_of_files_here(
    url: str, options: dict[str, Any], sample: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sample:
        monkeypatch.setattr("packprep.preview.estimate.SAMPLE_BYTES", sample)
    here, there = (
        estimate(of_build(config(sources=name, **options))) for name in ("data", f"{url}/data")
    )
    assert here["prediction"] == there["prediction"]
