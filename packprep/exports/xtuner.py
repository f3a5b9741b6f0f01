"""Packs as XTuner's preset packs: rows of tokens, and which rows are a pack.

SPLIT/rows-NNNNN.jsonl  a line for each segment: input_ids, labels, num_tokens, as XTuner's tokenize
                        functions return them
SPLIT/paths.json        the files of rows
SPLIT/samples.npy       int64 [segments, 6]: file, line, -1, -1, 0, number of tokens
SPLIT/boundaries.npy    int64 [packs + 1]: first row of samples.npy of each pack, and the end
SPLIT/order.npy         int64 [packs]: 0, 1, 2, ..., the order for XTuner's preset sampler

The names in paths.json begin with the directory as it was given: XTuner compares them with the
`anno_path` of its datasets.
"""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packprep.exports.folder import ExportFolder
from packprep.exports.packs import PackBatch
from packprep.schemas.manifest import Manifest
from packprep.schemas.names import array

_ROWS = 1 << 20  # rows of samples.npy that are in memory at a time


class XtunerWriter:
    """Rows, samples and boundaries of a split."""

    def __init__(
        self, folder: ExportFolder, manifest: Manifest, split: str, directory: str
    ) -> None:
        self._folder, self._split = folder, split
        shards = range(len(manifest.shards(split)))
        self._names = [f"{split}/rows-{number:05d}.jsonl" for number in shards]
        self._paths = [f"{directory.rstrip('/')}/{name}" for name in self._names]
        self._samples = folder.grow(f"{split}/samples")  # int32 [segments, 3]
        self._packs = folder.grow(f"{split}/packs")  # int32, segments of each pack

    def write_shard(self, number: int, batches: Iterable[PackBatch]) -> None:
        """Write the rows of a shard."""
        line = 0
        with self._folder.new(self._names[number]) as file:
            for batch in batches:
                lengths = np.diff(batch.bounds)
                file.write(_lines(batch))
                lines = np.arange(line, line + len(lengths))
                sample = np.stack([np.full(len(lengths), number), lines, lengths], axis=1)
                self._samples.write(sample.astype(np.int32))
                self._packs.write(np.diff(batch.segments).astype(np.int32))
                line += len(lengths)

    def finish(self) -> None:
        """Write the arrays."""
        split, folder = self._split, self._folder
        samples = np.frombuffer((folder.path / split / "samples").read_bytes(), np.int32)
        packs = np.frombuffer((folder.path / split / "packs").read_bytes(), np.int32)
        rows = samples.reshape(-1, 3)
        with folder.new(f"{split}/samples.npy") as file:
            file.write_array_header(len(rows), 6)
            for first in range(0, len(rows), _ROWS):
                part = rows[first : first + _ROWS]
                table = np.zeros((len(part), 6), np.int64)
                table[:, :2] = part[:, :2]
                table[:, 2:4] = -1
                table[:, 5] = part[:, 2]
                file.write(table)
        with folder.new(f"{split}/boundaries.npy") as file:
            file.write_array_header(len(packs) + 1)
            file.write(np.concatenate([[0], np.cumsum(packs, dtype=np.int64)]))
        with folder.new(f"{split}/order.npy") as file:
            file.write_array_header(len(packs))
            file.write(np.arange(len(packs), dtype=np.int64))
        folder.write(f"{split}/paths.json", json.dumps(self._paths).encode())
        folder.drop(f"{split}/samples")
        folder.drop(f"{split}/packs")


def _lines(batch: PackBatch) -> memoryview:
    """Each segment as a line of JSON."""
    offsets: Any = array(batch.bounds.astype(np.int32))

    def joined(values: Any) -> Any:
        texts = pc.cast(array(values), pa.string())
        return pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ",")

    parts = [
        '{"input_ids": [',
        joined(batch.tokens),
        '], "labels": [',
        joined(batch.labels),
        '], "num_tokens": ',
        pc.cast(array(np.diff(batch.bounds)), pa.string()),
        "}\n",
    ]
    lines: Any = pc.binary_join_element_wise(*parts, "")
    first, last = (lines.offset, lines.offset + len(lines))
    ends = np.frombuffer(lines.buffers()[1], np.int32)
    return memoryview(lines.buffers()[2])[int(ends[first]) : int(ends[last])]
