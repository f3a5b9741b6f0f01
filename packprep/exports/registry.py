"""The formats that an output can be exported to."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Protocol

from packprep.exports.flat import MegatronWriter, NpyWriter
from packprep.exports.folder import ExportFolder
from packprep.exports.mds import MdsWriter
from packprep.exports.packs import PackBatch
from packprep.exports.tables import (
    ArrowWriter,
    Fields,
    ParquetWriter,
    all_fields,
    axolotl_fields,
    bridge_fields,
    llama_factory_fields,
    trl_fields,
)
from packprep.schemas.manifest import Manifest


class Writer(Protocol):
    """Protocol of what writes one split in a format."""

    def write_shard(self, number: int, batches: Iterable[PackBatch]) -> None:
        """Write the packs of one shard of the source."""

    def finish(self) -> None:
        """Write what needs all of them, such as an index."""


Opener = Callable[[ExportFolder, Manifest, str], Writer]
"""Makes the writer of a split."""


def _table(kind: type[ArrowWriter], fields: Fields) -> Opener:
    return lambda folder, manifest, split: kind(folder, manifest, split, fields)


def _llama_factory(folder: ExportFolder, manifest: Manifest, split: str) -> Writer:
    fields = partial(llama_factory_fields, max_length=manifest.max_length)
    return ArrowWriter(folder, manifest, split, fields)


EXPORT_FORMATS: Mapping[str, Opener] = MappingProxyType(
    {
        "megatron": MegatronWriter,
        "megatron-bridge": _table(ParquetWriter, bridge_fields),
        "npy": NpyWriter,
        "mds": MdsWriter,
        "trl": _table(ArrowWriter, trl_fields),
        "axolotl": _table(ArrowWriter, axolotl_fields),
        "llama-factory": _llama_factory,
        "parquet": _table(ParquetWriter, all_fields),
    }
)
"""Formats of other trainers."""
