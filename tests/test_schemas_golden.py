"""tests/golden: outputs of every format version, byte for byte, that every later packprep must read."""

import hashlib
from pathlib import Path

import pytest

from packprep.loaders import PackedShards
from packprep.schemas import check_files, read_manifest

from .tiny_shards import EXAMPLE, GOLDEN, rich_row, write_golden

# The digest of a manifest vouches for every file beside it. A new format version adds a line; no line ever changes.
DIGESTS = {
    "v1-example": "6ffe2fd21311b6a6f9c3a1d3714dfc412572d5fe85a4f6e3bbe85a4a08ec9435",
    "v1-rich": "af5b91bc72c8cb027550bdc785666ab5c7bf03acecc461c2f908708b67c5ab33",
}


def contents(directory: Path) -> dict[str, str]:
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("name", DIGESTS)
def test_a_golden_output_is_as_it_was_written(name: str) -> None:
    manifest = read_manifest(GOLDEN / name)
    assert manifest.sha256 == DIGESTS[name]
    assert check_files(GOLDEN / name, manifest, "sha256") == []


def test_every_golden_output_is_pinned() -> None:
    assert sorted(path.name for path in GOLDEN.iterdir()) == sorted(DIGESTS)


def test_the_same_values_are_written_as_the_same_bytes_today(tmp_path: Path) -> None:
    write_golden(tmp_path)
    assert contents(tmp_path) == contents(GOLDEN)


def test_the_example_is_read_with_its_values() -> None:
    packs = PackedShards(GOLDEN / "v1-example", verify=True)
    assert [{name: values.tolist() for name, values in pack.columns.items()} for pack in packs] == EXAMPLE
    assert packs.report == {"packs": 2}


def test_every_column_and_split_of_the_rich_output_is_read_with_its_values() -> None:
    rows = {
        "train": [rich_row(0, 3, 4), rich_row(2, 1), rich_row(3, 4, 2), rich_row(5, 2)],
        "validation": [rich_row(6, 5)],
    }
    for split, expected in rows.items():
        packs = PackedShards(GOLDEN / "v1-rich", split=split, verify=True)
        assert [{name: values.tolist() for name, values in pack.columns.items()} for pack in packs] == expected
