"""All tokens of a split in one file, and where segments and packs begin.

megatron  SPLIT.bin, SPLIT.idx: sequences are segments, and the document index marks the packs.
          Layout of Megatron-LM's megatron/core/datasets/indexed_dataset.py: "MMIDIDX", two zero
          bytes, version 1, dtype, number of sequences, number of entries of the document index;
          then lengths int32, byte offsets int64, document index int64
npy       SPLIT.npy: ids without a header, as OLMo-core and nanoGPT map them; SPLIT.csv.gz: first
          token and end of each segment, as dolma writes them; SPLIT.offsets.npy: int64 [packs + 1],
          first token of each pack and the end; SPLIT.label_mask.npy: a bool per token, False where
          there is no loss, if any token but the first of a segment has none
"""

import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packprep.exports.folder import ExportFile, ExportFolder
from packprep.exports.packs import PackBatch
from packprep.schemas.manifest import Manifest
from packprep.schemas.names import array
from packprep.support.arrays import Bools, Int64
from packprep.support.errors import ConfigError

_MEGATRON_CODES = {"uint16": 8, "int32": 4}
_MEGATRON_UINT16 = 65500  # ids below this are uint16, by DType.optimal_dtype
_GZIP = 16 + zlib.MAX_WBITS  # window bits that ask zlib for the header of gzip, without a date
_ROWS = 1 << 20  # rows of an index that are in memory at a time
_CELLS = 1 << 16  # tokens that are converted at a time: they fit a core's cache


class _FlatWriter:
    """Common part of the formats of this module: tokens, and indexes that grow beside them.

    Tokens are in the file `name`, without padding, in the narrow type `dtype`.
    """

    def __init__(self, folder: ExportFolder, split: str, name: str, dtype: str) -> None:
        self.folder, self.split, self.dtype = folder, split, dtype
        self._tokens = folder.grow(name)
        self._narrow = np.empty(_CELLS, dtype)
        self._lengths = folder.grow(f"{split}.lengths")  # int32, tokens of each segment
        self._packs = folder.grow(f"{split}.packs")  # int32, segments of each pack

    def _add(self, batch: PackBatch) -> Bools | None:
        """Append packs. Returns which tokens were written, or None for all."""
        lengths, kept = batch.real_lengths, None
        counts = np.diff(batch.segments)
        if batch.pads:
            kept = batch.real_tokens
            counts = np.add.reduceat(lengths > 0, batch.segments[:-1])
            lengths, counts = lengths[lengths > 0], counts[counts > 0]
        self._add_tokens(batch.tokens if kept is None else batch.tokens[kept])
        self._lengths.write(lengths.astype(np.int32))
        self._packs.write(counts.astype(np.int32))
        return kept

    def _add_tokens(self, tokens: Any) -> None:
        if tokens.dtype.itemsize == self._narrow.dtype.itemsize:
            self._tokens.write(tokens)
            return
        # Ids are checked against the vocabulary, so they fit.
        for first in range(0, len(tokens), _CELLS):
            part = tokens[first : first + _CELLS]
            np.copyto(self._narrow[: len(part)], part, casting="unsafe")
            self._tokens.write(self._narrow[: len(part)])

    def _side(self, name: str) -> np.ndarray[Any, np.dtype[np.int32]]:
        """A growing index, mapped."""
        path = self.folder.path / f"{self.split}.{name}"
        if not path.stat().st_size:
            return np.empty(0, np.int32)
        return np.memmap(path, np.int32, "r")

    def _drop_sides(self) -> None:
        self.folder.drop(f"{self.split}.lengths")
        self.folder.drop(f"{self.split}.packs")


