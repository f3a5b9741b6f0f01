"""Empty files of a folder or glob are passed over with a note; other empty inputs are refused."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from packprep.schemas import read_manifest
from tests.helpers.command import Result, run
from tests.helpers.corpus import save_tokenizer, write_jsonl
from tests.helpers.errors import assert_says
from tests.helpers.token_files import write_megatron


def parquet(path: Path) -> None:
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)


def arrow(path: Path) -> None:
    schema = pa.schema({"text": pa.string()})
    pa.ipc.new_stream(str(path), schema).close()


def holding(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(content)

    return write


# By name, all before full.jsonl: how to write it.
EMPTY: dict[str, Callable[[Path], None]] = {
    "a.jsonl": holding(b""),
    "b.jsonl": holding(b"\n \n\r\n"),
    "c.json": holding(b"[\n]\n"),
    "d.csv": holding(b"text,title\n"),
    "d.tsv.gz": holding(gzip.compress(b"text\ttitle\n")),
    "e.jsonl.gz": holding(gzip.compress(b"")),
    "e.csv.zst": holding(zstandard.compress(b"")),
    "e.txt.zst": holding(zstandard.compress(b"")),
    "f.txt": holding(b""),
    "f1.parquet": parquet,
    "f2.parquet": holding(b""),
    "f3.arrow": arrow,
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "data").mkdir()
    return tmp_path


def built(*arguments: Any, out: str = "out") -> Result:
    options = ["-o", out, "--tokenizer", "tokenizer", "--max-length", 64]
    return run("build", *arguments, *options)


def sources_of(out: str) -> list[str]:
    return [str(path) for path in read_manifest(Path(out)).run["source_paths"]]


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_file_by_itself_is_refused_and_so_is_a_folder_of_it(here: Path, name: str) -> None:
    EMPTY[name](Path("data", name))
    alone = built(f"data/{name}")
    assert alone.code == 2
    assert_says(alone.err, name, "expected")
    assert built("data").err == alone.err


def test_empty_files_of_a_folder_or_glob_are_passed_over_with_a_note(here: Path) -> None:
    """The output has the bytes of a build of the other files."""
    for name, write in EMPTY.items():
        write(Path("data", name))
    refused = built("data")
    assert refused.code == 2
    assert_says(refused.err, "data holds no rows in its 9 files; expected at least one document")
    write_jsonl(Path("data/full.jsonl"), ["a", "b"])
    assert built("data/full.jsonl", out="full").code == 0
    for source, out in (("data", "folder"), ("data/*", "glob")):
        result = built(source, out=out)
        note = f"{source}: empty files are passed over"
        assert f"{note}, 3 of 13: data/a.jsonl and 2 more\n" in result.err
        assert f"{note}, 9 of 10: data/b.jsonl and 8 more\n" in result.err
        assert sources_of(out) == ["data/full.jsonl"]
        assert read_manifest(Path(out)).data == read_manifest(Path("full")).data
        assert run("verify", out, "--level", "full").code == 0


CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    ("row", "options"),
    [
        ({"text": "a", "score": 0.5}, ["--carry", "score"]),
        ({"ids": [1, 2], "loss": [0, 1]}, ["--input-ids-column", "ids", "--labels-column", "loss"]),
        ({"messages": CHAT}, ["--messages-column", "auto", "--chat-template", "chat.jinja"]),
    ],
)
def test_the_first_file_with_rows_decides_what_the_first_file_decides(
    here: Path, row: dict[str, Any], options: list[str]
) -> None:
    """Types of carried columns, the kind of labels, and the columns of conversations."""
    Path("chat.jinja").write_text(
        "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
    )
    for name in ("a.jsonl.gz", "b.jsonl"):
        holding(gzip.compress(b"") if name.endswith("gz") else b"\n")(Path("data", name))
    Path("data/c.jsonl").write_text(json.dumps(row) + "\n")
    result = built("data", *options)
    assert result.code == 0, result.err
    assert sources_of("out") == ["data/c.jsonl"]
    assert read_manifest(Path("out")).data["ledger"]["tokens_packed"] > 0


def test_a_token_file_without_documents_is_passed_over(here: Path) -> None:
    write_megatron(Path("data"), [], name="a")
    write_megatron(Path("data"), [[1, 2, 3]], name="b")
    result = built("data", "--input-ids-column", "ids")
    assert result.code == 0, result.err
    assert sources_of("out") == ["data/b.bin"]


def test_a_part_of_a_mix_with_empty_files_only_is_refused(here: Path) -> None:
    for folder in ("full", "empty"):
        Path(folder).mkdir()
        for name in ("a.jsonl", "b.jsonl"):
            write_jsonl(Path(folder, name), [f"text of {folder}"] if folder == "full" else [])
    refused = built("full", "empty", "--weights", "1,1")
    assert refused.code == 2
    assert_says(refused.err, "empty/a.jsonl is empty; expected at least one document")


def test_a_damaged_small_file_is_refused_as_such(here: Path) -> None:
    """It is not empty: what is wrong is said when it is read."""
    write_jsonl(Path("data/a.jsonl"), ["a"])
    Path("data/b.parquet").write_bytes(b"PAR1" * 3)
    refused = built("data")
    assert refused.code == 2
    assert_says(refused.err, "data/b.parquet cannot be read as parquet")


def test_an_output_grows_from_a_folder_with_an_empty_file(here: Path) -> None:
    write_jsonl(Path("data/a.jsonl"), ["a"])
    Path("data/b.jsonl").touch()
    assert built("data").code == 0
    write_jsonl(Path("data/b.jsonl"), ["rows at last"])
    grown = built("data", "--append")
    assert grown.code == 0, grown.err
    assert sources_of("out") == ["data/a.jsonl", "data/b.jsonl"]


def test_empty_objects_of_a_store_are_passed_over(here: Path, bucket: str, store: Any) -> None:
    write_jsonl(Path("data/a.jsonl"), ["a"])
    Path("data/b.jsonl").touch()
    parquet(Path("data/c.parquet"))
    store.put(f"{here}/data/", f"{bucket}/data/", recursive=True)
    result = built(f"{bucket}/data")
    assert result.code == 0, result.err
    assert sources_of("out") == [f"{bucket}/data/a.jsonl"]
    assert f"passed over, 1 of 3: {bucket}/data/b.jsonl" in result.err
    assert f"passed over, 1 of 2: {bucket}/data/c.parquet" in result.err
    assert_says(built(f"{bucket}/data/b.jsonl", out="no").err, "b.jsonl is empty")
