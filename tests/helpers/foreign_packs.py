"""Sound packs in the formats of other tools, for tests that plant faults in them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packprep.inspect.verify import verify

VOCABULARY = 100

BRIDGE: dict[str, list[list[Any]]] = {
    "input_ids": [[5, 6, 7, 8, 9], [10, 11, 12], [13]],
    "loss_mask": [[0, 1, 0, 1, 0], [1, 1, 0], [0]],
    "seq_start_id": [[0, 3], [0, 2], [0]],
}
"""Packs of 2, 2 and 1 segments, as Megatron-Bridge reads them."""

ROWS: dict[str, list[list[Any]]] = {
    "input_ids": [[5, 6, 7, 8, 9], [10, 11, 12], [13]],
    "labels": [[-100, 6, 7, -100, 9], [-100, 11, -100], [-100]],
    "position_ids": [[0, 1, 2, 0, 1], [0, 1, 0], [0]],
    "seq_lengths": [[3, 2], [2, 1], [1]],
}
"""The same packs as TRL and Trainer read them."""


def faults(path: Path, **options: Any) -> list[str]:
    """Sentences of `packprep verify`."""
    return [str(finding) for finding in verify(path, **options).findings]


def write_rows(path: Path, columns: dict[str, Any]) -> Path:
    """Columns as a Parquet file, or as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    else:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def with_value(columns: dict[str, Any], column: str, row: int, value: Any) -> dict[str, Any]:
    """The columns with another list in one row."""
    changed = list(columns[column])
    changed[row] = value
    return columns | {column: changed}


SAMPLES = [
    [0, 0, -1, -1, 0, 5],
    [0, 1, -1, -1, 0, 3],
    [1, 0, -1, -1, 0, 8],
    [1, 1, 10, 90, 0, 4],
    [1, 1, 90, 150, 4, 8],
]


def write_preset(folder: Path, **files: Any) -> Path:
    """XTuner's preset packs: 3 packs of 5 samples of 2 files. files: other contents by name."""
    folder.mkdir(parents=True, exist_ok=True)
    contents: dict[str, Any] = {
        "boundaries": np.array([0, 2, 3, 5]),
        "samples": np.array(SAMPLES),
        "paths": ["a.jsonl", "b.jsonl"],
    } | files
    np.save(folder / "boundaries.npy", contents["boundaries"])
    np.save(folder / "samples.npy", contents["samples"])
    (folder / "paths.json").write_text(json.dumps(contents["paths"]))
    return folder
