"""Write the packs of a window as shards: gathered, checked, hashed, and complete or absent.

A shard is an Arrow stream of record batches of about half a million tokens: larger ones hash and
write slower, because they do not fit the processor's cache.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..packing.kernels.gather import copy_compiled
from ..plan.types import Packs
from ..schemas.arrays import Int64
from ..schemas.columns import Column, schema_of
from ..schemas.files import writing
from ..schemas.gather import Layout, copy_runs, pack_columns
from ..schemas.validate import check_batch
from ..support.ahead import ahead, ranges
from ..tokens.store import HashedFile
from .receipts import ShardFile

BATCH_TOKENS = 1 << 19
_FEW = 2000  # segments that numpy copies faster than a compiler is loaded


def write_shards(
    packs: Packs, layout: Layout, folder: Path, name: str, split: str, shard_size: int
) -> list[ShardFile]:
    """Write all packs of a window. name: of the window; shards are NAME-00000.arrow, and so on."""
    sizes = pack_bytes(layout.columns, packs.lengths, np.diff(packs.offsets))
    return [
        _write_shard(packs, first, last, layout, folder, f"{name}-{number:05d}.arrow", split)
        for number, (first, last) in enumerate(ranges(sizes, shard_size))
    ]


def pack_bytes(columns: tuple[Column, ...], tokens: Int64, segments: Int64) -> Int64:
    """Bytes that each pack takes in a shard, [packs]."""
    per = {"token": tokens, "segment": segments, "boundary": segments + 1}
    total: Int64 = sum(
        (4 + per[column.kind] * column.numpy_dtype.itemsize for column in columns),
        np.zeros(len(tokens), np.int64),
    )
    return total


def record_batches(
    packs: Packs, layout: Layout, where: str, first: int = 0, last: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Packs first..last - 1 as checked record batches. where: name of the file, for messages."""
    last = len(packs) if last is None else last
    copy = copy_runs if len(packs.segments) <= _FEW else copy_compiled

    def made(part: tuple[int, int]) -> pa.RecordBatch:
        table = packs.table(first + part[0], first + part[1])
        batch = pack_columns(table, packs.documents, layout, copy=copy)
        check_batch(batch, layout, where, part[0])
        return batch

    parts = ranges(packs.lengths[first:last], BATCH_TOKENS)
    return ahead(made, parts, 1)  # gathering beside hashing and writing


def _write_shard(
    packs: Packs, first: int, last: int, layout: Layout, folder: Path, name: str, split: str
) -> ShardFile:
    places: list[tuple[int, int]] = []
    with writing(folder / name) as raw:
        file = HashedFile(raw, _LateSha256())
        with pa.ipc.new_stream(file, schema_of(layout.columns)) as writer:  # type: ignore[arg-type]
            written = 0
            for batch in record_batches(packs, layout, name, first, last):
                places.append((file.bytes, written))
                written += len(batch)
                writer.write_batch(batch)
        digest = file.hasher.hexdigest()
    return ShardFile(
        name=name,
        split=split,
        bytes=file.bytes,
        sha256=digest,
        packs=last - first,
        segments=int(packs.offsets[last] - packs.offsets[first]),
        tokens=int(packs.lengths[first:last].sum()),
        batches=tuple(places),
    )


class _LateSha256:
    """A sha256 that a second thread computes. A block must not change after `update`."""

    def __init__(self) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._sha256, self._small = hashlib.sha256(), list[memoryview]()
        self._pool, self._running = ThreadPoolExecutor(1), list[Any]()

    def update(self, block: memoryview) -> None:
        """Hash a block later; large ones at once, small ones together."""
        self._small.append(block)
        if block.nbytes >= 1 << 16 or len(self._small) > 100:
            self._submit()
            if len(self._running) > 8:  # blocks that wait in memory
                self._running.pop(0).result()

    def _submit(self) -> None:
        self._running.append(self._pool.submit(self._hash, self._small))
        self._small = []

    def _hash(self, blocks: list[memoryview]) -> None:
        for block in blocks:
            self._sha256.update(block)

    def hexdigest(self) -> str:
        """Digest of all blocks."""
        self._submit()
        for future in self._running:
            future.result()
        self._pool.shutdown()
        return self._sha256.hexdigest()
