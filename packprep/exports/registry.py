"""The formats that an output can be exported to: a new one is a module and a row here.

`packprep export --help` reads this table, so the modules of the formats, which load Arrow, are
imported when they are used.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

if TYPE_CHECKING:
    from packprep.exports.folder import ExportFolder
    from packprep.exports.packs import PackBatch
    from packprep.schemas.manifest import Manifest


class Writer(Protocol):
    """Protocol of what writes one split in a format."""

    def write_shard(self, number: int, batches: "Iterable[PackBatch]") -> None:
        """Write the packs of one shard of the source."""

    def finish(self) -> None:
        """Write what needs all of them, such as an index."""


Opener = Callable[["ExportFolder", "Manifest", str], Writer]
"""Makes the writer of a split."""


class ExportFormat(NamedTuple):
    """A format of another trainer.

    opener: its `Opener`, as the name of a module of this folder and a name in it.
    words: what it writes, for `packprep export --help`.
    of_documents: its rows are documents, see `packprep.exports.documents`, and not packs.
    """

    opener: str
    words: str
    of_documents: bool = False

    def open(self, folder: "ExportFolder", manifest: "Manifest", split: str) -> Writer:
        """Return the writer of a split."""
        module, _, name = self.opener.partition(".")
        found = getattr(importlib.import_module(f"packprep.exports.{module}"), name)
        return cast("Opener", found)(folder, manifest, split)


EXPORT_FORMATS: Mapping[str, ExportFormat] = MappingProxyType(
    {
        "megatron": ExportFormat(
            "flat.MegatronWriter", ".bin and .idx: segments are sequences, packs documents"
        ),
        "megatron-bridge": ExportFormat(
            "tables.megatron_bridge", "packed Parquet: input_ids, loss_mask, seq_start_id"
        ),
        "npy": ExportFormat(
            "flat.NpyWriter", "flat ids, documents and offsets: OLMo-core, nanoGPT"
        ),
        "mds": ExportFormat("mds.MdsWriter", "shards of MosaicML streaming"),
        "trl": ExportFormat("tables.trl", "rows for SFTTrainer: input_ids, labels, seq_lengths"),
        "axolotl": ExportFormat("tables.axolotl", "pre-tokenized rows for Axolotl"),
        "llama-factory": ExportFormat("tables.llama_factory", "a tokenized_path of LLaMA-Factory"),
        "parquet": ExportFormat(
            "tables.parquet", "all columns, Zstandard: archives, the hub's viewer"
        ),
        "rows": ExportFormat(
            "rows.arrow_rows", "documents, for trainers that pack: input_ids, loss_mask", True
        ),
        "rows-parquet": ExportFormat("rows.parquet_rows", "the same as Parquet", True),
        "rows-jsonl": ExportFormat("rows.jsonl_rows", "the same as JSON lines", True),
    }
)
"""Formats by the name that `--to` takes, in the order of `--help`."""
