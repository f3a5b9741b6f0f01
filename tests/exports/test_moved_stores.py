"""An index over several token stores is read wherever each of them is."""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.schemas import read_manifest
from packprep.schemas.errors import FormatError
from tests.helpers.command import run

OPTIONS = ["--input-ids-column", "ids", "--vocab-size", "100", "--max-length", "16", "-q"]


def packprep(*line: object) -> None:
    result = run(*line)
    assert result.code == 0, result.err


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An index `ab` over the stores `one` and `two`, and the packs of `shards`, which are its."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for number, (name, store) in enumerate((("a", "one"), ("b", "two"))):
            rows = [{"ids": [number + row, row]} for row in range(20)]
            Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            index = ["--materialize", "index", "--keep-tokens", store]
            packprep("build", f"{name}.jsonl", "-o", name, *OPTIONS, *index)
        packprep("merge", "a", "b", "-o", "ab", "-q")
        packprep("merge", "ab", "-o", "shards", "--materialize", "shards", "-q")
        yield folder


@pytest.fixture
def here(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    return made


MOVES: list[tuple[dict[str, str], list[str]]] = [
    ({}, []),
    ({"one": "moved-1"}, ["moved-1"]),
    ({"two": "moved-2"}, ["moved-2"]),
    ({"one": "moved-1", "two": "moved-2"}, ["moved-1", "moved-2"]),
    ({"one": "moved-1", "two": "moved-2"}, ["moved-2", "moved-1"]),
    ({"two": "moved-2"}, ["nowhere", "moved-2"]),
]


class Moved:
    """Stores at other places while the block runs."""

    def __init__(self, moves: dict[str, str]) -> None:
        self.moves = moves

    def __enter__(self) -> None:
        for old, new in self.moves.items():
            Path(old).rename(new)

    def __exit__(self, *_: Any) -> None:
        for old, new in self.moves.items():
            Path(new).rename(old)


def packs(output: str, store: Sequence[str]) -> list[list[int]]:
    return [pack.tokens.tolist() for pack in PackedShards(output, store=store, verify=True)]


@pytest.mark.parametrize(("moves", "stores"), MOVES)
def test_each_store_may_move_by_itself(
    here: Path, moves: dict[str, str], stores: list[str]
) -> None:
    options = [word for store in stores for word in ("--store", store)]
    with Moved(moves):
        assert packs("ab", stores) == packs("shards", [])
        assert verify("ab", store=stores).sound
        for line in (
            "verify ab -q",
            "show ab",
            "stats ab",
            "trace ab --document 3",
            "report ab -o page.html",
        ):
            packprep(*line.split(), *options)
        packprep("export", "ab", "--to", "npy", "-o", "exported", "-q", *options)
        packprep("merge", "ab", "-o", "again", "--materialize", "shards", "-q", *options)
        assert read_manifest("again").data == read_manifest("shards").data
    for name in ("exported", "again"):
        shutil.rmtree(name)


def test_one_folder_is_a_path_too(here: Path) -> None:
    with Moved({"two": "moved-2"}):
        expected = packs("shards", [])
        for store in ("moved-2", Path("moved-2"), [Path("moved-2")]):
            assert [p.tokens.tolist() for p in PackedShards("ab", store=store)] == expected


def test_both_stores_may_be_in_one_folder(here: Path) -> None:
    with Moved({"one": "moved-1", "two": "moved-2"}):
        shutil.copytree("moved-1", "both")
        shutil.copytree("moved-2", "both", dirs_exist_ok=True)
        assert packs("ab", ["both"]) == packs("shards", [])


def test_a_store_that_is_nowhere_is_named_where_it_was_looked_for(here: Path) -> None:
    with (
        Moved({"one": "moved-1", "two": "moved-2"}),
        pytest.raises(FormatError, match=r"^moved-2/\w+/unit-\S+ is missing; .*--store DIR"),
    ):
        PackedShards("ab", store=["moved-2"])
    with (
        Moved({"one": "moved-1"}),
        pytest.raises(FormatError, match=r"/one/\w+/unit-\S+ is missing; .*--store DIR"),
    ):
        PackedShards("ab")
