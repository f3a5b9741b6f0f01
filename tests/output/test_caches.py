"""Files that `datasets` leaves in an output are known, named, and never copied."""

from pathlib import Path

import pytest
from datasets import load_from_disk

from packprep.inspect.verify import verify
from packprep.schemas import check_files, read_manifest
from packprep.schemas.listed import is_cache
from tests.helpers.command import done, run
from tests.helpers.tiny_shards import GOLDEN
from tests.helpers.zoo import Zoo

TMP = "tmpab12_xyz"  # of a `map` that was killed


def use(folder: Path) -> None:
    """Map and filter a dataset, once in two processes."""
    rows = load_from_disk(folder)
    rows.map(lambda row: {"more": len(row["tokens"])}, desc="more")
    rows.map(lambda row: {"less": 0}, num_proc=2)
    rows.filter(lambda row: True)
    (folder / TMP).write_bytes(b"begun")


@pytest.fixture
def used(zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that `datasets` has left in the output `text`, in a copy."""
    before = {path.name for path in zoo.copy("text", tmp_path).iterdir()}
    monkeypatch.chdir(tmp_path)
    use(Path("text"))
    return sorted({path.name for path in Path("text").iterdir()} - before)


def test_verify_names_them_in_a_note(used: list[str]) -> None:
    assert "datasets keeps results of map there" in " ".join(done("verify", "text").out.split())
    verdict = verify("text")
    assert verdict.sound
    assert verdict.not_checked == [
        f"{used[0]} and 4 more: datasets keeps results of map there; they are no part of this "
        "output and may be deleted"
    ]
    assert check_files(Path("text"), read_manifest("text"), "sha256") == []
    similar = ["cache-1.arrow.json", "cache.arrow", "tmp", "tmpabcdefghi", "xcache-1.arrow"]
    for name in similar:
        (Path("text") / name).touch()
    assert sorted(finding.file or "" for finding in verify("text").findings) == similar


@pytest.mark.parametrize(
    "line",
    [
        "merge text text -o out",
        "merge text -o out --shard-size 9KB --names hf",
        "export text --to parquet -o out",
    ],
)
def test_no_command_copies_them_and_each_says_so(used: list[str], line: str) -> None:
    result = done(*line.split())
    assert f"text: left out {used[0]} and 4 more" in result.err
    assert not any(is_cache(path.name) for path in Path("out").rglob("*"))
    assert run("verify", "out", "-q").code == 0


def test_in_an_export_they_are_a_note_too(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("export", GOLDEN / "v1-example", "--to", "trl", "-o", out).code == 0
    sound = verify(out)
    rows = load_from_disk(out)["train"]
    rows.map(lambda row: {"more": 1})
    verdict = verify(out)
    assert verdict.sound
    assert (verdict.packs, verdict.files) == (sound.packs, sound.files)
    assert any("train/cache-" in note for note in verdict.not_checked)
