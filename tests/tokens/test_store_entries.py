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
from packprep.schemas import Manifest, read_manifest
from packprep.support.errors import ConfigError, InputError
from packprep.support.file_lock import Held, locked
from packprep.tokens.store import STORED, stored
from packprep.tokens.store_entries import ENTRY, USED, EntryFacts, StoreEntry, store_entries, using
from tests.helpers.corpus import disk_fails, save_tokenizer, texts, write_jsonl
from tests.helpers.errors import refused
from tests.helpers.files import config

FACTS = EntryFacts({}, [], {})


def built(folder: Path, name: str, *numbers: int, **options: Any) -> Manifest:
    """Manifest of folder/name, an output whose tokens are in folder/store."""
    sources = [write_jsonl(folder / f"{n}.jsonl", texts(30, seed=n)) for n in numbers]
    wanted = {"max_length": 64, "unit_size": 2_000, "engine": "hf"} | options
    tokenizer = save_tokenizer(folder / "tok")
    places = {"output": folder / name, "keep_tokens": folder / "store", "tokenizer": tokenizer}
    return build(config(**{"sources": sources} | places | wanted))


def entries(folder: Path) -> list[StoreEntry]:
    return store_entries(folder / "store")


@pytest.fixture
def entry(tmp_path: Path) -> StoreEntry:
    """The only entry of a store, of a build of 1.jsonl into out."""
    built(tmp_path, "out", 1)
    [entry] = entries(tmp_path)
    return entry


FIRST, SECOND = "unit-000000-000", "unit-000001-000"


def _short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _other_receipt(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"unit": 7}))


@pytest.mark.parametrize(
    ("file", "damage", "words"),
    [
        (f"{FIRST}.arrow", Path.unlink, "is missing"),
        (f"{FIRST}.arrow", _short, "has "),
        (f"{SECOND}.arrow", _flipped, "has xxh3 "),
        (f"{SECOND}.json", Path.unlink, "is missing"),
        (f"{FIRST}.json", _other_receipt, "is not the receipt"),
        (STORED, lambda path: path.write_text("[1]"), "is not a list"),
    ],
)
def test_a_damaged_file_is_named_and_the_next_build_makes_it_again(
    file: str, damage: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    first = built(tmp_path, "out", 1)
    [entry] = entries(tmp_path)
    damage(entry.path / file)
    [entry] = entries(tmp_path)
    [fault] = entry.faults()
    assert f"{file} {words}" in fault
    assert entry.state == ("whole" if damage is _flipped else "damaged")
    assert built(tmp_path, "again", 1).data["files"] == first.data["files"]
    assert list(StoreEntry(entry.path).faults()) == []


def test_an_entry_of_a_stopped_build_is_unfinished_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("packprep.execute.tasks.seal", lambda *_: None)
        with disk_fails(Stages, "pack"):
            built(tmp_path, "out", 1)
    [entry] = entries(tmp_path)
    assert (entry.state, list(entry.faults())) == ("unfinished", [])
    assert entry.as_dict()["documents"] != 0
    built(tmp_path, "out", 1)
    assert StoreEntry(entry.path).state == "whole"


def test_an_output_uses_the_entries_that_it_was_built_from(tmp_path: Path) -> None:
    one, two = built(tmp_path, "one", 1), built(tmp_path, "two", 2)
    both, plain = built(tmp_path, "both", 1, 2), built(tmp_path, "plain", 1, eos="none")

    def used(manifest: Manifest) -> list[list[str]]:
        return sorted(
            [Path(source["name"]).stem for source in entry.facts.sources]
            for entry in entries(tmp_path)
            if entry.facts and entry.used_by(manifest)
        )

    assert (used(one), used(two), used(plain)) == ([["1"]], [["2"]], [["1"]])
    assert used(both) == [["1"], ["1", "2"], ["2"]]
    merge([tmp_path / "one", tmp_path / "two"], tmp_path / "merged")
    assert len(used(read_manifest(tmp_path / "merged"))) == 3
    for entry in entries(tmp_path):  # an index uses those that it names
        one.data["index"] = {"files": [{"path": f"{entry.path.name}/{FIRST}.arrow"}]}
        assert [each.used_by(one) for each in entries(tmp_path)].count(True) == 1
        assert entry.used_by(one)


def test_nobody_knows_who_uses_an_entry_of_an_older_packprep(
    tmp_path: Path, entry: StoreEntry
) -> None:
    (entry.path / ENTRY).unlink()
    older = StoreEntry(entry.path)
    assert older.used_by(built(tmp_path, "two", 2))
    assert (older.facts, older.as_dict()["tokenizer"]) == (None, None)
    built(tmp_path, "three", 1, strategy="greedy")  # a build writes what is missing
    assert StoreEntry(entry.path).facts is not None


def test_a_killed_deletion_leaves_an_unfinished_entry(tmp_path: Path, entry: StoreEntry) -> None:
    with disk_fails(shutil, "rmtree"):
        entry.delete()
    assert (StoreEntry(entry.path).state, stored(entry.path)) == ("unfinished", None)
    entry.delete()
    assert [*(tmp_path / "store").iterdir()] == []
    first = read_manifest(tmp_path / "out")
    assert built(tmp_path, "again", 1).data["files"] == first.data["files"]


def test_an_entry_that_is_read_or_written_stays(entry: StoreEntry) -> None:
    with using(entry.path, FACTS), using(entry.path, FACTS):
        for _ in range(2):
            with refused(Held, "is being read by a build"):
                entry.delete()
    with locked(entry.path, "x"), refused(Held, "tokens are being written to"):
        entry.delete()
    assert stored(entry.path) is not None
    entry.delete()


def test_a_build_uses_its_entry_from_tokenizing_to_its_last_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, pack = [], Stages.pack

    def packed(stages: Stages, *arguments: Any) -> Any:
        result = pack(stages, *arguments)
        [entry] = entries(tmp_path)
        with refused(Held, "is being read by a build"):
            entry.delete()
        seen.append(entry)
        return result

    monkeypatch.setattr(Stages, "pack", packed)
    built(tmp_path, "out", 1)
    [entry] = seen
    entry.delete()


def test_a_build_that_begins_while_an_entry_is_deleted_waits_and_gets_a_new_one(
    entry: StoreEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, done, remove = threading.Event(), threading.Event(), shutil.rmtree

    def use() -> None:
        begun.set()
        with using(entry.path, FACTS):
            done.set()

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
    tmp_path: Path, entry: StoreEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("packprep.tokens.store_entries.fcntl.flock", refuse)
    with pytest.raises(Held):
        entry.delete()
    built(tmp_path, "again", 1)
    assert stored(entry.path) is not None


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with refused(InputError, "is not a directory", "--keep-tokens"):
        store_entries(tmp_path / "nothing")
    assert store_entries(tmp_path) == []
    built(tmp_path, "out", 1)
    (tmp_path / "out" / "tokens").mkdir()
    with refused(ConfigError, "out/tokens belongs to the output", "packprep verif"):
        store_entries(tmp_path / "out" / "tokens")
