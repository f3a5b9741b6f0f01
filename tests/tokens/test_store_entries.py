"""Entries of a token store: what they hold, damage, and deletion beside running builds."""

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packprep import build
from packprep.derive.merge import merge
from packprep.execute.stages import Stages
from packprep.schemas import read_manifest
from packprep.support.errors import ConfigError, InputError
from packprep.support.file_lock import Held, locked
from packprep.tokens.store import STORED, stored
from packprep.tokens.store_entries import ENTRY, USED, StoreEntry, store_entries, using
from tests.helpers.corpus import disk_fails, save_tokenizer, texts, write_jsonl
from tests.helpers.files import config

FACTS: dict[str, Any] = {"tokenizer": {}, "sources": [], "options": {}}


def built(folder: Path, name: str, *numbers: int, **options: Any) -> Path:
    """An output whose tokens are in folder/store."""
    sources = [write_jsonl(folder / f"{n}.jsonl", texts(30, seed=n)) for n in numbers]
    wanted = {"max_length": 64, "unit_size": 2_000, "engine": "hf"} | options
    tokenizer = save_tokenizer(folder / "tok")
    places = {"output": folder / name, "keep_tokens": folder / "store", "tokenizer": tokenizer}
    build(config(**{"sources": sources} | places | wanted))
    return folder / name


def entries(folder: Path) -> list[StoreEntry]:
    return store_entries(folder / "store")


def test_an_entry_says_what_it_holds(tmp_path: Path) -> None:
    manifest = read_manifest(built(tmp_path, "out", 1, 2))
    [entry] = entries(tmp_path)
    facts = entry.as_dict()
    assert facts["entry"] == entry.path.name
    assert (facts["documents"], facts["tokens"]) == (60, manifest.ledger["tokens_in"])
    assert facts["sources"] == [str(tmp_path / f"{number}.jsonl") for number in (1, 2)]
    assert (facts["tokenizer"], facts["state"]) == (str(tmp_path / "tok"), "whole")
    assert facts["bytes"] == sum(path.stat().st_size for path in entry.path.iterdir())
    assert list(entry.faults()) == []


def test_a_new_strategy_uses_the_same_entry_again(tmp_path: Path) -> None:
    built(tmp_path, "one", 1)
    [before] = [entry.last_used for entry in entries(tmp_path)]
    built(tmp_path, "two", 1, strategy="greedy")
    [entry] = entries(tmp_path)
    assert entry.last_used >= before
    built(tmp_path, "three", 1, eos="none")
    assert len(entries(tmp_path)) == 2


def _missing(entry: Path) -> None:
    (entry / "unit-000000-000.arrow").unlink()


def _short(entry: Path) -> None:
    path = entry / "unit-000000-000.arrow"
    path.write_bytes(path.read_bytes()[:-1])


def _flipped(entry: Path) -> None:
    path = entry / "unit-000001-000.arrow"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _no_receipt(entry: Path) -> None:
    (entry / "unit-000001-000.json").unlink()


def _bad_receipt(entry: Path) -> None:
    (entry / "unit-000001-000.json").write_text("{}")


def _other_receipt(entry: Path) -> None:
    path = entry / "unit-000000-000.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"unit": 7}))


def _bad_list(entry: Path) -> None:
    (entry / STORED).write_text("[1]")


@pytest.mark.parametrize(
    ("damage", "sentence", "state"),
    [
        (_missing, "unit-000000-000.arrow is missing; ", "damaged"),
        (_short, r"unit-000000-000.arrow has [\d,]+ bytes; its receipt says [\d,]+; ", "damaged"),
        (_flipped, r"unit-000001-000.arrow has xxh3 \w+; its receipt says \w+; ", "whole"),
        (_no_receipt, "unit-000001-000.json is missing, the receipt of unit-000001", "damaged"),
        (_bad_receipt, "unit-000001-000.json is not the receipt of unit-000001-000", "damaged"),
        (_other_receipt, "unit-000000-000.json is not the receipt of unit-000000", "damaged"),
        (_bad_list, "files.json is not a list of token files; the next build", "damaged"),
    ],
)
def test_a_damaged_file_is_named_and_the_next_build_makes_it_again(
    damage: Callable[[Path], None], sentence: str, state: str, tmp_path: Path
) -> None:
    first = read_manifest(built(tmp_path, "out", 1))
    [entry] = entries(tmp_path)
    damage(entry.path)
    [entry] = entries(tmp_path)
    [fault] = entry.faults()
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(fault)
    assert entry.state == state
    again = read_manifest(built(tmp_path, "again", 1))
    assert again.data["files"] == first.data["files"]
    assert list(StoreEntry(entry.path).faults()) == []


def test_an_entry_of_a_stopped_build_is_unfinished_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("packprep.execute.stages.seal", lambda *_: None)
        with disk_fails(Stages, "pack"):
            built(tmp_path, "out", 1)
    [entry] = entries(tmp_path)
    assert (entry.state, list(entry.faults())) == ("unfinished", [])
    assert entry.as_dict()["documents"] > 0
    built(tmp_path, "out", 1)
    assert StoreEntry(entry.path).state == "whole"


