"""Other names for the columns of a finished output: `packprep rename`.

Packs, tokens and their order stay. The shards are written again, because a column has its name at
the start of every file: values are copied as they are, and hashed. Boundaries become lengths, or
lengths boundaries. Names that need labels or position_ids add them; the manifest lists those, so
that the other direction leaves them out again and gives the same bytes as before.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from packprep.config.build_config import BuildConfig
from packprep.config.yaml_file import from_output, to_yaml
from packprep.output.build_facts import build_facts
from packprep.output.directory import finish_swap, publish
from packprep.output.shard_folder import LocalShards
from packprep.output.shard_writer import ShardFile, column_bytes, receipt_like, write_batches
from packprep.output.sign_off import SETTINGS, described, file_entry, name_shards
from packprep.output.staging import staged
from packprep.schemas.canonical import canonical_json, digest_of
from packprep.schemas.columns import (
    NO_LOSS,
    STANDARD_COLUMNS,
    Column,
    columns_of_type,
    token_type,
)
from packprep.schemas.errors import FormatError
from packprep.schemas.manifest import FileEntry, Manifest, read_manifest
from packprep.schemas.names import (
    HF_NAMES,
    Names,
    column_view,
    list_array,
    needed_columns,
    packprep_batch,
    stored_batch,
    stored_columns,
    stored_schema,
)
from packprep.schemas.storage.writing import write_file, write_manifest
from packprep.schemas.validate import check_batch
from packprep.schemas.views import ListView
from packprep.support.errors import ConfigError
from packprep.support.file_lock import locked
from packprep.support.progress import Progress, Silent
from packprep.tokens.checked_output import CheckedOutput
from packprep.tokens.index_shards import refuse_index

REPORT = "report.json"


def rename(output: Path, names: Names, progress: Progress | None = None) -> Manifest:
    """Give the columns of an output other names, in one step; no change if they have them.

    Raises ConfigError if a column of its own has one of the names, FormatError for damage.
    """
    progress = progress or Silent()
    if output.is_symlink() or not output.is_dir():
        raise ConfigError(f"{output} is not a directory; give the directory of an output")
    with locked(output, f"{output} is being built"):
        finish_swap(output)
        manifest = read_manifest(output)
        if manifest.names == names:
            progress.say(f"{output} has the names of {names} already: nothing to do")
            return manifest
        refuse_index(output, manifest, "its columns have names only in shards with tokens")
        _check_names(output, manifest, names)
        columns, added = _columns(manifest, names)
        inputs = manifest.data["inputs"]
        inputs = inputs | {"options": inputs["options"] | {"names": names}}
        with staged(output) as staged_output:
            staging = staged_output.path
            facts = build_facts(inputs, tokens="", source_bytes=0)
            signed = staged_output.claim(facts, progress, replaces=True)
            if signed is None:
                source = CheckedOutput(output, manifest)
                source.say_caches(progress)
                shards = _write(staging, source, columns, names, progress)
                signed = _sign(staging, source, shards, inputs, columns, added)
            publish(staging, output)
    changed = f"; added {', '.join(added)}" if added else ""
    if left_out := [column.name for column in manifest.columns if column not in columns]:
        changed += f"; left out {', '.join(left_out)}, which only the names of hf need"
    progress.say(f"{output} has the names of {names} now{changed}")
    return signed


def _check_names(output: Path, manifest: Manifest, names: Names) -> None:
    if manifest.has_trees:
        raise ConfigError(
            f"{output} has trees, and trainers that read the names of hf would take them for "
            "documents; build without share_prefixes"
        )
    if names == "hf" and any(column.name == "pair_sides" for column in manifest.columns):
        raise ConfigError(
            f"{output} has preference pairs, and trainers that read the names of hf would train on "
            "the rejected answers too; read it with PackedLoader(sides=...)"
        )
    taken = {*HF_NAMES.values()} if names == "hf" else {*HF_NAMES}
    for column in manifest.stored_columns:
        if column.name in taken:
            raise ConfigError(
                f"{output} has a column {column.name} of its own, a name of {names}; build it "
                "again with another name for that column"
            )


def _columns(manifest: Manifest, names: Names) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """Columns of the renamed output, with packprep's names, and the added ones among them.

    They are in the order in which a build writes them: standard columns first.
    """
    kept = [column for column in manifest.columns if column.name not in manifest.added]
    present = {column.name for column in kept}
    added = tuple(name for name in needed_columns(names) if name not in present)
    types = columns_of_type(token_type(kept), manifest.max_length)
    stored = {column.name: column for column in kept}
    standard = [
        stored.get(name, types[name])
        for name in STANDARD_COLUMNS
        if name in added or (name in present and name not in _CARRIED)
    ]
    return (*standard, *(column for column in kept if column not in standard)), added


# Standard columns that come with the rows, which a build writes behind the others.
_CARRIED = ("pair_ids", "pair_sides", "turn_ids")


def _write(
    staging: Path,
    source: CheckedOutput,
    columns: tuple[Column, ...],
    names: Names,
    progress: Progress,
) -> list[ShardFile]:
    """Write the shards in `staging`."""
    manifest, folder = source.manifest, staging / "shards"
    shutil.rmtree(folder, ignore_errors=True)  # of a killed rename, which begins again
    folder.mkdir()
    schema = stored_schema(columns, names)
    token_columns = [column for column in columns if column.kind == "token"]  # nearly all bytes
    shards: list[ShardFile] = []
    for split in manifest.splits:
        for entry, reading in source.shards(manifest.shards(split)):
            name = f"{split}-{len(shards):05d}.arrow"
            content = column_bytes(token_columns, entry.tokens, 0, 0)
            with reading as path:
                batches = _batches(source, entry, path, columns, names)
                size, sha256 = write_batches(LocalShards(folder), name, batches, schema, content)
            shards.append(receipt_like(entry, name, split, size, sha256))
            done = sum(shard.packs for shard in shards)
            progress.advance("rename", done, manifest.num_packs, "packs")
    return shards


def _batches(
    source: CheckedOutput, entry: FileEntry, path: Path, columns: tuple[Column, ...], names: Names
) -> Iterator[pa.RecordBatch]:
    """Record batches of a shard with the new names, checked."""
    packs, manifest, where = 0, source.manifest, f"{source}/{entry.path}"
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
        for batch in stream:
            limits = {"max_length": manifest.longest(entry), "vocab_size": manifest.vocab_size}
            check_batch(batch, manifest.columns, **limits, where=where, first_pack=packs)
            renamed = stored_batch(_complete(packprep_batch(batch, where), columns, where), names)
            check_batch(renamed, columns, **limits, where=where, first_pack=packs)
            packs += len(batch)
            yield renamed
    if packs != entry.packs:
        raise FormatError(f"{where} has {packs} packs; the manifest says {entry.packs}")


def _complete(batch: pa.RecordBatch, columns: tuple[Column, ...], where: str) -> pa.RecordBatch:
    """The batch with exactly these columns. labels and position_ids are computed if missing."""
    tokens, cu = (column_view(batch, name, where) for name in ("tokens", "cu_seqlens"))
    arrays = [
        batch.column(batch.schema.get_field_index(column.name))
        if column.name in batch.schema.names
        else list_array(_computed(column, tokens, cu))
        for column in columns
    ]
    return pa.record_batch(arrays, names=[column.name for column in columns])


def _computed(column: Column, tokens: ListView, cu: ListView) -> ListView:
    """labels or position_ids of packs without padding."""
    ids = tokens.values[tokens.offsets[0] : tokens.offsets[-1]]
    offsets = tokens.offsets - tokens.offsets[0]
    # The last boundary of each pack is no start: [0, 3, 8] -> the segments start at 0 and 3.
    bounds, ends = cu.offsets - cu.offsets[0], np.zeros(int(cu.offsets[-1] - cu.offsets[0]), bool)
    ends[bounds[1:] - 1] = True
    base = np.repeat(offsets[:-1], np.diff(bounds))
    starts = (cu.values[cu.offsets[0] : cu.offsets[-1]] + base)[~ends]
    if column.name == "labels":
        values = ids.astype(column.numpy_dtype)
        values[starts] = NO_LOSS
    else:
        sizes = np.diff(starts, append=len(ids))
        positions = np.arange(len(ids), dtype=np.int32) - np.repeat(starts, sizes).astype(np.int32)
        values = positions.astype(column.numpy_dtype, copy=False)
    return ListView(offsets.astype(np.int32), values)


def _sign(
    staging: Path,
    source: CheckedOutput,
    shards: list[ShardFile],
    inputs: dict[str, Any],
    columns: tuple[Column, ...],
    added: tuple[str, ...],
) -> Manifest:
    """Write the other files and the manifest."""
    names: Names = inputs["options"]["names"]
    manifest, entries = source.manifest, name_shards(staging, shards)
    for entry in manifest.all_files:
        if entry in manifest.files or entry.path in (SETTINGS, REPORT):
            continue
        write_file(staging / entry.path, source.file(entry).read_bytes())
    if (settings := source.find(SETTINGS)) is not None:
        _write_settings(staging, settings, names)
    if (old_report := source.find(REPORT)) is not None:
        report = json.loads(old_report.read_bytes()) | {
            "bytes": sum(shard.bytes for shard in shards),
            "sha256": digest_of([entry["sha256"] for entry in entries]),
        }
        write_file(staging / REPORT, canonical_json(report))
    data = {key: value for key, value in manifest.data.items() if key != "added"} | {
        "inputs": inputs,
        "identity": digest_of(inputs),
        "columns": described(stored_columns(columns, names)),
        "files": entries,
    }
    data |= {"added": list(added)} if added else {}
    listed = [staging / entry["path"] for entry in manifest.run.get("files", [])]
    run = manifest.run | {"files": [file_entry(staging, path) for path in listed]}
    return write_manifest(staging, data, run)


def _write_settings(staging: Path, old: Path, names: Names) -> None:
    """Write build.yaml with the new names, under the comments that it begins with."""
    comments = [*takewhile(lambda line: line.startswith("#"), old.read_text().splitlines())]
    config = replace(BuildConfig(**from_output(old)), names=names)
    write_file(staging / SETTINGS, "\n".join([*comments, to_yaml(config)]).encode())
