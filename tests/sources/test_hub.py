"""Files of a hub of this machine as sources, read by the hub's own file system."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packprep.loaders import PackedShards
from tests.helpers.command import run
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.errors import assert_says
from tests.helpers.hub import Hub, connect, running

ROOT = "hf://datasets/user/texts"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A repository with the same 60 documents as JSON lines, in two files and as Parquet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    save_tokenizer(tmp_path / "tok")
    lines = write_jsonl(tmp_path / "a.jsonl", texts(60)).read_bytes().splitlines(keepends=True)
    pq.write_table(pa.table({"text": texts(60)}), tmp_path / "a.parquet")
    with running() as hub:
        connect(hub, monkeypatch)
        hub.create("user/texts")
        files = {
            "a.jsonl": b"".join(lines),
            "parts/0.jsonl.gz": gzip.compress(b"".join(lines[:30])),
            "parts/1.jsonl.gz": gzip.compress(b"".join(lines[30:])),
            "a.parquet": (tmp_path / "a.parquet").read_bytes(),
        }
        hub.commit("user/texts", files)
        hub.buckets["user/bucket"] = {f"texts/{name}": content for name, content in files.items()}
        yield hub


def tokens(here: Path, source: str) -> list[list[int]]:
    """Packs of a build of one source, in input order."""
    result = run(
        *("build", source, "-o", here / "out", "--tokenizer", here / "tok", "--overwrite"),
        *("--max-length", 256, "--order", "input", "-q"),
    )
    assert (result.code, result.err) == (0, "")
    return [pack.tokens.tolist() for pack in PackedShards(here / "out")]


@pytest.mark.parametrize("root", [ROOT, "hf://buckets/user/bucket/texts"])
def test_a_build_of_files_of_the_hub_or_a_bucket_is_that_of_their_copies(
    hub: Hub, tmp_path: Path, root: str
) -> None:
    expected = tokens(tmp_path, str(tmp_path / "a.jsonl"))
    for source in ("a.jsonl", "parts/*.jsonl.gz", "parts", "a.parquet", "parts/**/*.gz"):
        assert tokens(tmp_path, f"{root}/{source}") == expected, source


def test_a_commit_in_the_address_is_the_revision_that_is_read(hub: Hub, tmp_path: Path) -> None:
    before = hub.branches["user/texts"]["main"][-1]
    expected = tokens(tmp_path, f"{ROOT}/a.jsonl")
    line = json.dumps({"text": "something else"}).encode()
    hub.commit("user/texts", {"a.jsonl": line})
    assert tokens(tmp_path, f"{ROOT}@{before}/a.jsonl") == expected
    assert tokens(tmp_path, f"{ROOT}/a.jsonl") != expected


def refusal(here: Path, source: object, output: object) -> str:
    """Sentence of a build that is refused."""
    result = run("build", source, "-o", output, "--tokenizer", here / "tok", "-q")
    assert (result.code, result.out) == (2, "")
    return result.err


def test_what_is_missing_or_gated_or_an_output_is_refused(hub: Hub, tmp_path: Path) -> None:
    for output in ("hf://datasets/user/packed", "hf://buckets/user/bucket/packed"):
        said = refusal(tmp_path, tmp_path / "a.jsonl", output)
        assert_says(said, f"{output} is on the hub", "packprep push DIR USER/NAME")
    assert hub.seen == []
    for address in (f"{ROOT}/b.jsonl", "hf://datasets/user/none/a.jsonl"):
        said = refusal(tmp_path, address, tmp_path / "out")
        assert_says(said, f"{address}: there is no such object and no such folder")
    hub.refuse = ("/resolve/", 403)
    said = refusal(tmp_path, f"{ROOT}/a.jsonl", tmp_path / "out")
    assert_says(said, "a.jsonl: the store says: ", "; check the address and the credentials")
