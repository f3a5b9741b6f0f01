"""Plant defects in an output and correct its digests and counts.

Only a check of the data can find such defects.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from packprep.schemas import canonical_json, read_manifest
from packprep.schemas.canonical import file_digest
from packprep.schemas.index_table import TOKENS
from packprep.schemas.names import stored_schema
from packprep.schemas.storage.writing import write_file, write_manifest

Packs = list[dict[str, list[Any]]]


def packs_of(out: Path, shard: int = 0) -> Packs:
    """The packs of a shard of the first split, as dicts of lists."""
    manifest = read_manifest(out)
    path = out / manifest.shards(next(iter(manifest.splits)))[shard].path
    rows: Packs = pa.ipc.open_stream(path.read_bytes()).read_all().to_pylist()
    return rows


def plant(out: Path, edit: Callable[[Packs], None], shard: int = 0) -> None:
    """Change the packs of one shard in place, then seal the output, ledger and report included."""
    manifest = read_manifest(out)
    entry = manifest.shards(next(iter(manifest.splits)))[shard]
    packs = packs_of(out, shard)
    edit(packs)
    if manifest.is_index:
        schema = pa.schema([(column.name, column.arrow_type) for column in manifest.file_columns])
        tokens = sum(sum(pack["lengths"]) for pack in packs)
    else:
        schema = stored_schema(manifest.columns, manifest.names)
        ids = "tokens" if manifest.names == "packprep" else "input_ids"
        tokens = sum(len(pack[ids]) for pack in packs)
    (out / entry.path).unlink()  # merge may have linked the file to another output
    with pa.ipc.new_stream(str(out / entry.path), schema) as writer:
        for first in range(0, len(packs), 4):
            writer.write_table(pa.Table.from_pylist(packs[first : first + 4], schema))
    seal(out, entry.path, len(packs), tokens)


def token_rows(out: Path) -> Packs:
    """The documents of the first token file of an index with its own tokens, as dicts."""
    file = read_manifest(out).index_table.files[0]
    rows: Packs = pa.ipc.open_stream((out / TOKENS / file.path).read_bytes()).read_all().to_pylist()
    return rows


def plant_tokens(out: Path, edit: Callable[[Packs], None]) -> None:
    """Change documents of the first token file of such an index in place, then seal it again."""
    manifest = read_manifest(out)
    name = manifest.index_table.files[0].path
    path = out / TOKENS / name
    rows, schema = token_rows(out), pa.ipc.open_stream(path.read_bytes()).schema
    edit(rows)
    table = pa.Table.from_pylist(rows, schema)
    path.unlink()
    with pa.ipc.new_stream(str(path), schema) as writer:
        writer.write_table(table)
    content = path.read_bytes()
    data, run = (json.loads(json.dumps(part)) for part in (manifest.data, manifest.run))
    of_index = next(file for file in data["index"]["files"] if file["path"] == name)
    of_index |= {"bytes": len(content), "xxh3": xxhash.xxh3_128(content).hexdigest()}
    listed = next(file for file in run["files"] if file["path"] == f"{TOKENS}/{name}")
    listed |= {"bytes": len(content), "sha256": file_digest(path)}
    write_manifest(out, data, run)


def seal(out: Path, shard: str, packs: int, tokens: int, *, segments: int | None = None) -> None:
    """Write a manifest and a report that agree with a shard of this many packs and tokens."""
    manifest = read_manifest(out)
    data: dict[str, Any] = json.loads(json.dumps(manifest.data))
    entry = next(entry for entry in data["files"] if entry["path"] == shard)
    split = data["splits"][entry["split"]]
    more = tokens - entry["tokens"]
    split["packs"] += packs - entry["packs"]
    split["tokens"] += more
    entry |= {"packs": packs, "tokens": tokens, "bytes": (out / shard).stat().st_size}
    entry |= {"sha256": file_digest(out / shard)}
    if segments is not None:
        split["segments"] = segments
    data["ledger"]["tokens_packed"] += more
    data["ledger"]["tokens_in"] += more
    report = json.loads((out / "report.json").read_bytes())
    report["splits"], report["packs"] = (
        data["splits"],
        sum(split["packs"] for split in data["splits"].values()),
    )
    report["tokens"] |= data["ledger"]
    write_file(out / "report.json", canonical_json(report))
    run = json.loads(json.dumps(manifest.run))
    path = out / "report.json"
    listed = next(file for file in run["files"] if file["path"] == path.name)
    listed |= {"bytes": path.stat().st_size, "sha256": file_digest(path)}
    write_manifest(out, data, run)
