"""The shards of an index output: `packprep materialize`.

Packs, their order and the cuts of shards and record batches are those of the index, so the shards
and the manifest's `data` have the bytes of the same build without --materialize index. Each shard
has a receipt: a stopped command resumes.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa

from packprep.config.build_config import BuildConfig
from packprep.config.yaml_file import from_output, to_yaml
from packprep.output.build_facts import build_facts
from packprep.output.directory import publish
from packprep.output.shard_folder import LocalShards
from packprep.output.shard_writer import (
    ShardFile,
    column_bytes,
    read_shard_receipt,
    receipt_like,
    write_batches,
)
from packprep.output.sign_off import SETTINGS, file_entry, name_shards
from packprep.output.staging import staged
from packprep.schemas.canonical import canonical_json, digest_of
from packprep.schemas.columns import check_schema
from packprep.schemas.errors import FormatError
from packprep.schemas.files import MANIFEST
from packprep.schemas.index_table import TOKENS
from packprep.schemas.manifest import (
    FORMAT_VERSION,
    NEWEST_VERSION,
    FileEntry,
    Manifest,
    Output,
    read_manifest,
)
from packprep.schemas.names import stored_schema
from packprep.schemas.storage.writing import write_file, write_manifest
from packprep.schemas.validate import check_batch
from packprep.support.errors import ConfigError
from packprep.support.file_lock import locked
from packprep.support.progress import Progress, Silent
from packprep.tokens.checked_output import CheckedOutput

_REPORT = "report.json"


def materialize(index: Output, output: Path, *, progress: Progress | None = None) -> Manifest:
    """Write the shards of an index output to `output`, and return their manifest.

    Raises ConfigError if it is no index or if `output` exists, FormatError for damage in the index
    or its token files.
    """
    progress = progress or Silent()
    manifest = read_manifest(index)
    if not manifest.is_index:
        raise ConfigError(f"{index} is not an index: its shards hold their tokens already")
    inputs = _inputs(manifest)
    with locked(output, f"{output} is being built"):
        if (output / MANIFEST).exists():
            if (made := read_manifest(output)).identity == digest_of(inputs) and not made.is_index:
                progress.say(f"{output} has these packs already: nothing to do")
                return made
            raise ConfigError(f"{output} is another output; choose another -o")
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise ConfigError(f"{output} exists already; choose another -o")
        with staged(output) as staged_output:
            staging = staged_output.path
            facts = build_facts(inputs, tokens="", source_bytes=0)
            signed = staged_output.claim(facts, progress, replaces=False)
            if signed is None:
                source = CheckedOutput(index, manifest)
                source.say_caches(progress)
                shards = _write(staging, source, progress)
                signed = _sign(staging, source, shards, inputs)
            publish(staging, output)
    return signed


def _inputs(manifest: Manifest) -> dict[str, Any]:
    """Inputs of a build that writes the shards."""
    inputs = dict(manifest.data["inputs"])
    options = {k: value for k, value in inputs["options"].items() if k != "materialize"}
    return inputs | {"options": options}


def _write(staging: Path, source: CheckedOutput, progress: Progress) -> list[ShardFile]:
    """Write the shards in `staging`; those with receipts are kept."""
    manifest = source.manifest
    folder, receipts = LocalShards(staging / "shards"), staging / "receipts"
    receipts.mkdir(exist_ok=True)
    token_columns = [column for column in manifest.columns if column.kind == "token"]
    schema = stored_schema(manifest.columns, manifest.names)
    shards: list[ShardFile] = []
    for split in manifest.splits:
        for entry, reading in source.shards(manifest.shards(split)):
            name = f"{split}-{len(shards):05d}.arrow"
            receipt = receipts / f"{name}.json"
            shard = read_shard_receipt(receipt, entry.sha256)
            if shard is None or not shard.intact(folder):
                content = column_bytes(token_columns, entry.tokens, 0, 0)
                with reading as path:
                    batches = _batches(source, entry, path)
                    size, sha256 = write_batches(folder, name, batches, schema, content)
                shard = receipt_like(entry, name, split, size, sha256)
                write_file(receipt, canonical_json(asdict(shard) | {"made_from": entry.sha256}))
            shards.append(shard)
            done = sum(shard.packs for shard in shards)
            progress.advance("materialize", done, manifest.num_packs, "packs")
    return shards


def _batches(source: CheckedOutput, entry: FileEntry, path: Path) -> Iterator[pa.RecordBatch]:
    """Record batches of a shard with their tokens, checked."""
    packs, manifest, where = 0, source.manifest, f"{source}/{entry.path}"
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
        check_schema(stream.schema, manifest.file_columns, where)
        for stored in stream:
            batch = source.packs_of(entry, stored, packs)
            limits = {"max_length": manifest.max_length, "vocab_size": manifest.vocab_size}
            check_batch(batch, manifest.columns, **limits, where=where, first_pack=packs)
            packs += len(batch)
            yield batch
    if packs != entry.packs:
        raise FormatError(f"{where} has {packs} packs; the manifest says {entry.packs}")


def _sign(
    staging: Path, source: CheckedOutput, shards: list[ShardFile], inputs: dict[str, Any]
) -> Manifest:
    """Write the other files and the manifest."""
    manifest, entries = source.manifest, name_shards(staging, shards)
    files: list[Path] = []
    for value in manifest.run.get("files", []):
        if value["path"].startswith(f"{TOKENS}/"):
            continue
        file, path = source.file(FileEntry(**value)), staging / value["path"]
        if value["path"] == SETTINGS:
            _write_settings(file, path)
        elif value["path"] == _REPORT:
            report = json.loads(file.read_bytes()) | {
                "bytes": sum(shard.bytes for shard in shards),
                "sha256": digest_of([entry["sha256"] for entry in entries]),
            }
            write_file(path, canonical_json(report))
        else:
            write_file(path, file.read_bytes())
        files.append(path)
    data = {key: value for key, value in manifest.data.items() if key != "index"} | {
        "format_version": NEWEST_VERSION if manifest.has_trees else FORMAT_VERSION,
        "inputs": inputs,
        "identity": digest_of(inputs),
        "files": entries,
    }
    run = {key: value for key, value in manifest.run.items() if key != "stores"}
    run["files"] = [file_entry(staging, path) for path in files]
    return write_manifest(staging, data, run)


def _write_settings(source: Path, path: Path) -> None:
    """Write build.yaml without --materialize index, under the comments that it begins with."""
    comments = [*takewhile(lambda line: line.startswith("#"), source.read_text().splitlines())]
    config = replace(BuildConfig(**from_output(source)), materialize="shards")
    write_file(path, "\n".join([*comments, to_yaml(config)]).encode())
