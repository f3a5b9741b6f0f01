"""Rows of Parquet, Arrow and JSON lines as lists of whole numbers, and what is wrong with them.

A fault of a list is a finding with its row, and the row is left out of later checks. Files are
read, not mapped.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from packprep.schemas.canonical import parse_json
from packprep.schemas.findings import Finding, Findings
from packprep.support.arrays import Bools, Int64

_ROWS = 512  # of a batch: packs are long


@dataclass(frozen=True)
class RowLists:
    """A column of lists. Row r is values[offsets[r]:offsets[r + 1]], int64."""

    offsets: Int64
    values: Int64

    @property
    def lengths(self) -> Int64:
        return np.diff(self.offsets)

    def take(self, rows: Bools) -> "RowLists":
        """The lists of some rows. rows: bool [rows]."""
        values = self.values[np.repeat(rows, self.lengths)]
        return RowLists(np.append(0, np.cumsum(self.lengths[rows])), values)


def row_batches(path: Path, name: str, findings: Findings) -> Iterator[pa.RecordBatch]:
    """The rows of a file. A file that cannot be read to its end is a finding."""
    try:
        if path.suffix == ".parquet":
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                yield from file.iter_batches(_ROWS)
        elif path.suffix == ".arrow":
            yield from _arrow(path)
        else:
            yield from _json(path, name, findings)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        what = f"it cannot be read to its end: {' '.join(str(error).split())[:200]}"
        findings.add(Finding(kind="damaged", file=name, what=what))


def column_names(path: Path) -> list[str] | None:
    """Names of the columns of a file; None if they cannot be read."""
    try:
        if path.suffix == ".parquet":
            return list(pq.read_schema(path).names)
        if path.suffix == ".arrow":
            return next(iter(_arrow(path))).schema.names
        with path.open("rb") as lines:
            row = parse_json(lines.readline())
            return list(row) if isinstance(row, dict) else None
    except StopIteration:
        return []
    except (pa.ArrowException, OSError, ValueError, TypeError):
        return None


def _arrow(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path), mode="r") as file:
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        if is_file:
            reader = pa.ipc.open_file(file)
            yield from map(reader.get_batch, range(reader.num_record_batches))
        else:
            yield from pa.ipc.open_stream(file)


def _json(path: Path, name: str, findings: Findings) -> Iterator[pa.RecordBatch]:
    with path.open("rb") as file:
        first = 0
        while lines := list(itertools.islice(file, _ROWS)):
            rows = []
            for number, line in enumerate(lines, first):
                try:
                    row = parse_json(line)
                except ValueError:
                    row = None
                if not isinstance(row, dict):
                    what = "the line is no JSON object"
                    findings.add(Finding(kind="row", file=name, pack=number, what=what))
                    row = {}
                rows.append(row)
            yield pa.RecordBatch.from_pylist(rows)
            first += len(lines)


def row_lists(
    batch: pa.RecordBatch, column: str, name: str, first_row: int, findings: Findings
) -> tuple[RowLists, Bools]:
    """Lists of a column, and which rows have a sound one, bool [rows].

    Rows with null, with a null in their list, or with a value of another type are findings.
    """
    array: Any = batch.column(batch.schema.get_field_index(column))
    rows = len(array)
    nothing = RowLists(np.zeros(rows + 1, np.int64), np.empty(0, np.int64))
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        what = f"{column} is damaged: {' '.join(str(error).split())[:200]}"
        findings.add(Finding(kind="damaged", file=name, what=what))
        return nothing, np.zeros(rows, np.bool_)

    def report(rows: NDArray[Any], make: Any) -> None:
        findings.many(
            "column",
            rows,
            lambda row: Finding(kind="column", file=name, pack=first_row + row, what=make(row)),
        )

    if not _is_list_of_numbers(array.type):
        if not pa.types.is_null(array.type):
            what = f"{column} is {array.type}; expected lists of whole numbers"
            findings.add(Finding(kind="column", file=name, what=what))
        else:
            report(np.arange(rows), lambda row: f"it has no {column}")
        return nothing, np.zeros(rows, np.bool_)
    sound = array.is_valid().to_numpy(zero_copy_only=False)
    report(np.flatnonzero(~sound), lambda row: f"it has no {column}")
    lists = cast("pa.LargeListArray[Any]", array.cast(pa.large_list(array.type.value_type)))
    offsets = lists.offsets.to_numpy().astype(np.int64)
    flat: Any = lists.values.slice(offsets[0], offsets[-1] - offsets[0])
    offsets = offsets - offsets[0]
    if flat.null_count:
        nulls = np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False))
        holes = np.unique(np.searchsorted(offsets, nulls, side="right") - 1)
        places = {int(row): int(nulls[np.searchsorted(nulls, offsets[row])]) for row in holes}
        report(holes, lambda row: f"{column} has null at {places[row] - offsets[row]}")
        sound[holes] = False
    if pa.types.is_boolean(flat.type):
        flat = flat.cast(pa.int8())
    if pa.types.is_null(flat.type):  # every list is empty
        flat = pa.array([0] * len(flat), pa.int8())
    return RowLists(offsets, flat.fill_null(0).to_numpy().astype(np.int64)), sound


def _is_list_of_numbers(kind: pa.DataType) -> bool:
    if not isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        return False
    value = kind.value_type
    return pa.types.is_integer(value) or pa.types.is_boolean(value) or pa.types.is_null(value)
