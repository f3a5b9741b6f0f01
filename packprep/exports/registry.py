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

    open: makes the writer of a split; its last argument is the directory of the export as the user
    gave it. names_directory: True if files name it.
    """

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
            lambda folder, manifest, split, _: MegatronWriter(folder, manifest, split)
        ),
        "megatron-bridge": ExportFormat(_table(ParquetWriter, bridge_fields)),
        "npy": ExportFormat(lambda folder, manifest, split, _: NpyWriter(folder, manifest, split)),
        "mds": ExportFormat(lambda folder, manifest, split, _: MdsWriter(folder, manifest, split)),
        "trl": ExportFormat(_table(ArrowWriter, trl_fields)),
        "axolotl": ExportFormat(_table(ArrowWriter, axolotl_fields)),
        "llama-factory": ExportFormat(_llama_factory),
        "xtuner": ExportFormat(XtunerWriter, names_directory=True),
        "parquet": ExportFormat(_table(ParquetWriter, all_fields)),
    }
)