def test_an_output_uses_the_entry_that_it_was_built_from(tmp_path: Path) -> None:
    outputs = {
        "one": built(tmp_path, "one", 1),
        "two": built(tmp_path, "two", 2),
        "both": built(tmp_path, "both", 1, 2),
        "plain": built(tmp_path, "plain", 1, eos="none"),
    }
    used = {
        name: {
            tuple(Path(source["name"]).name for source in entry.facts["sources"])
            for entry in entries(tmp_path)
            if entry.facts and entry.used_by(read_manifest(out))
        }
        for name, out in outputs.items()
    }
    assert used["one"] == {("1.jsonl",)}
    assert used["two"] == {("2.jsonl",)}
    assert used["both"] == {("1.jsonl", "2.jsonl"), ("1.jsonl",), ("2.jsonl",)}
    assert sum(entry.used_by(read_manifest(outputs["plain"])) for entry in entries(tmp_path)) == 1
    merge([outputs["one"], outputs["two"]], tmp_path / "merged")
    merged = read_manifest(tmp_path / "merged")
    assert sum(entry.used_by(merged) for entry in entries(tmp_path)) == 3


def test_an_index_uses_the_entries_that_it_names(tmp_path: Path) -> None:
    manifest = read_manifest(built(tmp_path, "out", 1))
    [entry] = entries(tmp_path)
    for path, used in ((f"{entry.path.name}/unit-000000-000.arrow", True), ("other/u", False)):
        manifest.data["index"] = {"files": [{"path": path}]}
        assert entry.used_by(manifest) is used


def test_nobody_knows_who_uses_an_entry_of_an_older_packprep(tmp_path: Path) -> None:
    one = built(tmp_path, "one", 1)
    built(tmp_path, "two", 2)
    for entry in entries(tmp_path):
        (entry.path / ENTRY).unlink()
    assert all(entry.used_by(read_manifest(one)) for entry in entries(tmp_path))
    assert {entry.as_dict()["tokenizer"] for entry in entries(tmp_path)} == {None}
    built(tmp_path, "three", 2, strategy="greedy")  # a build writes what is missing
    assert sorted(entry.facts is None for entry in entries(tmp_path)) == [False, True]


def test_an_entry_is_deleted_as_a_whole_and_made_again(tmp_path: Path) -> None:
    first = read_manifest(built(tmp_path, "out", 1))
    [entry] = entries(tmp_path)
    entry.delete()
    assert [*(tmp_path / "store").iterdir()] == []
    again = read_manifest(built(tmp_path, "again", 1))
    assert again.data["files"] == first.data["files"]


def test_a_killed_deletion_leaves_an_unfinished_entry(tmp_path: Path) -> None:
    built(tmp_path, "out", 1)
    [entry] = entries(tmp_path)
    with disk_fails(shutil, "rmtree"):
        entry.delete()
    assert StoreEntry(entry.path).state == "unfinished"
    assert stored(entry.path) is None
    entry.delete()
    assert not entry.path.exists()


def test_an_entry_that_is_read_or_written_stays(tmp_path: Path) -> None:
    built(tmp_path, "out", 1)
    [entry] = entries(tmp_path)
    with using(entry.path, FACTS), using(entry.path, FACTS):
        with pytest.raises(Held, match="is being read by a build; it stays"):
            entry.delete()
        with pytest.raises(Held):
            entry.delete()
    with locked(entry.path, "x"), pytest.raises(Held, match="tokens are being written to"):
        entry.delete()
    assert stored(entry.path) is not None
    entry.delete()


def test_a_build_uses_its_entry_from_tokenizing_to_its_last_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    pack = Stages.pack

    def packed(stages: Stages, *arguments: Any) -> Any:
        for when in ("before", "after"):
            [entry] = entries(tmp_path)
            with pytest.raises(Held, match="is being read by a build"):
                entry.delete()
            seen.append(when)
            if when == "before":
                result = pack(stages, *arguments)
        return result

    monkeypatch.setattr(Stages, "pack", packed)
    built(tmp_path, "out", 1)
    assert seen == ["before", "after"]
    [entry] = entries(tmp_path)
    entry.delete()


def test_a_build_that_begins_while_an_entry_is_deleted_waits_and_gets_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(tmp_path, "out", 1)
    [entry] = entries(tmp_path)
    begun, done = threading.Event(), threading.Event()

    def use() -> None:
        begun.set()
        with using(entry.path, FACTS):
            done.set()

    import shutil

    remove = shutil.rmtree

    def slow(path: Path) -> None:
        thread.start()
        begun.wait(10)
        assert not done.wait(0.2), "the lock is held until the files are gone"
        remove(path)

    thread = threading.Thread(target=use)
    monkeypatch.setattr("packprep.tokens.store_entries.shutil.rmtree", slow)
    entry.delete()
    thread.join(10)
    assert done.is_set()
    assert sorted(path.name for path in entry.path.iterdir()) == [ENTRY, USED]


def test_a_file_system_without_locks_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(tmp_path, "out", 1)
    [entry] = entries(tmp_path)

    def refused(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("packprep.tokens.store_entries.fcntl.flock", refused)
    with pytest.raises(Held):
        entry.delete()
    built(tmp_path, "again", 1)
    assert stored(entry.path) is not None


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a directory; give the one that --keep-tokens"):
        store_entries(tmp_path / "nothing")
    assert store_entries(tmp_path) == []
    out = built(tmp_path, "out", 1)
    (out / "tokens").mkdir()
    with pytest.raises(
        ConfigError, match=r"out/tokens belongs to the output .*out; packprep verif"
    ):
        store_entries(out / "tokens")


def test_a_build_without_a_store_writes_none(tmp_path: Path) -> None:
    built(tmp_path, "out", 1, keep_tokens=None)
    assert not (tmp_path / "store").exists()
