"""Shards of an index output as packs: their columns, gathered from its token files."""

import pyarrow as pa

from ..manifest import Manifest
from .runs import Copy, copy_runs
from .stored_plan import IndexBatch
from .token_store import TokenStore


class IndexPacks:
    """Packs of the shards of an index output.

    store: its token files. copy: how their values are copied.
    """

    def __init__(self, store: TokenStore, manifest: Manifest, copy: Copy = copy_runs) -> None:
        self.store, self.manifest, self._copy = store, manifest, copy
        shards = [entry.path for entry in manifest.files if entry.is_shard]
        self.window_of = dict(zip(shards, manifest.index_table.shards, strict=True))

    def batch(self, shard: str, stored: pa.RecordBatch, first: int, where: str = "") -> IndexBatch:
        """The packs of a record batch of a shard.

        first: number of its first pack. where: name of the shard in messages, by default its path.
        """
        return IndexBatch(
            stored,
            self.store.window(self.window_of[shard]),
            self.manifest.columns,
            self.manifest.index_table,
            self.manifest.max_length,
            where or shard,
            first,
            self._copy,
        )
