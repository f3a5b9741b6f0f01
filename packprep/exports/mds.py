"""Packs as samples of MosaicML's streaming format, MDS version 2: SPLIT/index.json and shards.

A sample has tokens (uint16 or int32 [tokens], the name that LLM Foundry reads), cu_seqlens (int32
[segments + 1]) and, if the output has labels, labels (int32 [tokens]), each as an ndarray with a
fixed type. Layout of a shard: number of samples uint32, offset of each sample and the end uint32,
the JSON of its columns; then the samples. A sample is the sizes of its columns uint32, then their
bytes; an array is a byte for the type of its shape, the shape, the values.
"""

import json
import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np

from packprep.exports.folder import ExportFolder
from packprep.exports.packs import PackBatch
from packprep.schemas.manifest import Manifest

_LIMIT = 1 << 26  # bytes of a shard, as MDSWriter's default; its offsets have 32 bits
_HEADER = 1 << 10  # bytes before the samples, besides their offsets
_JOINED = 128  # samples that are written at a time: they stay in a processor's cache
_Sample = list["bytes | memoryview"]  # its bytes, in parts


class MdsWriter:
    """MDS shards of a split."""

    def __init__(self, folder: ExportFolder, manifest: Manifest, split: str) -> None:
        self._folder, self._split = folder, split
        self._tokens = "uint16" if manifest.vocab_size <= 1 << 16 else "int32"
        columns = {"cu_seqlens": "int32", "tokens": self._tokens}
        self._has_labels = any(column.name == "labels" for column in manifest.columns)
        if self._has_labels:
            columns = {"cu_seqlens": "int32", "labels": "int32", "tokens": self._tokens}
        self._config: dict[str, Any] = {
            "column_encodings": [f"ndarray:{dtype}" for dtype in columns.values()],
            "column_names": list(columns),  # sorted, as MDSWriter has them
            "column_sizes": [None] * len(columns),
            "compression": None,
            "format": "mds",
            "hashes": [],
            "size_limit": _LIMIT,
            "version": 2,
        }
        self._shards = sum(name.startswith(f"{split}/shard.") for name in folder.complete)

    def write_shard(self, number: int, batches: Iterable[PackBatch]) -> None:
        """Write the packs of a shard, as MDS shards of at most 64 MiB."""
        samples: list[_Sample] = []
        sizes: list[int] = []
        total = 0
        for batch in batches:
            for sample in self._samples(batch):
                size = sum(map(len, sample))
                if samples and total + size + 4 > _LIMIT - _HEADER:
                    self._write(samples, sizes)
                    samples, sizes, total = [], [], 0
                samples.append(sample)
                sizes.append(size)
                total += size + 4
        if samples:
            self._write(samples, sizes)

    def _write(self, samples: list[_Sample], sizes: list[int]) -> None:
        config = json.dumps(self._config, sort_keys=True).encode()
        begin = 4 + 4 * (len(samples) + 1) + len(config)
        offsets = begin + np.concatenate([[0], np.cumsum(sizes)])
        name = f"{self._split}/shard.{self._shards:05d}.mds"
        head = np.uint32(len(samples)).tobytes() + offsets.astype(np.uint32).tobytes() + config
        with self._folder.new(name) as file:
            file.write(head)
            for first in range(0, len(samples), _JOINED):
                file.write(b"".join(chain.from_iterable(samples[first : first + _JOINED])))
        self._shards += 1
        self._folder.complete[name]["samples"] = len(samples)

    def finish(self) -> None:
        """Write the index."""
        shards = []
        for number in range(self._shards):
            basename = f"shard.{number:05d}.mds"
            receipt = self._folder.complete[f"{self._split}/{basename}"]
            raw = {"basename": basename, "bytes": receipt["bytes"], "hashes": {}}
            shards.append(
                self._config | {"raw_data": raw, "samples": receipt["samples"], "zip_data": None}
            )
        index = json.dumps({"version": 2, "shards": shards}, sort_keys=True)
        self._folder.write(f"{self._split}/index.json", index.encode())

    def _samples(self, batch: PackBatch) -> Iterator[_Sample]:
        """Each pack as a sample."""
        arrays: list[Any] = [batch.labels] if self._has_labels else []
        arrays.append(batch.tokens.astype(self._tokens, copy=False))
        columns = [(memoryview(array).cast("B"), array.itemsize) for array in arrays]
        cu_seqlens: Any = batch.cu_seqlens
        boundaries = memoryview(cu_seqlens).cast("B")
        heads = struct.Struct(f"<{1 + len(columns)}I")
        packs, segments = batch.packs.tolist(), batch.segments.tolist()
        for pack in range(len(packs) - 1):
            first, last = packs[pack], packs[pack + 1]
            begin, end = 4 * (segments[pack] + pack), 4 * (segments[pack + 1] + pack + 1)
            head, head_of_ends = _array_head(last - first), _array_head((end - begin) // 4)
            sizes = [len(head) + width * (last - first) for _, width in columns]
            sample: _Sample = [
                heads.pack(len(head_of_ends) + end - begin, *sizes) + head_of_ends,
                boundaries[begin:end],
            ]
            for values, width in columns:
                sample += (head, values[width * first : width * last])
            yield sample


@lru_cache(1 << 16)
def _array_head(size: int) -> bytes:
    """Shape of a one-dimensional array: its number of axes times 4 plus log2 of its bytes."""
    width = next(width for width in range(4) if size < 1 << (8 << width))
    return bytes([1 << 2 | width]) + size.to_bytes(1 << width, "little")
