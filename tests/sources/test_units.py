import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.sources import units as units_module
from packprep.sources.formats.row_plan import row_plan
from packprep.sources.units import Part, Slice, read_slices
from packprep.support.errors import InputError
from tests.helpers.corpus import resolved, write_jsonl
from tests.helpers.errors import refused
from tests.helpers.files import config


def units(folder: Path, files: Sequence[Sequence[Any]], **options: Any) -> list[Slice]:
    """Slices of files of rows; a text is a row. Small units are one slice."""
    paths = [write_jsonl(folder / f"{number}.jsonl", rows) for number, rows in enumerate(files)]
    settings = config(sources=paths, **options)
    plans = [row_plan(settings.parsing)] * len(files)
    return list(read_slices(resolved(settings, folder), plans, settings.reading, folder))


def shape(found: Sequence[Slice]) -> list[list[str | None]]:
    return [unit.table["text"].to_pylist() for unit in found]


def test_limit_counts_rows_over_all_files(tmp_path: Path) -> None:
    files: list[list[Any]] = [["a", "b"], ["c", "d"], [{"text": 7}]]
    assert shape(units(tmp_path, files, limit=3)) == [["a", "b", "c"]]
    assert shape(units(tmp_path, files, limit=4)) == [["a", "b", "c", "d"]]
    with refused(InputError, "2.jsonl row 0 (line 1): 'text' is a number"):
        units(tmp_path, files, limit=5)


def test_skipped_rows_keep_their_number_and_are_counted_by_source_and_reason(
    tmp_path: Path,
) -> None:
    files = [["a", {"text": None}], [{"text": 7}, "b", {"text": [1]}, {"text": None}]]
    [unit] = units(tmp_path, files, on_error="skip")
    assert shape([unit]) == [["a", None, None, "b", None, None]]
    assert unit.parts == (Part(0, 2, {"null": 1}), Part(1, 4, {"not_text": 2, "null": 1}))


def test_a_unit_is_read_in_slices_and_cut_where_it_would_be_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units_module, "SLICE_BYTES", 2)
    found = units(tmp_path, [["aaa", "b", "b", "c", "dddddd", "e"]], unit_size=5)
    assert shape(found) == [["aaa"], ["b", "b"], ["c", "dddddd"], ["e"]]
    places = [(part.unit, part.slice, part.first_document) for part in found]
    assert places == [(0, 0, 0), (0, 1, 1), (1, 0, 3), (2, 0, 5)]


@given(
    st.lists(st.lists(st.text(max_size=9), min_size=1), min_size=1, max_size=4), st.integers(1, 30)
)
def test_units_hold_every_row_once_in_order_and_are_as_small_as_can_be(
    files: list[list[str]], size: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = units(Path(folder), files, unit_size=size)
    texts = [text for rows in files for text in rows]
    assert [text for unit in shape(found) for text in unit] == texts
    sizes = [len(unit.table) for unit in found]
    assert [unit.first_document for unit in found] == [sum(sizes[:at]) for at in range(len(found))]
    for unit in found[:-1]:
        *before, last = [len(str(text).encode()) for text in unit.table["text"].to_pylist()]
        assert sum(before) < size <= sum(before) + last == unit.text_bytes
