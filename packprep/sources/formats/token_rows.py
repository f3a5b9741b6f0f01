"""Documents of token ids in files of other tools: Megatron, flat .npy and datatrove.

Each document is a row with the column that `input_ids_column` names. A file with a mask beside it
has also the column that `labels_column` names. They are read in runs of documents, with no work for
each token in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from packprep.sources.formats.format import Format, Input, LocalPath, Wanted
from packprep.sources.formats.row_plan import TokenIds
from packprep.sources.token_files.datatrove import datatrove_layout
from packprep.sources.token_files.flat import npy_layout
from packprep.sources.token_files.layout import TokenLayout
from packprep.sources.token_files.megatron import megatron_layout
from packprep.sources.token_files.names import (
    beside_datatrove,
    beside_megatron,
    beside_npy,
)

_Layout = Callable[[Path, str], TokenLayout]


def _token_format(
    name: str,
    endings: tuple[str, ...],
    beside: Callable[[str, Callable[[str], bool]], list[str]],
    find: _Layout,
) -> Format:
    """Record of a format of token files."""

    def layout(source: Input, path: LocalPath) -> TokenLayout:
        assert path is not None
        return find(Path(path), source.name)

    def tables(source: Input, path: LocalPath, wanted: Wanted) -> Iterator[pa.Table]:
        return _tables(layout(source, path), wanted)

    def row_begins(source: Input, every: int) -> tuple[list[tuple[int, int]], int]:
        if source.is_remote:
            return [], 0
        found = layout(source, source.path)
        steps = max(1, every // found.dtype.itemsize)
        begins, goal = [], steps
        for first, _ in found.runs():
            if found.offsets[first] >= goal:
                begins.append((first, first))
                goal = int(found.offsets[first]) + steps
        return begins, found.documents

    def count(source: Input) -> int | None:
        return None if source.is_remote else layout(source, source.path).documents

    return Format(
        name=name,
        endings=endings,
        columns=_columns,
        tables=tables,
        beside=beside,
        row_begins=row_begins,
        count=count,
        text_per_byte=2.0,  # four bytes for each id, which mostly takes two
    )


def _columns(source: Input, path: LocalPath) -> None:
    """None: every table has all columns."""


def _tables(layout: TokenLayout, wanted: Wanted) -> Iterator[pa.Table]:
    """Runs of documents from row `begin` on, as tables of lists."""
    rows = wanted.plan.rows
    assert isinstance(rows, TokenIds)  # a build of text refuses these files
    ids, mask = rows.sides[0].ids, rows.sides[0].mask if layout.mask is not None else None
    for first, last in layout.runs(wanted.begin):
        offsets = pa.array(layout.offsets[first : last + 1] - layout.offsets[first])
        columns = {ids: _lists(offsets, layout.tokens(first, last))}
        if mask is not None:
            columns[mask] = _lists(offsets, layout.mask_values(first, last))
        yield pa.table(columns)


def _lists(offsets: pa.Array[Any], values: Any) -> pa.Array[Any]:
    flat: Any = pa.array(values)
    lists: pa.Array[Any] = pa.LargeListArray.from_arrays(cast("pa.Int64Array", offsets), flat)
    return lists


MEGATRON = _token_format("megatron", ("bin", "idx"), beside_megatron, megatron_layout)
NPY = _token_format("npy", ("npy",), beside_npy, npy_layout)
DATATROVE = _token_format("datatrove", ("ds",), beside_datatrove, datatrove_layout)
