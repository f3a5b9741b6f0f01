"""The shards of an index output: `packprep materialize`.

Packs, their order and the cuts of shards and record batches are those of the index, so the shards
and the manifest's `data` have the bytes of the same build without --materialize index. Each shard
has a receipt: a stopped command resumes.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa

from packprep.config.build_config import BuildConfig
from packprep.config.yaml_file import from_yaml, to_yaml
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
from packprep.schemas.listed import check_file
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
from packprep.tokens.index_shards import as_packs, changed_token_files

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
    if (output / MANIFEST).exists():
        if (made := read_manifest(output)).identity == digest_of(inputs) and not made.is_index:
            progress.say(f"{output} has these packs already: nothing to do")
            return made
        raise ConfigError(f"{output} is another output; choose another -o")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{output} exists already; choose another -o")
    with locked(output, f"{output} is being built"), staged(output) as staged_output:
        staging = staged_output.path
        facts = build_facts(inputs, tokens="", source_bytes=0)
        signed = staged_output.claim(facts, progress, restart=False, replaces=False)
        if signed is None:
            _check_tokens(index, manifest)
            shards = _write(staging, index, manifest, progress)
            signed = _sign(staging, index, manifest, shards, inputs)
        publish(staging, output)
    return signed


def _inputs(manifest: Manifest) -> dict[str, Any]:
    """Inputs of a build that writes the shards."""
    inputs = dict(manifest.data["inputs"])
    options = {k: value for k, value in inputs["options"].items() if k != "materialize"}
    return inputs | {"options": options}


def _check_tokens(index: Output, manifest: Manifest) -> None:
    """Raise FormatError if a token file has changed."""
    for _, finding in changed_token_files(index, manifest):
        raise FormatError(finding)
    for entry in manifest.all_files:
        if entry.path.startswith(f"{TOKENS}/"):
            check_file(index, entry, "sha256")


def _write(staging: Path, index: Output, manifest: Manifest, progress: Progress) -> list[ShardFile]:
    """Write the shards in `staging`; those with receipts are kept."""
    folder, receipts = LocalShards(staging / "shards"), staging / "receipts"
    receipts.mkdir(exist_ok=True)
    token_columns = [column for column in manifest.columns if column.kind == "token"]
    schema = stored_schema(manifest.columns, manifest.names)
    shards: list[ShardFile] = []
    for split in manifest.splits:
        for entry in manifest.shards(split):
            name = f"{split}-{len(shards):05d}.arrow"
            receipt = receipts / f"{name}.json"
            shard = read_shard_receipt(receipt, entry.sha256)
            if shard is None or not shard.intact(folder):
                content = column_bytes(token_columns, entry.tokens, 0, 0)
                batches = _batches(index, manifest, entry)
                size, sha256 = write_batches(folder, name, batches, schema, content)
                shard = receipt_like(entry, name, split, size, sha256)
                write_file(receipt, canonical_json(asdict(shard) | {"made_from": entry.sha256}))
            shards.append(shard)
            done = sum(shard.packs for shard in shards)
            progress.advance("materialize", done, manifest.num_packs, "packs")
    return shards


def _batches(index: Output, manifest: Manifest, entry: FileEntry) -> Iterator[pa.RecordBatch]:
    """Record batches of a shard with their tokens, checked."""
    packs, packs_of, where = 0, as_packs(index, manifest), f"{index}/{entry.path}"
    with (
        pa.memory_map(str(check_file(index, entry, "sha256"))) as file,
        pa.ipc.open_stream(file) as stream,
    ):
        check_schema(stream.schema, manifest.file_columns, where)
        for stored in stream:
            batch = packs_of(entry, stored, packs)
            limits = {"max_length": manifest.max_length, "vocab_size": manifest.vocab_size}
            check_batch(batch, manifest.columns, **limits, where=where, first_pack=packs)
            packs += len(batch)
            yield batch
    if packs != entry.packs:
        raise FormatError(f"{where} has {packs} packs; the manifest says {entry.packs}")


def _sign(
    staging: Path,
    index: Output,
    manifest: Manifest,
    shards: list[ShardFile],
    inputs: dict[str, Any],
) -> Manifest:
    """Write the other files and the manifest."""
    entries = name_shards(staging, shards)
    files: list[Path] = []
    for value in manifest.run.get("files", []):
        if value["path"].startswith(f"{TOKENS}/"):
            continue
        source, path = check_file(index, FileEntry(**value), "sha256"), staging / value["path"]
        if value["path"] == SETTINGS:
            _write_settings(source, path)
        elif value["path"] == _REPORT:
            report = json.loads(source.read_bytes()) | {
                "bytes": sum(shard.bytes for shard in shards),
                "sha256": digest_of([entry["sha256"] for entry in entries]),
            }
            write_file(path, canonical_json(report))
        else:
            shutil.copyfile(source, path)
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
    config = replace(BuildConfig(**from_yaml(source)), materialize="shards")
    write_file(path, "\n".join([*comments, to_yaml(config)]).encode())
