"""`export`: an output, or the documents of a store, in the format of another trainer.

The result is absent or complete: it is made in a temporary folder beside it, and renamed.
export.json says what it was made from.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from ..schemas.files import canonical_json
from ..schemas.manifest import Output, Stores, open_output
from ..support.errors import ConfigError, nearest
from ..support.records import sync_folder, write_file
from ..tokens.store import complete_entry, is_store
from ..write.output import check_outside
from . import flat, rows, tables
from .view import ends_of

Write = Callable[[Output, str, Path, str], int]
"""f(output, split, folder, name of the format) -> number of rows."""

_PACKS, _DOCUMENTS = partial(tables.write, tables.named), partial(tables.write, rows.documents)
FORMATS: Mapping[str, tuple[str, Write]] = {
    "hf": ("input_ids, position_ids, labels, seq_lengths", _PACKS),
    "trl": ("rows for SFTTrainer: input_ids, labels, seq_lengths", _PACKS),
    "axolotl": ("pre-tokenized rows for Axolotl", _PACKS),
    "llama-factory": ("a tokenized_path", partial(tables.write, tables.padded_rows)),
    "megatron": (".bin and .idx: of packs, or of the documents of a store", flat.megatron),
    "megatron-bridge": ("packed Parquet: input_ids, loss_mask, seq_start_id", _PACKS),
    "npy": ("flat ids, documents and offsets: OLMo-core, nanoGPT", flat.npy),
    "parquet": ("all columns, for archives and the hub", _PACKS),
    "rows": ("documents, for trainers that pack", _DOCUMENTS),
    "rows-parquet": ("the same as Parquet", _DOCUMENTS),
    "rows-jsonl": ("the same as JSON lines", _DOCUMENTS),
}
"""Formats by the name that `--to` takes: words for the rows, and a function that writes a split."""
_OF_PAIRS = ("parquet", "rows", "rows-parquet", "rows-jsonl")  # they say the side


class Exported(NamedTuple):
    """Result of an export. rows: by split, packs or documents. eos: [text, id] at their ends."""

    rows: dict[str, int]
    these: str
    eos: Any


def check_format(to: str) -> None:
    """Raise ConfigError unless `to` is a name of `FORMATS`."""
    if to not in FORMATS:
        raise ConfigError(f"--to is {to!r}{nearest(to, FORMATS)}")


def export(place: str, to: str, output: str, store: Stores = ()) -> Exported:
    """Write an output in a format of `FORMATS`, or a store as megatron. store: see `open_output`.

    Raises ConfigError if `output` is there or the format cannot express the packs, FormatError for
    damage.
    """
    check_format(to)
    parts: dict[str, Any]
    entry = complete_entry(place) if is_store(place) else None
    if entry is None:
        source = open_output(place, store)
        facts, eos = _facts(source, to), ends_of(source)["eos"]
        these = "documents" if FORMATS[to][1] is _DOCUMENTS else "packs"
        parts = {split: partial(FORMATS[to][1], source, split) for split in source.manifest.splits}
    elif to == "megatron":
        tokenizer = entry.facts["deciding"]["tokenizer"]
        facts = {"format": to, "identity": entry.key, "vocab_size": tokenizer["vocab_size"]}
        eos, these = tokenizer["eos"], "documents"
        parts = {"train": partial(flat.megatron_documents, entry, "train")}
    else:
        raise ConfigError(
            f"{place} is a token store, which --to megatron alone takes; pack it, and export that"
        )
    return Exported(_made(Path(output), facts, parts), these, eos)


def _facts(source: Output, to: str) -> dict[str, Any]:
    """All that decides the bytes of an export, and what readers of its files need."""
    manifest = source.manifest
    if "pair_sides" in manifest.columns and to not in _OF_PAIRS:
        raise ConfigError(
            f"{source.files} has preference pairs, and a trainer of {to} would train on rejected "
            f"answers too; choose one of {', '.join(_OF_PAIRS)}, which say the side"
        )
    numbers = {name: manifest.data[name] for name in ("max_length", "vocab_size")}
    return {"format": to, "identity": manifest.identity, **numbers}


def _made(target: Path, facts: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, int]:
    """Make a folder that is absent or complete. parts: by split, f(folder, format) -> rows."""
    if target.exists():
        raise ConfigError(f"{target} is there already; choose another -o, or delete it")
    check_outside(str(target))
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(
        prefix=f"{target.name}.", suffix=".tmp", dir=target.parent, ignore_cleanup_errors=True
    ) as name:
        folder = Path(name, "export")
        folder.mkdir()
        made = {split: write(folder, facts["format"]) for split, write in parts.items()}
        write_file(folder / "export.json", canonical_json({**facts, "rows": made}))
        folder.rename(target)
    sync_folder(target.absolute().parent)
    return made
