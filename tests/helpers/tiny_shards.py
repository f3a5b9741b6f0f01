"""Tiny outputs in the format of schemas/README.md, for tests and tests/golden.

`python -m tests.helpers.tiny_shards` writes the golden directories again; see the version policy of
the format for when this is allowed.
"""

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from packprep.derive.merge import merge
from packprep.loaders import PackedShards
from packprep.schemas import (
    STANDARD_COLUMNS,
    Column,
    Manifest,
    canonical_json,
    digest_of,
    shard_schema,
)
from packprep.schemas.canonical import file_digest
from packprep.schemas.columns import columns_of_type
from packprep.schemas.files import shard_name
from packprep.schemas.storage.writing import (
    write_dataset_dict,
    write_dataset_files,
    write_file,
    write_manifest,
)

GOLDEN = Path(__file__).parents[1] / "golden"
PLAIN = tuple(
    STANDARD_COLUMNS[name]
    for name in ("tokens", "position_ids", "cu_seqlens", "document_ids", "document_starts")
)

COMPACT = tuple(columns_of_type("uint16", 8)[column.name] for column in PLAIN)

Row = Mapping[str, Sequence[float]]

_PERCENTILES = {"p50": 0.5, "p95": 0.95, "max": 1.0}

# The worked example of schemas/README.md: documents [1,10,2], [1,20,...,27,2] and [1,30,2] in packs
# of 8.
EXAMPLE: list[Row] = [
    {
        "tokens": [1, 20, 21, 22, 23, 24, 25, 26],
        "position_ids": [0, 1, 2, 3, 4, 5, 6, 7],
        "cu_seqlens": [0, 8],
        "document_ids": [1],
        "document_starts": [0],
    },
    {
        "tokens": [1, 10, 2, 27, 2, 1, 30, 2],
        "position_ids": [0, 1, 2, 0, 1, 0, 1, 2],
        "cu_seqlens": [0, 3, 5, 8],
        "document_ids": [0, 1, 2],
        "document_starts": [0, 8, 0],
    },
]

# All optional columns: padding in segments (to a multiple of 4) and after them, labels, free
# columns.
RICH = (
    *(
        STANDARD_COLUMNS[name]
        for name in ("tokens", "cu_seqlens", "document_ids", "document_starts")
    ),
    *(STANDARD_COLUMNS[name] for name in ("labels", "segment_lengths")),
    Column(name="weight", kind="token", dtype="float32", meaning="loss weight"),
    Column(name="source", kind="segment", dtype="int64", meaning="source number"),
)


def row_of(first: int, *lengths: int) -> Row:
    """A pack of whole documents `first`, `first` + 1, ..., their tokens all the document's id."""
    return {
        "tokens": [first + n for n, length in enumerate(lengths) for _ in range(length)],
        "position_ids": [position for length in lengths for position in range(length)],
        "cu_seqlens": [sum(lengths[:n]) for n in range(len(lengths) + 1)],
        "document_ids": [first + n for n in range(len(lengths))],
        "document_starts": [0] * len(lengths),
    }


ROWS = [row_of(0, 3, 4), row_of(2, 8), row_of(3, 1, 1, 1), row_of(6, 2), row_of(7, 5, 3)]
ROWS.append(row_of(9, 4))


