"""Rows of token ids that another tool packed, split into the documents that they hold."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.schemas.columns import WHOLE_ROW

Boundary = tuple[str, int]
"""eos or bos, and the token: a document ends with it, or begins with it."""


def split_at_boundaries(
    table: pa.Table, boundary: Boundary
) -> tuple[pa.Table, NDArray[np.int64], NDArray[np.int32]]:
    """Split the lists of each row where its `ids` have a boundary; other columns are repeated.

    Documents end with each EOS, or begin with each BOS, so that a run of them makes documents of
    one token. A row without ids is one document. All lists are as long as `ids`.

    Returns a row for each document, the row of each before, int64 [documents], and its number in
    that row from 0, or WHOLE_ROW where it is the only one, int32 [documents].

    Example: ids [5, 2, 2, 7] with ("eos", 2) -> [5, 2], [2], [7]
    """
    kind, token = boundary
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    lists = cast("pa.ListArray[Any]", columns["ids"])
    offsets = lists.offsets.to_numpy().astype(np.int64)
    ids: NDArray[np.int32] = lists.values.to_numpy()[offsets[0] : offsets[-1]]
    offsets = offsets - offsets[0]
    matches = np.flatnonzero(ids == token) + (kind == "eos")
    # A row begins a document, which a match at its beginning, or at the end of the row before,
    # begins too.
    starts = np.union1d(matches[matches < len(ids)], offsets[:-1][np.diff(offsets) > 0])
    rows = np.searchsorted(offsets, starts, side="right") - 1
    empty = np.flatnonzero(np.diff(offsets) == 0)
    order = np.argsort(np.append(rows, empty), kind="stable")
    rows, starts = np.append(rows, empty)[order], np.append(starts, offsets[empty])[order]
    counts = np.bincount(rows, minlength=len(table))
    firsts = np.cumsum(counts) - counts
    numbers = np.where(counts[rows] > 1, np.arange(len(rows)) - firsts[rows], WHOLE_ROW)
    ends = pa.array(np.append(starts, len(ids)).astype(np.int32), pa.int32())

    def split(column: pa.Array[Any]) -> pa.Array[Any]:
        if not pa.types.is_list(column.type):
            return column.take(pa.array(rows, pa.int64()))
        values = cast("pa.ListArray[Any]", column).flatten()
        parts: pa.ListArray[Any] = pa.ListArray.from_arrays(ends, values)
        return parts

    parts = pa.table({name: split(column) for name, column in columns.items()})
    return parts, rows, numbers.astype(np.int32)
