"""Damage of one byte is never signed.

Each command that writes an output or an export refuses a damaged file of those that it reads.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import settings

from packprep.execute import stages
from packprep.exports import export as export_module
from packprep.exports.export import export
from packprep.exports.packs import PackBatch, read_packs
from packprep.exports.registry import EXPORT_FORMATS
from packprep.output.sign_off import write_report
from packprep.schemas import read_manifest
from tests.helpers.command import done, run
from tests.helpers.files import bytes_in
from tests.helpers.hub import connect, running

IDS = ["--input-ids-column", "ids", "--vocab-size", "1000", "-q"]
SHARDS = [*IDS, "--max-length", "32", "--shard-size", "3KB"]
INDEX = [*IDS, "--max-length", "32", "--materialize", "index"]


@dataclass(frozen=True)
class Case:
    """A command and the folders that it reads.

    changed: the one of these folders that it replaces.
    """

    line: str
    reads: tuple[str, ...]
    changed: str = ""


CASES = {
    "merge": Case("merge a b -o out", ("a", "b")),
    "merge into other shards": Case("merge a b -o out --shard-size 1KB", ("a", "b")),
    "merge of indexes": Case("merge ia ib -o out", ("ia", "ib")),
    "merge of indexes of a store": Case("merge ka kb -o out", ("ka", "kb", "store")),
    "merge of stores": Case("merge store -o out", ("store",)),
    "merge of one": Case("merge a -o out --shard-size 1KB", ("a",)),
    "other names in place": Case("merge a -o a --names hf --overwrite", ("a",), "a"),
    "shards of an index": Case("merge ia -o out --materialize shards", ("ia",)),
    "shards of a store": Case("merge ka kb -o out --materialize shards", ("ka", "kb", "store/*")),
    "shards of a store, cut again": Case(
        "merge ka -o out --materialize shards --shard-size 1KB", ("ka", "store/*")
    ),
    "export of an index": Case("export ia --to parquet -o out", ("ia",)),
    "export of a store": Case("export ka --to megatron -o out", ("ka", "store/*")),
    "pack": Case("pack store -o out --max-length 32 -q", ("store",)),
    "pack as an index": Case("pack store -o out --materialize index -q", ("store",)),
    "push": Case("push a user/packed --dry-run", ("a",)),
    "append": Case(f"build b.jsonl -o a --append {' '.join(SHARDS)}", ("a",), "a"),
    "append to an index": Case(f"build b.jsonl -o ia --append {' '.join(INDEX)}", ("ia",), "ia"),
} | {f"export to {to}": Case(f"export a --to {to} -o out", ("a",)) for to in EXPORT_FORMATS}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outputs of two files: shards a and b, indexes ia and ib, and ka and kb over a store."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for seed, name in enumerate("ab"):
            rows = [
                {"ids": [(7 * row + token + seed) % 1000 for token in range(row % 30 + 1)]}
                for row in range(60)
            ]
            Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            done("build", f"{name}.jsonl", "-o", name, *SHARDS)
            done("build", f"{name}.jsonl", "-o", f"i{name}", *INDEX)
            store = ["--keep-tokens", "store"]
            done("build", f"{name}.jsonl", "-o", f"k{name}", *INDEX, *store)
    return folder


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()  # it may be a link
    path.write_bytes(content)


@contextmanager
def flipped(path: Path) -> Iterator[None]:
    """The middle byte of a file is another one."""
    right = path.read_bytes()
    flip(path)
    try:
        yield
    finally:
        path.write_bytes(right)


def files_in(folders: Sequence[str]) -> list[Path]:
    """Files of outputs, and the token files of stores; two of them in the short run."""
    found = [path for name in folders for path in sorted(Path(name).rglob("*")) if path.is_file()]
    read = [path for path in found if path.parts[0] != "store" or path.suffix == ".arrow"]
    return Random(7).sample(read, min(len(read), settings().max_examples // 25))


@pytest.mark.parametrize("name", CASES)
def test_a_flipped_byte_of_any_file_that_is_read_is_refused_and_without_it_the_command_works(
    name: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    monkeypatch.chdir(made)  # where the indexes say that their store is
    before = bytes_in(case.changed) if case.changed else {}
    for path in files_in(case.reads):
        with flipped(path):
            result = run(*case.line.split())
        assert (result.code, str(path) in result.err) == (2, True), (path, result)
        assert result.err.startswith("packprep: "), path
        assert not Path("out").exists()
        assert not case.changed or bytes_in(case.changed) == before, path
        for left in Path().glob("*.incomplete"):  # parts in it that were sound are not read again
            shutil.rmtree(left)
    shutil.copytree(made, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    done(*case.line.split())
    if not case.line.startswith(("export", "push")):
        output = Path(case.changed or "out")
        done("verify", output)


@pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")  # of the hub's client
def test_a_push_of_damage_leaves_the_repository_as_it_was(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made)
    with running() as hub:
        connect(hub, monkeypatch)
        for path in files_in(["a"]):
            with flipped(path):
                result = run("push", "a", "user/packed", "-q")
            assert (result.code, str(path) in result.err) == (2, True), result.err
        assert all(".arrow" not in name for files in hub.commits.values() for name in files)


def test_an_export_that_resumes_writes_damaged_bytes_again(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made)
    whole = export(Path("a"), "whole", "megatron").data["files"]
    with monkeypatch.context() as patch:
        patch.setattr(export_module, "read_packs", _dies_after(1))
        with pytest.raises(KeyboardInterrupt):
            export(Path("a"), "out", "megatron")
    growing = json.loads(Path("out.incomplete/progress.json").read_bytes())["growing"]
    assert growing
    for name in growing:
        shutil.copytree("out.incomplete", "kept")
        flip(Path("out.incomplete", name))
        assert export(Path("a"), "out", "megatron").data["files"] == whole, name
        shutil.rmtree("out")
        Path("kept").rename("out.incomplete")
    shutil.rmtree("out.incomplete")


def _dies_after(shards: int) -> Callable[..., Iterator[PackBatch]]:
    """`read_packs` that is killed after some shards."""
    read: list[str] = []

    def reading(*arguments: Any) -> Iterator[PackBatch]:
        if len(read) == shards:
            raise KeyboardInterrupt
        read.append("one more")
        yield from read_packs(*arguments)

    return reading


def test_an_index_whose_tokens_are_damaged_before_it_is_signed_is_written_again(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made)

    def damaging(*arguments: Any) -> Any:
        (path,) = Path("out.incomplete/tokens").rglob("*.arrow")
        flip(path)
        return write_report(*arguments)

    line = ["build", "a.jsonl", "-o", "out", *INDEX]
    with monkeypatch.context() as patch:
        patch.setattr(stages, "write_report", damaging)
        result = run(*line)
    assert result.code == 3
    assert "it was written with" in result.err
    done(*line)
    assert read_manifest(Path("out")).data == read_manifest(Path("ia")).data
    shutil.rmtree("out")