def rich_row(document: int, *lengths: int) -> Row:
    """Documents `document`, `document` + 1, ... of these lengths, then 4 tokens of filler.

    Each document is padded to a multiple of 4.
    """
    real = [*lengths, 0]
    padded = [-(-length // 4) * 4 for length in lengths] + [4]
    tokens = [
        token
        for length, room in zip(real, padded, strict=True)
        for token in [5] * length + [0] * (room - length)
    ]
    return {
        "tokens": tokens,
        "cu_seqlens": [sum(padded[:end]) for end in range(len(padded) + 1)],
        "document_ids": [*range(document, document + len(lengths)), -1],
        "document_starts": [0] * len(real),
        "labels": [token or -100 for token in tokens],
        "segment_lengths": real,
        "weight": [0.5 if token else 0.0 for token in tokens],
        "source": [0] * len(real),
    }


def to_batch(columns: Sequence[Column], rows: Sequence[Row]) -> pa.RecordBatch:
    """A record batch of these packs; each is a dict of lists."""
    arrays = [pa.array([row[column.name] for row in rows], column.arrow_type) for column in columns]
    return pa.record_batch(arrays, schema=shard_schema(columns))


def short_segments() -> pa.RecordBatch:
    """Half a million tokens in segments of fifty: the slowest case for checks."""
    packs, segments, length = 128, 80, 50
    tokens = packs * segments * length

    def column(values: Any, per_pack: int) -> "pa.ListArray[Any]":
        offsets = pa.array((np.arange(packs + 1) * per_pack).tolist(), pa.int32())
        return pa.ListArray.from_arrays(offsets, pa.array(values))

    return pa.record_batch(
        [
            column(np.arange(tokens, dtype=np.int32) % 1000, segments * length),
            column(np.tile(np.arange(length, dtype=np.int32), packs * segments), segments * length),
            column(np.tile(np.arange(segments + 1, dtype=np.int32) * length, packs), segments + 1),
            column(np.arange(packs * segments, dtype=np.int64), segments),
            column(np.zeros(packs * segments, np.int32), segments),
        ],
        schema=shard_schema(PLAIN),
    )


def write_output(
    directory: Path,
    splits: Mapping[str, Sequence[Sequence[Row]]],
    columns: Sequence[Column] = PLAIN,
    *,
    max_length: int = 8,
    vocab_size: int = 32,
    rows_per_batch: int = 2,
    source_documents: int = 3,
) -> Manifest:
    """Write an output: the packs of each shard of each split.

    Several splits make a DatasetDict.
    """
    files: list[dict[str, Any]] = []
    counts = {split: {"packs": 0, "segments": 0, "tokens": 0} for split in splits}
    directory.mkdir(parents=True)
    for split, shards in splits.items():
        folder = directory / split if len(splits) > 1 else directory
        folder.mkdir(exist_ok=True)
        names = [shard_name(number, len(shards)) for number in range(len(shards))]
        for name, rows in zip(names, shards, strict=True):
            with pa.ipc.new_stream(str(folder / name), shard_schema(columns)) as writer:
                for first in range(0, len(rows), rows_per_batch):
                    writer.write_batch(to_batch(columns, rows[first : first + rows_per_batch]))
            tokens = sum(len(row["tokens"]) for row in rows)
            files.append(
                _entry(directory, folder / name)
                | {"packs": len(rows), "tokens": tokens, "split": split}
            )
            counts[split]["packs"] += len(rows)
            counts[split]["tokens"] += tokens
            counts[split]["segments"] += sum(len(row["cu_seqlens"]) - 1 for row in rows)
        write_dataset_files(folder, names, fingerprint=digest_of(files)[:16], split=split)
        files += [_entry(directory, folder / name) for name in ("dataset_info.json", "state.json")]
    if len(splits) > 1:
        write_dataset_dict(directory, splits)
        files.append(_entry(directory, directory / "dataset_dict.json"))
    stored = sum(split["tokens"] for split in counts.values())
    filler = sum(
        len(row["tokens"]) - sum(row.get("segment_lengths", [len(row["tokens"])]))
        for shards in splits.values()
        for rows in shards
        for row in rows
    )
    source = {"sha256": digest_of("source"), "bytes": 9}
    inputs = {
        "options": {"max_length": max_length, "strategy": "best_fit"},
        "sources": [source],
        "tokenizer": {"sha256": digest_of("tokenizer")},
    }
    ledger: dict[str, Any] = {
        "tokens_in": stored - filler,
        "overlap": 0,
        "continuation_bos": 0,
        "filler": filler,
        "tokens_packed": stored,
        "truncated": 0,
        "dropped": {},
    }
    write_file(
        directory / "report.json",
        canonical_json(_report(splits, counts, files, ledger, max_length, source_documents)),
    )
    data = {
        "format_version": 1,
        "inputs": inputs,
        "identity": digest_of(inputs),
        "columns": [
            {"name": column.name, "kind": column.kind, "dtype": column.dtype} for column in columns
        ],
        "max_length": max_length,
        "vocab_size": vocab_size,
        "sources": [source | {"first_document": 0, "documents": source_documents}],
        "splits": counts,
        "files": files,
        "ledger": ledger,
    }
    run = {
        "versions": {"packprep": "0.1.0"},
        "files": [_entry(directory, directory / "report.json")],
    }
    return write_manifest(directory, data, run)


def numbered_shards(path: Path, packs: int, shards: int = 3, max_length: int = 8) -> PackedShards:
    """Packs of documents of 3, 2 and up to 3 tokens; ids are 1, 2, 3, ... over all packs."""
    rows: list[Row] = []
    token = 1
    for pack in range(packs):
        row = dict(row_of(3 * pack, 3, 2, 1 + pack % 3))
        count = len(row["tokens"])
        rows.append(row | {"tokens": [*range(token, token + count)]})
        token += count
    each = -(-packs // shards)
    parts = [rows[first : first + each] for first in range(0, packs, each)]
    sizes: Any = {"vocab_size": token, "max_length": max_length, "source_documents": 3 * packs}
    write_output(path, {"train": parts}, **sizes)
    return PackedShards(path)


def _report(
    splits: Mapping[str, Sequence[Sequence[Row]]],
    counts: Mapping[str, Mapping[str, int]],
    files: Sequence[Mapping[str, Any]],
    ledger: Mapping[str, Any],
    max_length: int,
    source_documents: int,
) -> dict[str, Any]:
    """A valid report of these packs. Times are 0, so equal packs have equal bytes."""
    packs, tokens = sum(split["packs"] for split in counts.values()), ledger["tokens_packed"]
    bound = -(-tokens // max_length)
    segments = sorted(
        len(row["cu_seqlens"]) - 1 for shards in splits.values() for rows in shards for row in rows
    )
    percentiles = {
        name: segments[math.ceil(share * len(segments)) - 1] if segments else 0
        for name, share in _PERCENTILES.items()
    }
    documents = {"in": source_documents, "empty": 0, "skipped": {}, "dropped": {}}
    documents |= {"cut": 0, "cut_characters": 0}
    shards = [file for file in files if "packs" in file]
    return {
        "report_version": 1,
        "documents": documents,
        "tokens": {**ledger, "bos_added": 0, "eos_added": 0},
        "tokens_lost": 0,
        "tokens_lost_share": 0.0,
        "max_length": max_length,
        "packs": packs,
        "segments": sum(segments),
        "utilization": ledger["tokens_in"] / (packs * max_length) if packs else 1.0,
        "bound": bound,
        "gap": packs - bound,
        "gap_share": (packs - bound) / bound if bound else 0.0,
        "bias": 0.0,
        "straggler": 1.0,
        "straggler_ranks": 8,
        "documents_per_pack": percentiles,
        "splits": counts,
        "windows": [],
        "sources": [
            {"name": "tiny", "documents": documents, "tokens": ledger, "segments": sum(segments)}
        ],
        "bytes": sum(shard["bytes"] for shard in shards),
        "shards": len(shards),
        "seconds": {"total": 0.0},
        "tokens_per_second": 0.0,
        "peak_memory_bytes": 0,
        "sha256": digest_of([shard["sha256"] for shard in shards]),
    }


def write_golden(directory: Path) -> None:
    """The golden outputs of format version 1.

    The README's example, the same with the names of hf, the same in uint16, and all options.
    """
    write_output(directory / "v1-example", {"train": [EXAMPLE]})
    write_output(directory / "v1-hf", {"train": [EXAMPLE]})
    merge([directory / "v1-hf"], directory / "v1-hf", names="hf", overwrite=True)
    write_output(directory / "v1-uint16", {"train": [EXAMPLE]}, COMPACT)
    rich = {
        "train": [[rich_row(0, 3, 4), rich_row(2, 1), rich_row(3, 4, 2)], [rich_row(5, 2)]],
        "validation": [[rich_row(6, 5)]],
    }
    write_output(directory / "v1-rich", rich, RICH, max_length=16)


def _entry(directory: Path, path: Path) -> dict[str, Any]:
    name = path.relative_to(directory).as_posix()
    return {"path": name, "bytes": path.stat().st_size, "sha256": file_digest(path)}


if __name__ == "__main__":
    shutil.rmtree(GOLDEN, ignore_errors=True)
    write_golden(GOLDEN)
