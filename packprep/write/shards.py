"""Write the packs of a window as shards, and its receipt: gathered, checked, hashed.

A shard is an Arrow stream of record batches of about half a million tokens: larger ones hash and
write slower, because they do not fit the processor's cache.
"""

import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ..packing.kernels.common import MANY
from ..packing.kernels.gather import copy_compiled
from ..plan.account import Sums
from ..plan.types import Packs
from ..schemas.arrays import Int64
from ..schemas.columns import Column, plan_columns, schema_of
from ..schemas.files import Files
from ..schemas.gather import Layout, copy_runs, pack_columns, plan_batch
from ..schemas.validate import check_batch
from ..support.ahead import ahead, ranges
from ..support.records import read_record, write_record, writing
from ..tokens.store import WatchedFile

BATCH_TOKENS = 1 << 19
_KEPT = 64  # record batches whose documents stay in memory: 128 MB of tokens


@dataclass(frozen=True, kw_only=True)
class ShardFile:
    """A shard as it was written. batches: place in the file, first pack of each record batch."""

    name: str
    split: str
    bytes: int
    sha256: str
    packs: int
    segments: int
    tokens: int
    batches: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class WindowFile:
    """Receipt of a window.

    made_from: digest of all that decides its bytes. sums: account by number of source, -1 is of no
    source. figures: its row in report.json. sizes: packs by their number of segments.
    """

    made_from: str = ""
    shards: tuple[ShardFile, ...] = ()
    sums: Mapping[int, Mapping[str, Any]]
    figures: Mapping[str, Any]
    sizes: Mapping[int, int]

    @property
    def account(self) -> dict[int, Sums]:
        """The sums."""
        return {number: Sums.from_json(sums) for number, sums in self.sums.items()}


def write_shards(
    packs: Packs, layout: Layout, folder: Path, name: str, split: str, shard_size: int
) -> list[ShardFile]:
    """Write all packs of a window, or their plan if its documents have places.

    name: of the window; shards are NAME-00000.arrow, and so on.
    """
    sizes = pack_bytes(layout.columns, packs.lengths, np.diff(packs.offsets))
    return [
        _write_shard(packs, first, last, layout, folder, f"{name}-{number:05d}.arrow", split)
        for number, (first, last) in enumerate(ranges(sizes, shard_size))
    ]


def pack_bytes(columns: tuple[Column, ...], tokens: Int64, segments: Int64) -> Int64:
    """Bytes that each pack takes in a shard, [packs]."""
    per = {"token": tokens, "segment": segments, "boundary": segments + 1}
    total: Int64 = sum(
        (4 + per[column.kind] * np.dtype(column.dtype).itemsize for column in columns),
        np.zeros(len(tokens), np.int64),
    )
    return total


def record_batches(
    packs: Packs, layout: Layout, where: str, first: int = 0, last: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Packs first..last - 1 as checked record batches, or their plan if documents have places.

    where: name of the file, for messages.
    """
    last = len(packs) if last is None else last
    # So many segments are copied by numpy faster than a compiler is loaded.
    copy = copy_runs if len(packs.segments) <= MANY else copy_compiled

    def made(numbered: tuple[int, tuple[int, int]]) -> pa.RecordBatch:
        number, part = numbered
        if number % _KEPT == 0:
            packs.documents.drop_pages()
        table = packs.table(first + part[0], first + part[1])
        if (places := packs.documents.place) is not None:
            return plan_batch(table, places, layout.columns)
        batch = pack_columns(table, packs.documents, layout, copy=copy)
        check_batch(batch, layout, where, part[0])
        return batch

    parts = ranges(packs.lengths[first:last], BATCH_TOKENS)
    return ahead(made, enumerate(parts), 1)  # gathering beside hashing and writing


def _write_shard(
    packs: Packs, first: int, last: int, layout: Layout, folder: Path, name: str, split: str
) -> ShardFile:
    sha256, blocks, places = hashlib.sha256(), list[memoryview](), list[tuple[int, int]]()

    def update(some: list[memoryview]) -> None:
        for block in some:
            sha256.update(block)

    with writing(folder / name) as raw, ThreadPoolExecutor(1) as pool:
        file = WatchedFile(raw, blocks.append)
        is_plan = packs.documents.place is not None
        schema = schema_of(plan_columns(layout.columns) if is_plan else layout.columns)
        with pa.ipc.new_stream(file, schema) as writer:  # type: ignore[arg-type]
            hashing, done = pool.submit(update, []), 0
            for batch in record_batches(packs, layout, name, first, last):
                places.append((file.bytes, done))
                done += len(batch)
                writer.write_batch(batch)
                hashing.result()
                hashing = pool.submit(update, blocks.copy())
                blocks.clear()
        hashing.result()
        update(blocks)
    return ShardFile(
        name=name,
        split=split,
        bytes=file.bytes,
        sha256=sha256.hexdigest(),
        packs=last - first,
        segments=int(packs.offsets[last] - packs.offsets[first]),
        tokens=int(packs.lengths[first:last].sum()),
        batches=tuple(places),
    )


def write_window(work: Files, name: str, made: WindowFile) -> None:
    """Write the receipt of a window, after its shards. work: files of the output that is made."""
    write_record(work.drafts / _receipt(name), made)
    work.put(*(f"shards/{shard.name}" for shard in made.shards), _receipt(name))


def _receipt(name: str) -> str:
    return f"receipts/{name}.json"


def read_window(work: Files, name: str, made_from: str) -> WindowFile | None:
    """The receipt of a window whose shards are all there and intact, made from this; else None."""
    receipt = read_record(work, _receipt(name), WindowFile)
    if receipt is None or receipt.made_from != made_from:
        return None
    shards = ((f"shards/{shard.name}", shard.bytes, shard.sha256) for shard in receipt.shards)
    return receipt if all(work.has(*shard) for shard in shards) else None
