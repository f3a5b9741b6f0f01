import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from packprep.config.build_config import BuildConfig
from packprep.execute.pipeline import build
from packprep.loaders import PackedShards
from packprep.sources.formats.format import Format, Input, LocalPath, Wanted
from packprep.sources.formats.registry import FORMATS, format_of, known_endings
from packprep.support.errors import InputError
from packprep.support.problems import no_problems
from tests.helpers.corpus import build_options, write_jsonl
from tests.helpers.errors import refused


def _row(line: bytes) -> dict[str, str]:
    """Cells by name, b"text=a b;id=1" -> {"text": "a b", "id": "1"}."""
    return dict(pair.split("=", 1) for pair in line.decode().rstrip("\n").split(";"))


def _tables(file: Any, source: Input, wanted: Wanted) -> Iterator[pa.Table]:
    for line in file:
        row = _row(line)
        arrays = [pa.array([row.get(name)], pa.string()) for name in wanted.columns]
        yield pa.table([*arrays, no_problems(1)], names=[*wanted.columns, "problem"])


def _columns(source: Input, path: LocalPath) -> Sequence[str]:
    with source.plain() as file:
        return list(_row(file.readline()))


ROWS = Format(
    name="rows",
    endings=("rows",),
    columns=_columns,
    tables=_tables,
    numbers_are_text=True,
    line_of_row=lambda source, row: row + 1,
)


def built(source: Path) -> list[list[int]]:
    """Tokens and ids of the packs of a build whose rows carry their id."""
    output = source.with_suffix(".out")
    options = build_options(source.parent, {}, sources=[str(source)], output=str(output))
    build(BuildConfig(**options | {"max_length": 16, "carry": ["id"], "overwrite": True}))
    return [pack.tokens.tolist() + pack.columns["id"].tolist() for pack in PackedShards(output)]


def test_a_format_that_is_registered_is_built_from_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORMATS, "rows", ROWS)
    plain, packed = tmp_path / "a.rows", tmp_path / "b.rows.gz"
    plain.write_text("text=The cat sat;id=1\ntext=a=b;id=2\n")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    as_json = [{"text": "The cat sat", "id": 1}, {"text": "a=b", "id": 2}]
    expected = built(write_jsonl(tmp_path / "c.jsonl", as_json))
    assert built(plain) == built(packed) == expected
    plain.write_text("title=x;id=1\n")
    with refused(InputError, "a.rows has no column 'text'; it has title, id"):
        built(plain)
    plain.write_text("text=x;id=1\nid=2\n")
    with refused(InputError, "a.rows row 1 (line 2): the row has no 'text'"):
        built(plain)


def test_an_ending_belongs_to_one_format_and_is_named_where_none_is_known() -> None:
    endings = [ending for one in FORMATS.values() for ending in one.endings]
    assert len(set(endings)) == len(endings)
    assert all(f".{ending}" in known_endings() for ending in endings)
    assert format_of("a.rows") is None
    assert format_of("DATA.TSV.GZ") is FORMATS["csv"]
