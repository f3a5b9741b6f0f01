"""Shards of an index output: packs are gathered from mapped token files when they are read.

A record batch is prepared once, in a few numpy passes: where its segments are in the token files.
Then a pack costs one call of a compiled function that copies its tokens into the batch. Without
numba, numpy copies them, a segment at a time.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from packprep.schemas.index.gathered import IndexPacks
from packprep.schemas.index.runs import Copy, copy_by, copy_runs
from packprep.schemas.index.stored_plan import IndexBatch
from packprep.schemas.index.token_store import TokenStore
from packprep.schemas.manifest import Manifest
from packprep.schemas.views import list_view

from .compiling import compiled
from .mapped import BatchRows, StoredShard, real_values

_KEPT_SEGMENTS = 5 << 20  # about 50 bytes each; four shards of 500 MB have half a million


class IndexRows(BatchRows):
    """The packs of one record batch of an index; see `BatchRows`."""

    def __init__(self, batch: IndexBatch, dtypes: dict[str, np.dtype[Any]]) -> None:
        super().__init__(batch.views)
        batch.forget()
        self._batch, self._dtypes = batch, dtypes
        self._segments: memoryview = batch.offsets.data
        self._starts: memoryview = batch.starts[batch.offsets].data

    @property
    def segments(self) -> int:
        return len(self._batch.lengths)

    def tokens(self, row: int) -> int:
        return int(self._starts[row + 1] - self._starts[row])

    def fill(self, name: str, row: int, out: NDArray[Any]) -> None:
        if name in self._columns:
            out[:] = super().get(name, row)
        else:
            self._batch.fill(name, self._segments[row], self._segments[row + 1], out)

    def get(self, name: str, row: int) -> NDArray[Any]:
        if name in self._columns:
            return super().get(name, row)
        values = np.empty(self.tokens(row), self._dtypes[name])
        self.fill(name, row, values)
        values.flags.writeable = False
        return values

    def all(self, row: int) -> dict[str, NDArray[Any]]:
        return {name: self.get(name, row) for name in self._dtypes}


class Gathered(IndexPacks):
    """State that the shards of an index output share: token files, and recent record batches."""

    def __init__(self, store: TokenStore, manifest: Manifest) -> None:
        super().__init__(store, manifest, compiled_copy() or copy_runs)
        self.dtypes = {column.name: column.numpy_dtype for column in manifest.columns}
        self._recent: OrderedDict[tuple[str, int], IndexRows] = OrderedDict()
        self._segments = 0
        self._lock = threading.Lock()

    def recent(self, shard: str, number: int) -> IndexRows | None:
        return self._recent.get((shard, number))

    def keep(self, shard: str, number: int, rows: IndexRows) -> None:
        """Keep a record batch; the oldest are dropped."""
        with self._lock:
            self._segments += rows.segments
            self._recent[shard, number] = rows
            while self._segments > _KEPT_SEGMENTS and len(self._recent) > 1:
                self._segments -= self._recent.popitem(last=False)[1].segments

    def fetch(self, shard: str) -> None:
        """Fetch the token files of a shard, if they are at a URL."""
        self.store.fetch(self.window_of[shard])

    def release(self) -> None:
        """Close all token files until they are read again."""
        with self._lock:
            self._recent, self._segments = OrderedDict(), 0
        self.store.release()

    def __getstate__(self) -> NoReturn:
        raise TypeError("PackedShards is pickled as its path")


class IndexShard(StoredShard):
    """The packs of one shard of an index output; see `StoredShard`."""

    def __init__(self, gathered: Gathered, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._gathered = gathered

    def release(self) -> None:
        super().release()
        self._gathered.release()

    def pack_tokens(self) -> NDArray[np.int64]:
        views = [list_view(batch, "lengths", self.where) for batch in self.batches()]
        counts = [
            np.add.reduceat(view.flat, view.offsets[:-1] - view.offsets[0], dtype=np.int64)
            for view in views
        ]
        return np.concatenate([np.empty(0, np.int64), *counts])

    def pack_sequences(self) -> NDArray[np.int64]:
        counts = [np.empty(0, np.int64)]
        for batch in self.batches():
            if "row_store_rows" in batch.schema.names:
                rows = list_view(batch, "row_store_rows", self.where)
                counts.append(np.diff(rows.offsets).astype(np.int64))
            else:
                counts.append(real_values(list_view(batch, "store_rows", self.where)))
        return np.concatenate(counts)

    def find(self, pack: int) -> tuple[BatchRows, int]:
        starts = self._starts or self.starts()
        number = bisect_right(starts, pack) - 1
        rows = self._gathered.recent(self.where, number)
        if rows is None:
            stored = self.stored.read(number).batch
            batch = self._gathered.batch(self.where, stored, starts[number])
            rows = IndexRows(batch, self._gathered.dtypes)
            self._gathered.keep(self.where, number, rows)
        return rows, pack - starts[number]


def compiled_copy() -> Copy | None:
    """`copy_runs`, compiled; None if numba is not installed.

    It is compiled when it is first called with values of a type, and kept on disk.
    """
    try:
        from packprep.schemas.index.copy_loop import copy_loop
    except ImportError:
        return None
    loop = compiled(copy_loop)
    return None if loop is None else copy_by(loop)
