"""A format that is registered from outside is built from like any other."""

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from packprep import BuildConfig, build
from packprep.loaders import PackedShards
from packprep.sources.formats.format import Format, Input, LocalPath, Wanted
from packprep.sources.formats.registry import FORMATS
from packprep.support.errors import InputError
from tests.helpers.corpus import build_options, write_jsonl
from tests.helpers.errors import refused


def _row(line: bytes) -> dict[str, str]:
    """Cells by name, b"text=a b;id=1" -> {"text": "a b", "id": "1"}."""
    return dict(pair.split("=", 1) for pair in line.decode().rstrip("\n").split(";"))


def _tables(source: Input, path: LocalPath, wanted: Wanted) -> Iterator[pa.Table]:
    with source.plain() as file:
        for row in map(_row, file):
            arrays = [pa.array([row.get(name)], pa.string()) for name in wanted.plan.columns or row]
            yield pa.table(arrays, names=[*(wanted.plan.columns or row)])


def _columns(source: Input, path: LocalPath) -> Sequence[str]:
    with source.plain() as file:
        return list(_row(file.readline()))


ROWS = Format(
    name="rows",
    endings=("rows",),
    columns=_columns,
    tables=_tables,
    is_streamed=True,
    numbers_are_text=True,
    line_of_row=lambda source, row: row + 1,
)
ROWS_TEXT = "text=The cat sat on the mat;id=1\ntext=a=b;id=2\n"
AS_JSON = [{"text": "The cat sat on the mat", "id": 1}, {"text": "a=b", "id": 2}]


def built(source: Path) -> list[dict[str, Any]]:
    """The packs of a build whose rows carry their id."""
    output = source.with_suffix(".out")
    options = build_options(source.parent, {}, sources=[str(source)], output=str(output))
    build(BuildConfig(**options | {"max_length": 16, "carry": ["id"], "overwrite": True}))
    packs = PackedShards(output)
    return [{name: each.tolist() for name, each in pack.columns.items()} for pack in packs]


def test_a_format_that_is_registered_is_built_from_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORMATS, "rows", ROWS)
    plain, packed = tmp_path / "a.rows", tmp_path / "b.rows.gz"
    plain.write_text(ROWS_TEXT)
    packed.write_bytes(gzip.compress(ROWS_TEXT.encode()))
    assert built(plain) == built(packed) == built(write_jsonl(tmp_path / "c.jsonl", AS_JSON))
    plain.write_text("text=x;id=1\nid=2\n")
    with refused(InputError, "a.rows row 1 (line 2): the row has no 'text'"):
        built(plain)
