"""Quarantine of rows that kill every worker that tokenizes them.

They are found by halving a slice, written to quarantine.jsonl, and counted as skipped with reason
"poisoned". The file has one line a row: `source`, `row`, `document` (its number in the whole
input), `reason` and `text`.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packprep.execute.job import Job
from packprep.inspect.output_files import QUARANTINE
from packprep.schemas.storage.writing import write_file
from packprep.sources.units import Slice
from packprep.support.problems import BadRow
from packprep.tokens.encode import READ
from packprep.tokens.store import TokenFile, file_name

Failing = Sequence[tuple[int, str]]
"""Rows of a slice, each with its failure in words."""


def rows_that_fail(rows: int, failure: Callable[[int, int], str | None]) -> list[tuple[int, str]]:
    """Each row that fails alone, found in about 2 log2(rows) calls a row.

    failure: failure of the rows first..last - 1 together, in words; None if there is none. Rows
    that fail only together are not found.
    """
    failing: list[tuple[int, str]] = []
    untested = [(0, rows)]
    while untested:
        first, last = untested.pop()
        if first == last or (reason := failure(first, last)) is None:
            continue
        if last - first == 1:
            failing.append((first, reason))
        else:
            middle = (first + last) // 2
            untested += [(middle, last), (first, middle)]
    return failing


def quarantined(piece: Slice, failing: Failing) -> Slice:
    """The slice with the failing rows emptied, and counted as skipped and poisoned."""
    bad = np.zeros(len(piece.table), np.bool_)
    bad[[row for row, _ in failing]] = True
    table, kept = piece.table, pa.array(~bad)
    for name in (name for name in READ if name in table.column_names):
        values = table[name].combine_chunks()
        column = table.schema.get_field_index(name)
        table = table.set_column(
            column, name, pc.if_else(kept, values, pa.scalar(None, values.type))
        )
    ends = np.cumsum([part.rows for part in piece.parts])
    counts = np.diff(np.append(0, np.cumsum(bad))[np.append(0, ends)])
    parts = tuple(
        replace(part, skipped=dict(sorted({**part.skipped, BadRow.POISONED: int(count)}.items())))
        if count
        else part
        for part, count in zip(piece.parts, counts, strict=True)
    )
    return replace(piece, table=table, parts=parts)


def write_quarantine(job: Job, piece: Slice, failing: Failing) -> None:
    """Write the failing rows beside the slice's token file, before that is written without them."""
    ends = np.cumsum([part.rows for part in piece.parts])
    lines = []
    for row, reason in failing:
        number = int(np.searchsorted(ends, row, side="right"))
        before = int(ends[number - 1]) if number else 0
        line = {
            "source": job.sources[piece.parts[number].source].name,
            "row": piece.first_rows[number] + row - before,
            "document": piece.first_document + row,
            "reason": f"the process that tokenized it {reason}",
            "text": piece.table["text"][row].as_py(),
        }
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    write_file(_quarantine_path(job.tokens, piece.unit, piece.slice), "".join(lines).encode())


def collect_quarantine(directory: Path, files: Sequence[TokenFile], output: Path) -> Path | None:
    """Write quarantine.jsonl of a build to `output`; None, without a file, if it has no rows."""
    poisoned = [
        file for file in files if any(BadRow.POISONED in part.skipped for part in file.parts)
    ]
    if not poisoned:
        return None
    paths = (_quarantine_path(directory, file.unit, file.slice) for file in poisoned)
    write_file(output / QUARANTINE, b"".join(path.read_bytes() for path in paths))
    return output / QUARANTINE


def _quarantine_path(directory: Path, unit: int, number: int) -> Path:
    return (directory / file_name(unit, number)).with_suffix(".quarantine.jsonl")
