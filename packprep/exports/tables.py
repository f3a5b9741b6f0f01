"""Packs as rows of tables: Arrow files that `load_from_disk` opens, and Parquet.

A name is a tuple of columns in `NAMES`; how a column is made is a row of `COLUMNS`. Labels are -100
where there is no loss, and at the first token of each segment.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .. import __version__
from ..schemas.arrays import Bools
from ..schemas.columns import NO_LOSS
from ..schemas.files import canonical_json, digest_of
from ..schemas.manifest import Output
from ..support.records import write_file, writing
from ..write.sign import write_dataset_files
from .view import PackView, lists, views

_MULTIPLE = 8  # LLaMA-Factory's collator pads to it all but positions

Tables = Iterable[tuple[str, pa.RecordBatch]]
"""Rows, each batch with the path of its file, whatever that ends in."""


def _firsts(view: PackView) -> Any:
    """First token of each segment in its pack."""
    _, first, starts, _ = view.segments
    return view.per_segment(starts - np.repeat(view.segments.tokens[:-1], np.diff(first)))


COLUMNS: Mapping[str, Callable[[PackView], Any]] = {
    "input_ids": lambda view: view.per_token(view.tokens),
    "labels": lambda view: view.per_token(view.labels),
    "position_ids": lambda view: view.per_token(view.positions),
    "seq_lengths": lambda view: view.per_segment(view.lengths),
    "seq_start_id": _firsts,
    # A value belongs to the prediction at its place; the first of a segment is never trained.
    "loss_mask": lambda view: view.per_token(np.append(view.trained[1:], False), "int8"),
}
NAMES = {
    "hf": ("input_ids", "position_ids", "labels", "seq_lengths"),
    "trl": ("input_ids", "labels", "seq_lengths"),
    "axolotl": ("input_ids", "labels", "position_ids"),
    "megatron-bridge": ("input_ids", "loss_mask", "seq_start_id"),
}
"""Columns that other trainers read, by the name of the format."""
ENDINGS = dict.fromkeys(("megatron-bridge", "parquet", "rows-parquet"), "parquet")
ENDINGS |= {"rows-jsonl": "jsonl"}
"""Endings of files by the name of the format; those of others are arrow."""


def named(output: Output, split: str, name: str) -> Tables:
    """Packs with the columns of a name; all columns of the shards for another."""
    for view in views(output, split):
        columns = {each: COLUMNS[each](view) for each in NAMES.get(name, ())}
        yield view.shard, pa.record_batch(columns) if columns else view.batch


def padded_rows(output: Output, split: str, name: str) -> Tables:
    """Rows of `max_length` tokens, whose mask numbers the segments and is 0 after the pack."""
    size = -(-output.manifest.layout.max_length // _MULTIPLE) * _MULTIPLE
    for view in views(output, split):
        counts = np.diff(view.segments.first)
        number = np.arange(counts.sum()) - np.repeat(view.segments.first[:-1], counts) + 1
        filled = np.arange(size) < np.diff(view.segments.tokens)[:, None]

        def padded(values: Any, after: int, filled: Bools = filled) -> Any:
            table = np.full(filled.shape, after, np.int32)
            table[filled] = values
            return lists(np.arange(len(table) + 1) * size, table.ravel(), "int32")

        columns = {
            "input_ids": padded(view.tokens, 0),
            "attention_mask": padded(np.repeat(number, view.lengths), 0),
            "position_ids": padded(view.positions, 0),
            "labels": padded(view.labels, NO_LOSS),
        }
        yield view.shard, pa.record_batch(columns)


class _JsonLines:
    """Rows as lines of JSON."""

    def __init__(self, file: Any, schema: pa.Schema) -> None:
        self._file = file

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write a line for each row."""
        lines = (json.dumps(row) + "\n" for row in batch.to_pylist())
        self._file.write("".join(lines).encode())

    def close(self) -> None:
        """Do nothing: all lines are written."""


_WRITERS: Mapping[str, Callable[[Any, pa.Schema], Any]] = {
    "arrow": pa.ipc.new_stream,
    # A row group is a record batch: readers of Megatron-Bridge read a whole group for a pack.
    "parquet": partial(pq.ParquetWriter, compression="zstd", use_dictionary=False),
    "jsonl": _JsonLines,
}


def write(
    made: Callable[[Output, str, str], Tables], output: Output, split: str, folder: Path, name: str
) -> int:
    """Write the rows of a split, and return their number. made: the rows of the format `name`."""
    place, names, rows, ending = folder / split, list[str](), 0, ENDINGS.get(name, "arrow")
    place.mkdir()
    for path, parts in itertools.groupby(made(output, split, name), lambda table: table[0]):
        names.append(Path(path).with_suffix(f".{ending}").name)
        _, first = next(parts)
        with (
            writing(place / names[-1]) as file,
            closing(_WRITERS[ending](file, first.schema)) as writer,
        ):
            for batch in itertools.chain([first], (batch for _, batch in parts)):
                writer.write_batch(batch)
                rows += len(batch)
    if ending == "arrow":
        # The identity decides the bytes of the packs, and this code what is made of them.
        made_of = digest_of([output.manifest.identity, name, split, __version__])
        write_dataset_files(place, names, made_of, split)
        write_file(
            folder / "dataset_dict.json", canonical_json({"splits": [*output.manifest.splits]})
        )
    return rows
