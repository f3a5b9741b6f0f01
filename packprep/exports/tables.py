"""Packs as rows of tables: Arrow files as `save_to_disk` writes them, and Parquet.

parquet          every column of the shards, Zstandard: for archives and the hub's viewer
trl              input_ids, labels, seq_lengths: rows for TRL's padding-free collator
axolotl          input_ids, labels, position_ids: pre-tokenized rows for Axolotl
llama-factory    tokenized_path: rows of max_length tokens and up to 7 more, for LLaMA-Factory's
                 neat_packing; attention_mask numbers the segments from 1 and is 0 after the pack
megatron-bridge  input_ids, loss_mask, seq_start_id: packed Parquet. A mask's value belongs to the
                 prediction made at its position, so it is 1 where the next token is trained
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packprep.exports.folder import ExportFolder
from packprep.exports.packs import PackBatch, no_packs
from packprep.schemas.canonical import digest_of
from packprep.schemas.columns import NO_LOSS
from packprep.schemas.files import shard_name
from packprep.schemas.manifest import Manifest
from packprep.schemas.names import list_array
from packprep.schemas.storage.writing import write_dataset_dict, write_dataset_files
from packprep.schemas.views import ListView
from packprep.support.arrays import Int64

Fields = Callable[[PackBatch], dict[str, "pa.Array[Any]"]]
# LLaMA-Factory pads tokens and mask to a multiple of 8, but not position_ids.
_LLAMA_FACTORY_MULTIPLE = 8
_ROW_GROUP = 500  # packs; the readers of Megatron-Bridge read a whole group for a pack


def lists(offsets: Int64, values: Any, kind: pa.DataType) -> "pa.Array[Any]":
    """A list column. kind: a type of integers, to which the values are converted."""
    dtype = np.dtype(str(kind))
    view = ListView(offsets.astype(np.int32), np.ascontiguousarray(values, dtype))
    return list_array(view)


def all_fields(batch: PackBatch) -> dict[str, "pa.Array[Any]"]:
    """All columns of the shards."""
    return dict(zip(batch.rows.schema.names, batch.rows.columns, strict=True))


def trl_fields(batch: PackBatch) -> dict[str, "pa.Array[Any]"]:
    """Rows for TRL: a length per segment."""
    return {
        "input_ids": lists(batch.packs, batch.tokens, pa.int32()),
        "labels": lists(batch.packs, batch.labels, pa.int32()),
        "seq_lengths": lists(batch.segments, np.diff(batch.bounds), pa.int32()),
    }


def axolotl_fields(batch: PackBatch) -> dict[str, "pa.Array[Any]"]:
    """Rows for Axolotl: positions begin at 0 in each segment."""
    return {
        "input_ids": lists(batch.packs, batch.tokens, pa.int32()),
        "labels": lists(batch.packs, batch.labels, pa.int32()),
        "position_ids": lists(batch.packs, batch.position_ids(), pa.int32()),
    }


def bridge_fields(batch: PackBatch) -> dict[str, "pa.Array[Any]"]:
    """Rows of Megatron-Bridge's packed Parquet."""
    mask = np.zeros(len(batch.tokens), np.int8)
    mask[:-1] = batch.trained[1:]  # the first token of a segment is never trained
    firsts = batch.bounds[:-1] - np.repeat(batch.packs[:-1], np.diff(batch.segments))
    return {
        "input_ids": lists(batch.packs, batch.tokens, pa.int32()),
        "loss_mask": lists(batch.packs, mask, pa.int8()),
        "seq_start_id": lists(batch.segments, firsts, pa.int32()),
    }


def llama_factory_fields(batch: PackBatch, max_length: int) -> dict[str, "pa.Array[Any]"]:
    """Rows of LLaMA-Factory's neat_packing, all of one length, with padding after the pack."""
    rows = len(batch.packs) - 1
    size = -(-max_length // _LLAMA_FACTORY_MULTIPLE) * _LLAMA_FACTORY_MULTIPLE
    filled = np.arange(size) < np.diff(batch.packs)[:, None]
    offsets = np.arange(rows + 1, dtype=np.int64) * size

    def padded(values: Any, padding: int) -> "pa.Array[Any]":
        table = np.full((rows, size), padding, np.int32)
        table[filled] = values
        return lists(offsets, table.ravel(), pa.int32())

    in_pack = np.arange(int(batch.segments[-1])) - np.repeat(
        batch.segments[:-1], np.diff(batch.segments)
    )
    return {
        "input_ids": padded(batch.tokens, 0),
        "attention_mask": padded(np.repeat(in_pack + 1, np.diff(batch.bounds)), 0),
        "position_ids": padded(batch.position_ids(), 0),
        "labels": padded(batch.labels, NO_LOSS),
    }


class ArrowWriter:
    """A dataset of a split that `datasets.load_from_disk` opens, a file for each shard."""

    def __init__(
        self, folder: ExportFolder, manifest: Manifest, split: str, fields: Fields
    ) -> None:
        self._folder, self._manifest, self._split, self._fields = folder, manifest, split, fields
        shards = len(manifest.shards(split))
        self._names = [shard_name(number, shards) for number in range(shards)]

    def write_shard(self, number: int, batches: Iterable[PackBatch]) -> None:
        """Write the file of a shard."""
        schema = pa.record_batch(self._fields(no_packs(self._manifest))).schema
        with (
            self._folder.new(f"{self._split}/{self._name(number)}") as file,
            self._open(file, schema) as stream,
        ):
            for batch in batches:
                stream.write_batch(pa.record_batch(self._fields(batch)))

    def _name(self, number: int) -> str:
        return self._names[number]

    def _open(self, file: Any, schema: pa.Schema) -> Any:
        return pa.ipc.new_stream(file, schema)

    def finish(self) -> None:
        """Write the files that `load_from_disk` reads."""
        receipts = [self._folder.done.complete[f"{self._split}/{name}"] for name in self._names]
        fingerprint = digest_of(receipts)
        directory = self._folder.path / self._split
        write_dataset_files(directory, self._names, fingerprint=fingerprint, split=self._split)
        write_dataset_dict(self._folder.path, self._manifest.splits)
        self._folder.adopt(
            f"{self._split}/state.json", f"{self._split}/dataset_info.json", "dataset_dict.json"
        )


class ParquetWriter(ArrowWriter):
    """Parquet files of a split, one for each shard."""

    def _name(self, number: int) -> str:
        return super()._name(number).replace(".arrow", ".parquet")

    def _open(self, file: Any, schema: pa.Schema) -> Any:
        return _ParquetStream(file, schema)

    def finish(self) -> None:
        """Do nothing: the files are complete."""


class _ParquetStream(pq.ParquetWriter):
    """Parquet with few packs in a row group."""

    def __init__(self, file: Any, schema: pa.Schema) -> None:
        super().__init__(
            file, schema, compression="zstd", compression_level=3, use_dictionary=False
        )

    def write_batch(self, batch: pa.RecordBatch, row_group_size: int | None = _ROW_GROUP) -> None:
        super().write_batch(batch, row_group_size)


megatron_bridge = partial(ParquetWriter, fields=bridge_fields)
trl = partial(ArrowWriter, fields=trl_fields)
axolotl = partial(ArrowWriter, fields=axolotl_fields)
parquet = partial(ParquetWriter, fields=all_fields)


def llama_factory(folder: ExportFolder, manifest: Manifest, split: str) -> ArrowWriter:
    """Open the writer of a split for LLaMA-Factory, whose rows all have one length."""
    fields = partial(llama_factory_fields, max_length=manifest.max_length)
    return ArrowWriter(folder, manifest, split, fields)
