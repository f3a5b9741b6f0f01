"""From a pack to its rows and back, on the command line and in Python."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packprep.inspect.lookup import document_number, find_pack
from packprep.schemas import FormatError, Manifest, read_manifest
from packprep.schemas.sources import Sources
from packprep.support.errors import ConfigError
from tests.helpers.command import done, run
from tests.helpers.corpus import texts
from tests.helpers.errors import assert_says, refused
from tests.helpers.planted import plant
from tests.helpers.tiny_shards import EXAMPLE, GOLDEN, PLAIN, write_output
from tests.helpers.zoo import Zoo

RICH = GOLDEN / "v1-rich"
ROWS = [*texts(120), *texts(120, seed=1)]
"""Texts of both sources of the output `index` and `split` of the zoo."""


def listed(output: Path, line: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("show", output, *line.split(), "--json").out)
    return found


def test_a_name_is_a_source_and_row_or_the_end_of_its_path_or_a_document_id(zoo: Zoo) -> None:
    sources = Sources(read_manifest(zoo["split"]))
    a, b = sources.names
    for name, number in (
        (f"{a}:7", 7),
        ("split/a.jsonl:7", 7),
        ("a.jsonl:7", 7),
        ("b.jsonl:0", 120),
        (f"{b}:119", 239),
        ("239", 239),
    ):
        assert document_number(sources, name) == number
    for name, words in (
        ("b.jsonl:120", "b.jsonl has 120 rows, numbered from 0; there is no row 120"),
        ("240", "there is no document 240; the sources have 240 rows, numbered from 0"),
        (f"{b[:-1]}:1", f"this output has no source {b[:-1]}; did you mean '{b}'?"),
        ("b.jsonl", f"'b.jsonl' is not SOURCE:ROW, for instance {a}:17"),
        ("jsonl:1", "this output has no source jsonl"),
    ):
        with refused(ConfigError, words):
            document_number(sources, name)
    manifest = read_manifest(zoo["split"])
    twice = Sources(type(manifest)(**vars(manifest) | {"run": {"source_paths": ["x/a", "y/a"]}}))
    with refused(ConfigError, "a matches 2 sources (x/a, y/a)"):
        document_number(twice, "a:0")
    assert document_number(twice, "y/a:1") == 121


def test_rows_of_a_pack_name_file_and_row_of_each_segment(zoo: Zoo) -> None:
    out = zoo["split"]
    pack, names = find_pack(out, read_manifest(out), 1), Sources(read_manifest(out)).names
    rows = listed(out, "--rows --pack 1")
    assert [row["document"] for row in rows] == [segment.document for segment in pack.segments]
    assert all(row["document"] == 120 * names.index(row["source"]) + row["row"] for row in rows)
    assert listed(out, "--rows --pack 1 --segment 0") == rows[:1]
    filled = [(row["document"], row["source"], row["row"]) for row in listed(RICH, "--rows")]
    assert filled == [(0, "source 0", 0), (1, "source 0", 1), (-1, "filler", None)]
    lines = run("show", out, "--rows", "--pack", 1).out.splitlines()
    assert lines[0].split()[:5] == ["split", "pack", "segment", "tokens", "from"]
    assert len(lines) == len(rows) + 1


def test_a_row_that_is_found_has_its_packs_and_there_it_is_again(zoo: Zoo) -> None:
    out, long = zoo["split"], max(range(120), key=lambda row: len(ROWS[row]))
    rows = listed(out, f"--find a.jsonl:{long}")
    assert len(rows) > 1
    for row in rows:
        split = f"--split {row['split']}"
        place = f"--rows --pack {row['pack']} --segment {row['segment']} {split}"
        assert listed(out, place) == [row]
        in_shard = f"--rows --pack {row['pack_in_shard']} --shard {row['shard']} {split}"
        assert row in listed(out, in_shard)


def test_a_row_in_no_pack_is_said_to_be_in_none(zoo: Zoo) -> None:
    empty = texts(120).index("")
    shown = done("show", zoo["text"], "--find", f"a.jsonl:{empty}").out
    assert_says(shown, f"a.jsonl row {empty} is in no pack: it was empty, skipped or dropped")
    assert listed(zoo["text"], f"--find {empty}") == []


def test_a_pack_without_document_ids_is_shown_without_rows(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    names = ("tokens", "position_ids", "cu_seqlens")
    columns = [column for column in PLAIN if column.name in names]
    rows = [{name: row[name] for name in names} for row in EXAMPLE]
    write_output(bare, {"train": [rows]}, columns)
    (row, *_) = listed(bare, "--rows")
    assert (row["document"], row["source"], row["row"]) == (None, None, None)
    assert_says(run("show", bare, "--find", 1).err, "bare have no document_ids")


def test_a_pack_with_wrong_boundaries_is_an_error_that_names_it(zoo: Zoo, tmp_path: Path) -> None:
    output = zoo.copy("text", tmp_path)
    plant(output, lambda packs: packs[0]["cu_seqlens"].__setitem__(0, 1))
    shard = output / read_manifest(output).shards("train")[0].path
    with refused(FormatError, f"{shard.name} pack 0: cu_seqlens are ", "start at 0"):
        find_pack(output, read_manifest(output), 0)
    content = shard.read_bytes()
    shard.write_bytes(content[:100] + bytes(len(content) - 100))
    with pytest.raises(FormatError):
        find_pack(output, read_manifest(output), 0)


def manifest(*sources: tuple[int, int], paths: list[str] | None = None) -> Manifest:
    """(first_document, documents) of each source."""
    table = [{"first_document": first, "documents": rows} for first, rows in sources]
    return Manifest(
        data={"sources": table}, run={} if paths is None else {"source_paths": paths}, sha256=""
    )


def test_a_source_without_rows_has_no_document() -> None:
    sources = Sources(manifest((0, 0), (0, 3), (3, 0), (3, 2), (5, 0)))
    assert sources.indices(np.arange(5)).tolist() == [1, 1, 1, 3, 3]
    assert sources.total == 5
    named = Sources(manifest((0, 3), (3, 2), paths=["a.jsonl"]))
    assert [named.row(document) for document in (2, 3, -1)] == [
        *("a.jsonl row 2", "source 1 row 0", "document -1")
    ]


def test_first_documents_that_are_no_sums_are_refused() -> None:
    with pytest.raises(FormatError, match="not the number of documents before"):
        Sources(manifest((0, 3), (4, 2)))