class MegatronWriter(_FlatWriter):
    """`.bin` and `.idx` of Megatron-LM."""

    def __init__(self, folder: ExportFolder, manifest: Manifest, split: str) -> None:
        dtype = "uint16" if manifest.vocab_size < _MEGATRON_UINT16 else "int32"
        super().__init__(folder, split, f"{split}.bin", dtype)

    def write_shard(self, number: int, batches: Iterable[PackBatch]) -> None:
        """Append the packs of a shard to the files of the split."""
        for batch in batches:
            if batch.has_untrained:
                raise ConfigError(
                    "the output has tokens without loss, and .bin/.idx has no place for labels; "
                    "choose another format, such as npy, which has a mask, or parquet"
                )
            self._add(batch)

    def finish(self) -> None:
        """Write the index."""
        lengths, packs = self._side("lengths"), self._side("packs")
        size = np.dtype(self.dtype).itemsize
        with self.folder.new(f"{self.split}.idx") as file:
            file.write(b"MMIDIDX\x00\x00" + struct.pack("<QB", 1, _MEGATRON_CODES[self.dtype]))
            file.write(struct.pack("<QQ", len(lengths), len(packs) + 1))
            _copy(lengths, file)
            _write_running(lengths, file, size, with_end=False)
            _write_running(packs, file, 1, with_end=True)
        self._drop_sides()


class NpyWriter(_FlatWriter):
    """Flat ids, documents of dolma, offsets of packs."""

    def __init__(self, folder: ExportFolder, manifest: Manifest, split: str) -> None:
        dtype = "uint16" if manifest.vocab_size <= 1 << 16 else "uint32"
        super().__init__(folder, split, f"{split}.npy", dtype)
        self._mask = None
        if any(column.name == "labels" for column in manifest.columns):
            self._mask = folder.grow(f"{split}.label_mask.npy")

    def write_shard(self, number: int, batches: Iterable[PackBatch]) -> None:
        """Append the packs of a shard to the files of the split."""
        for batch in batches:
            kept = self._add(batch)
            if self._mask is None:
                continue
            if batch.has_other_targets:
                raise ConfigError(
                    "the output has labels that are other ids than the tokens, and npy has only a "
                    "mask for them; choose another format, such as parquet"
                )
            self._mask.write(batch.trained if kept is None else batch.trained[kept])

    def finish(self) -> None:
        """Write the documents and the offsets of packs."""
        lengths, packs = self._side("lengths"), self._side("packs")
        with self.folder.new(f"{self.split}.csv.gz") as file:
            # Runs alone: numbers that rise have few other repetitions, and it takes a third less.
            packed = zlib.compressobj(1, zlib.DEFLATED, _GZIP, strategy=zlib.Z_RLE)
            for ends, sizes in _running(lengths):
                file.write(packed.compress(_joined_lines([ends - sizes, ends])))
            file.write(packed.flush())
        with self.folder.new(f"{self.split}.offsets.npy") as out:
            out.write_array_header(len(packs) + 1)
            out.write(np.zeros(1, np.int64))
            segment = 0
            total = 0
            for first in range(0, len(packs), _ROWS):
                counts = packs[first : first + _ROWS].astype(np.int64)
                sizes = np.asarray(lengths[segment : segment + int(counts.sum())], np.int64)
                starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
                ends = total + np.cumsum(np.add.reduceat(sizes, starts))
                out.write(ends)
                segment, total = segment + len(sizes), int(ends[-1])
        self._drop_sides()


def _joined_lines(columns: Sequence[Int64]) -> memoryview:
    """Numbers as lines of CSV."""
    texts: list[Any] = [pc.cast(array(column), pa.string()) for column in columns]
    commas: list[Any] = [part for text in texts for part in (text, ",")][:-1]
    lines: Any = pc.binary_join_element_wise(*commas, "\n", "")
    ends = np.frombuffer(lines.buffers()[1], np.int32)
    return memoryview(lines.buffers()[2])[: int(ends[len(lines)])]


def _running(values: Any) -> Any:
    """Running sums of a long array, in parts: (ends int64, the part as int64)."""
    total = 0
    for first in range(0, len(values), _ROWS):
        part = np.asarray(values[first : first + _ROWS], np.int64)
        ends = total + np.cumsum(part)
        total = int(ends[-1])
        yield ends, part


def _write_running(values: Any, file: ExportFile, factor: int, *, with_end: bool) -> None:
    """Write where each value begins, times `factor`, as int64; and the end of the last."""
    end = 0
    for ends, part in _running(values):
        file.write((ends - part) * factor)
        end = int(ends[-1])
    if with_end:
        file.write(np.array([end * factor], np.int64))


def _copy(values: Any, file: ExportFile) -> None:
    for first in range(0, len(values), _ROWS):
        file.write(np.ascontiguousarray(values[first : first + _ROWS]))
