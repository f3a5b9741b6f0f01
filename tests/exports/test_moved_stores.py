"""An index over several token stores is read wherever each of them is."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from packprep.loaders import PackedShards
from packprep.schemas import read_manifest
from packprep.schemas.errors import FormatError
from tests.helpers.command import done

OPTIONS = ["--input-ids-column", "ids", "--vocab-size", "100", "--max-length", "16", "-q"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index `ab` over the stores `one` and `two`, and the packs of `shards`, which are its."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for number, (name, store) in enumerate((("a", "one"), ("b", "two"))):
            rows = [{"ids": [number + row, row]} for row in range(20)]
            Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            index = ["--materialize", "index", "--keep-tokens", store]
            done("build", f"{name}.jsonl", "-o", name, *OPTIONS, *index)
        done("merge", "a", "b", "-o", "ab", "-q")
        done("merge", "ab", "-o", "shards", "--materialize", "shards", "-q")
    return folder


@pytest.fixture(autouse=True)
def here(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)


@contextmanager
def moved(**moves: str) -> Iterator[None]:
    """Stores at other places while the block runs."""
    for old, new in moves.items():
        Path(old).rename(new)
    yield
    for old, new in moves.items():
        Path(new).rename(old)


def packs(output: str, store: Any = ()) -> list[list[int]]:
    return [pack.tokens.tolist() for pack in PackedShards(output, store=store, verify=True)]


@pytest.mark.parametrize(
    ("moves", "stores"),
    [
        ({}, []),
        ({"one": "moved-1"}, ["moved-1"]),
        ({"one": "moved-1", "two": "moved-2"}, ["moved-2", "moved-1"]),
        ({"two": "moved-2"}, ["nowhere", "moved-2"]),
    ],
)
def test_each_store_may_move_by_itself(moves: dict[str, str], stores: Sequence[str]) -> None:
    options = [word for store in stores for word in ("--store", store)]
    with moved(**moves):
        assert packs("ab", stores) == packs("shards")
        for line in (
            "verify ab -q",
            "show ab",
            "stats ab",
            "show ab --find 3",
            "report ab -o page.html",
            "export ab --to npy -o exported -q",
            "merge ab -o again --materialize shards -q",
        ):
            done(*line.split(), *options)
        assert read_manifest("again").data == read_manifest("shards").data
    for name in ("exported", "again"):
        shutil.rmtree(name)


@pytest.mark.parametrize(("store", "place"), [(["moved-2"], "^moved-2"), ([], "/one")])
def test_a_store_that_is_nowhere_is_named_where_it_was_looked_for(
    store: list[str], place: str
) -> None:
    with (
        moved(one="moved-1", two="moved-2"),
        pytest.raises(FormatError, match=rf"{place}/\w+/unit-\S+ is missing; .*--store DIR"),
    ):
        PackedShards("ab", store=store)


def test_a_file_of_a_store_that_was_cut_off_is_named_with_its_size() -> None:
    name = read_manifest("a").index_table.files[0].path
    content = Path("one", name).read_bytes()
    Path("one", name).write_bytes(content[:-8])
    with pytest.raises(FormatError, match=rf"{name} has \d+ bytes; expected \d+; restore it"):
        PackedShards("a")
    Path("one", name).write_bytes(content)
