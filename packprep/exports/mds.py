"""Packs as samples of MosaicML's streaming format, MDS version 2: SPLIT/index.json and shards.

A sample has tokens (uint16 or int32 [tokens], the name that LLM Foundry reads), cu_seqlens (int32
[segments + 1]) and, if the output has labels, labels (int32 [tokens]), each as an ndarray with a
fixed type. Layout of a shard: number of samples uint32, offset of each sample and the end uint32,
the JSON of its columns; then the samples. A sample is the sizes of its columns uint32, then their
bytes; an array is a byte for the type of its shape, the shape, the values.
"""

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.exports.folder import ExportFolder
from packprep.exports.packs import PackBatch
from packprep.schemas.manifest import Manifest
from packprep.support.arrays import Int64

_LIMIT = 1 << 26  # bytes of a shard, as MDSWriter's default; its offsets have 32 bits
_HEADER = 1 << 10  # bytes before the samples, besides their offsets


class MdsWriter:
    """MDS shards of a split."""

    def __init__(self, folder: ExportFolder, manifest: Manifest, split: str) -> None:
        self._folder, self._split = folder, split
        self._tokens = "uint16" if manifest.vocab_size <= 1 << 16 else "int32"
        columns = {"cu_seqlens": "int32", "tokens": self._tokens}
        self._has_labels = any(column.name == "labels" for column in manifest.columns)
        if self._has_labels:
            columns = {"cu_seqlens": "int32", "labels": "int32", "tokens": self._tokens}
        self._config: dict[str, object] = {
            "column_encodings": [f"ndarray:{dtype}" for dtype in columns.values()],
            "column_names": list(columns),  # sorted, as MDSWriter has them
            "column_sizes": [None] * len(columns),
            "compression": None,
            "format": "mds",
            "hashes": [],
            "size_limit": _LIMIT,
            "version": 2,
        }
        self._shards = sum(name.startswith(f"{split}/shard.") for name in folder.done.complete)

    def write_shard(self, number: int, batches: Iterable[PackBatch]) -> None:
        """Write the packs of a shard, as MDS shards of at most 64 MiB."""
        parts: list[memoryview] = []
        sizes: list[int] = []
        room = _LIMIT - _HEADER
        for batch in batches:
            content, of_samples = self._samples(batch)
            begin = end = 0
            for size in of_samples:
                if sizes and size + 4 > room:
                    self._write([*parts, content[begin:end]], sizes)
                    parts, sizes, room, begin = [], [], _LIMIT - _HEADER, end
                sizes.append(size)
                end, room = end + size, room - size - 4
            parts.append(content[begin:end])
        if sizes:
            self._write(parts, sizes)

    def _write(self, parts: Iterable[memoryview], sizes: list[int]) -> None:
        """Write an MDS shard. parts: its samples, one after the other; sizes: bytes of each."""
        config = json.dumps(self._config, sort_keys=True).encode()
        begin = 4 + 4 * (len(sizes) + 1) + len(config)
        offsets = begin + np.concatenate([[0], np.cumsum(sizes)])
        name = f"{self._split}/shard.{self._shards:05d}.mds"
        head = np.uint32(len(sizes)).tobytes() + offsets.astype(np.uint32).tobytes() + config
        with self._folder.new(name) as file:
            file.write(head)
            for part in parts:
                file.write(part)
        self._shards += 1
        self._folder.done.complete[name]["samples"] = len(sizes)

    def finish(self) -> None:
        """Write the index."""
        shards = []
        for number in range(self._shards):
            basename = f"shard.{number:05d}.mds"
            receipt = self._folder.done.complete[f"{self._split}/{basename}"]
            raw = {"basename": basename, "bytes": receipt["bytes"], "hashes": {}}
            shards.append(
                self._config | {"raw_data": raw, "samples": receipt["samples"], "zip_data": None}
            )
        index = json.dumps({"version": 2, "shards": shards}, sort_keys=True)
        self._folder.write(f"{self._split}/index.json", index.encode())

    def _samples(self, batch: PackBatch) -> tuple[memoryview, list[int]]:
        """The samples of all packs, one after the other, and the bytes of each."""
        in_order = np.arange(len(batch.packs))
        columns = [_Arrays(batch.cu_seqlens, batch.segments + in_order)]
        if self._has_labels:
            columns.append(_Arrays(batch.labels, batch.packs))
        columns.append(_Arrays(batch.tokens.astype(self._tokens, copy=False), batch.packs))
        table = np.stack([column.sizes for column in columns], axis=1).astype("<u4")
        sizes = table.sum(axis=1, dtype=np.int64) + 4 * len(columns)
        samples = np.empty(int(sizes.sum()), np.uint8)
        places = np.cumsum(sizes) - sizes
        samples[places[:, None] + np.arange(4 * len(columns))] = table.view(np.uint8)
        places += 4 * len(columns)
        for column in columns:
            column.write(samples, places)
            places += column.sizes
        content: Any = samples
        return memoryview(content), sizes.tolist()


class _Arrays:
    """A column of arrays with one axis: for each a byte, its length, its values.

    The byte is the number of axes times 4, plus the power of two of the bytes of the length.
    """

    def __init__(self, values: Any, offsets: Int64) -> None:
        """Take the arrays values[offsets[i]:offsets[i + 1]]."""
        self._values = memoryview(values).cast("B")
        self._begins = (offsets * values.itemsize).tolist()
        self._lengths = np.diff(offsets)
        self._power = np.where(self._lengths < 1 << 8, 0, np.where(self._lengths < 1 << 16, 1, 2))
        self._head = 1 + (1 << self._power)
        self.sizes = self._head + self._lengths * values.itemsize

    def write(self, samples: NDArray[np.uint8], places: Int64) -> None:
        """Write each array to its place."""
        samples[places] = 1 << 2 | self._power
        lengths = self._lengths.astype("<u4").view(np.uint8).reshape(-1, 4)
        for byte in range(4):
            wide = byte < self._head - 1
            samples[places[wide] + 1 + byte] = lengths[wide, byte]
        content: Any = samples
        out, starts = memoryview(content), (places + self._head).tolist()
        for start, (begin, end) in zip(starts, pairwise(self._begins), strict=True):
            out[start : start + end - begin] = self._values[begin:end]
