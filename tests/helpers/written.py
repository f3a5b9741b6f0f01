"""Outputs: built by its command, or written pack by pack."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from packprep.cli.main import cli
from packprep.schemas.columns import STANDARD, Column, schema_of
from packprep.schemas.files import digest_of, shard_name
from packprep.schemas.manifest import FORMAT_VERSION, manifest_json

Pack = Mapping[str, Any]
COLUMNS = tuple(STANDARD[n] for n in ("tokens", "position_ids", "cu_seqlens", "document_ids"))


def build(out: Path, rows: Sequence[Mapping[str, Any]], *arguments: str, **settings: Any) -> Path:
    """An output of rows of ids, by the command. settings: of build.yaml."""
    source, config = out.with_suffix(".jsonl"), out.with_suffix(".yaml")
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config.write_text(json.dumps(settings))
    command = ["build", str(source), "-o", str(out), "--ids", "ids", "--tokenizer", "50257", "-q"]
    cli.main([*command, "-c", str(config), *arguments], standalone_mode=False)
    return out


def pack(*lengths: int, document: int = 0, **columns: Any) -> dict[str, Any]:
    """A pack of documents of these lengths, numbered from `document`; no two tokens are equal."""
    total = sum(lengths)
    return {
        "tokens": np.arange(total) + 1000 * document,
        "position_ids": np.concatenate([np.arange(length) for length in lengths]),
        "cu_seqlens": np.cumsum([0, *lengths]),
        "document_ids": np.arange(len(lengths)) + document,
        **columns,
    }


def write(
    folder: Path,
    shards: Sequence[Sequence[Pack]],
    columns: Sequence[Column] = COLUMNS,
    *,
    max_length: int = 64,
    rows: int = 2,
    **options: Any,
) -> Path:
    """An output with these packs. rows: packs of a record batch. options: of the build."""
    folder.mkdir(parents=True)
    schema, files = schema_of(columns), list[dict[str, Any]]()
    for number, packs in enumerate(shards):
        path = folder / shard_name(number, len(shards))
        batches = list[tuple[int, int]]()
        with path.open("wb") as file, pa.ipc.new_stream(file, schema) as writer:
            for first in range(0, len(packs), rows):
                batches.append((file.tell() if first else 0, first))
                lists = [
                    pa.array(
                        [p[c.name] for p in packs[first : first + rows]], schema.field(c.name).type
                    )
                    for c in columns
                ]
                writer.write_batch(pa.record_batch(lists, schema=schema))
        files.append(
            {
                "path": path.name,
                "bytes": path.stat().st_size,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                "split": "train",
                "packs": len(packs),
                "segments": sum(len(p["cu_seqlens"]) - 1 for p in packs),
                "tokens": sum(len(p["tokens"]) for p in packs),
                "batches": batches,
            }
        )
    counts = {key: sum(file[key] for file in files) for key in ("packs", "segments", "tokens")}
    none = {"overlap": 0, "continuation_bos": 0, "filler": 0, "truncated": 0, "dropped": {}}
    inputs = {"options": options}
    data = {
        "format_version": FORMAT_VERSION,
        "identity": digest_of(inputs),
        "inputs": inputs,
        "columns": [vars(column) for column in columns],
        "max_length": max_length,
        "vocab_size": 1 << 20,
        "bos_id": 0,
        "pad_id": 0,
        "splits": {"train": counts},
        "files": files,
        "sources": [],
        "draw": {"seed": 0},
        "ledger": {**none, "tokens_in": counts["tokens"], "tokens_packed": counts["tokens"]},
        "plan": None,
    }
    content = manifest_json(json.loads(json.dumps(data)), {"files": []})
    (folder / "manifest.json").write_bytes(content)
    return folder
