"""The formats that an output can be exported to."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Protocol

from packprep.exports.flat import MegatronWriter, NpyWriter
from packprep.exports.folder import ExportFolder
from packprep.exports.mds import MdsWriter
from packprep.exports.packs import PackBatch
from packprep.exports.tables import (
    ArrowWriter,
    ParquetWriter,
    all_fields,
    axolotl_fields,
    bridge_fields,
    llama_factory_fields,
    trl_fields,
)
from packprep.exports.xtuner import XtunerWriter
from packprep.schemas.manifest import Manifest


class Writer(Protocol):
    """Protocol of what writes one split in a format."""

    def write_shard(self, number: int, batches: Iterable[PackBatch]) -> None:
        """Write the packs of one shard of the source."""

    def finish(self) -> None:
        """Write what needs all of them, such as an index."""


@dataclass(frozen=True)
class ExportFormat:
    """A format of another trainer.

    summary: for help. open: makes the writer of a split; its last argument is the directory of the
    export as the user gave it. names_directory: True if files name it.
    """

    summary: str
    open: Callable[[ExportFolder, Manifest, str, str], Writer]
    names_directory: bool = False


def _table(kind: type[ArrowWriter], fields: Callable[..., object]) -> Callable[..., Writer]:
    return lambda folder, manifest, split, _: kind(folder, manifest, split, fields)  # type: ignore[arg-type]


def _llama_factory(folder: ExportFolder, manifest: Manifest, split: str, _: str) -> Writer:
    fields = partial(llama_factory_fields, max_length=manifest.max_length)
    return ArrowWriter(folder, manifest, split, fields)


EXPORT_FORMATS: Mapping[str, ExportFormat] = MappingProxyType(
    {
        "megatron": ExportFormat(
            ".bin and .idx of Megatron-LM; segments are its sequences, packs its documents",
            lambda folder, manifest, split, _: MegatronWriter(folder, manifest, split),
        ),
        "megatron-bridge": ExportFormat(
            "packed Parquet of Megatron-Bridge: input_ids, loss_mask, seq_start_id",
            _table(ParquetWriter, bridge_fields),
        ),
        "npy": ExportFormat(
            "flat ids, documents in .csv.gz and offsets of packs: OLMo-core, nanoGPT",
            lambda folder, manifest, split, _: NpyWriter(folder, manifest, split),
        ),
        "mds": ExportFormat(
            "shards of MosaicML streaming",
            lambda folder, manifest, split, _: MdsWriter(folder, manifest, split),
        ),
        "trl": ExportFormat(
            "rows for SFTTrainer: input_ids, labels, seq_lengths", _table(ArrowWriter, trl_fields)
        ),
        "axolotl": ExportFormat(
            "pre-tokenized rows for Axolotl", _table(ArrowWriter, axolotl_fields)
        ),
        "llama-factory": ExportFormat("a tokenized_path of LLaMA-Factory", _llama_factory),
        "xtuner": ExportFormat("preset packs of XTuner", XtunerWriter, names_directory=True),
        "parquet": ExportFormat(
            "all columns, Zstandard: for archives and the hub's viewer",
            _table(ParquetWriter, all_fields),
        ),
    }
)
