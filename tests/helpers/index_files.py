"""Token files in memory, and record batches of an index over them."""

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa

from packprep.schemas.index.runs import Pointers
from packprep.schemas.index.token_file import TokenFileView
from packprep.schemas.index.token_store import TokenStore, WindowRows
from packprep.schemas.index_table import TokenFileEntry
from packprep.windows.documents import Documents


def token_file(table: pa.Table, cuts: Sequence[int] = ()) -> pa.Buffer:
    """A token file with the rows of a table, in record batches that end at `cuts`."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for first, last in pairwise([0, *sorted(cuts), len(table)]):
            for batch in table.slice(first, last - first).combine_chunks().to_batches():
                writer.write_batch(batch)
    return sink.getvalue()


def table_of(documents: Documents) -> pa.Table:
    """All columns of documents in memory, as a token file has them."""
    columns: dict[str, Any] = {"tokens": _lists(documents.tokens, documents.length)}
    for name, pointers in documents.aligned.items():
        columns[name] = _lists(pointers, documents.length)
    for name, values in documents.values.items():
        columns[name] = pa.array(values.tolist(), pa.from_numpy_dtype(values.dtype))
    return pa.table(columns)


def _lists(pointers: Pointers, lengths: Any) -> Any:
    (values,) = pointers.memory
    begin = (pointers.address - values.ctypes.data) // values.itemsize
    rows = [
        values[first : first + length].tolist()
        for first, length in zip(begin.tolist(), lengths.tolist(), strict=True)
    ]
    return pa.array(rows, pa.list_(pa.from_numpy_dtype(values.dtype)))


class _Files:
    """The part of a `TokenStore` that a window needs."""

    def __init__(self, views: dict[str, TokenFileView]) -> None:
        self._views = views

    def view(self, file: TokenFileEntry) -> TokenFileView:
        return self._views[file.path]


def window_of(documents: Documents, cut: int = 0) -> tuple[Documents, WindowRows]:
    """Documents with their rows, and the window of two token files that has them.

    cut: number of documents in the first file; the second has two record batches.
    """
    table, count = table_of(documents), len(documents)
    cut = min(cut, count)
    entries, views = [], {}
    for first, last in ((0, cut), (cut, count)):
        entry = TokenFileEntry(
            path=f"key/{first}-{last}", bytes=0, xxh3="0" * 32, rows=last - first,
            first_document=first,
        )  # fmt: skip
        buffer = token_file(table.slice(first, last - first), [(last - first) // 2])
        entries.append(entry)
        views[entry.path] = TokenFileView(buffer, entry.path, entry.rows)
    store = cast("TokenStore", _Files(views))
    rows = WindowRows(store, entries, np.array([0, cut, count], np.int64))
    return dataclasses.replace(documents, row=np.arange(count, dtype=np.int32)), rows
