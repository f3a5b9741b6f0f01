"""Rows that no worker survives.

Found by halving, kept in quarantine.jsonl, counted as skipped with reason "poisoned".

One line a row: `source`, `row`, `document` (its number over the whole input), `reason` and `text`.
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
"""Rows of a slice with what each does."""


def rows_that_fail(rows: int, failure: Callable[[int, int], str | None]) -> list[tuple[int, str]]:
    """Each row that fails alone, found in about 2 log2(rows) calls a row.

    failure: what the rows first..last - 1 do together, or None. Rows that only fail together are
    not found.
    """
    found: list[tuple[int, str]] = []
    left = [(0, rows)]
    while left:
        first, last = left.pop()
        if first == last or (reason := failure(first, last)) is None:
            continue
        if last - first == 1:
            found.append((first, reason))
        else:
            middle = (first + last) // 2
            left += [(middle, last), (first, middle)]
    return found


def quarantined(given: Slice, failing: Failing) -> Slice:
    """The slice with these rows as rows without text, skipped for being poisoned."""
    bad = np.zeros(len(given.table), np.bool_)
    bad[[row for row, _ in failing]] = True
    table, kept = given.table, pa.array(~bad)
    for name in (name for name in READ if name in table.column_names):
        values = table[name].combine_chunks()
        column = table.schema.get_field_index(name)
        table = table.set_column(
            column, name, pc.if_else(kept, values, pa.scalar(None, values.type))
        )
    ends = np.cumsum([part.rows for part in given.parts])
    counts = np.diff(np.append(0, np.cumsum(bad))[np.append(0, ends)])
    parts = tuple(
        replace(part, skipped=dict(sorted({**part.skipped, BadRow.POISONED: int(count)}.items())))
        if count
        else part
        for part, count in zip(given.parts, counts, strict=True)
    )
    return replace(given, table=table, parts=parts)


def write_quarantine(job: Job, given: Slice, failing: Failing) -> None:
    """Keep the rows beside the token file of the slice, before that is written without them."""
    ends = np.cumsum([part.rows for part in given.parts])
    lines = []
    for row, reason in failing:
        place = int(np.searchsorted(ends, row, side="right"))
        before = int(ends[place - 1]) if place else 0
        line = {
            "source": job.sources[given.parts[place].source].name,
            "row": given.first_rows[place] + row - before,
            "document": given.first_document + row,
            "reason": f"the process that tokenized it {reason}",
            "text": given.table["text"][row].as_py(),
        }
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    write_file(_beside(job.tokens, given.unit, given.slice), "".join(lines).encode())


def collect_quarantine(directory: Path, files: Sequence[TokenFile], output: Path) -> Path | None:
    """quarantine.jsonl of a whole build in `output`; None, and no file, where no row is in it."""
    poisoned = [
        file for file in files if any(BadRow.POISONED in part.skipped for part in file.parts)
    ]
    if not poisoned:
        return None
    lines = b"".join(_beside(directory, file.unit, file.slice).read_bytes() for file in poisoned)
    write_file(output / QUARANTINE, lines)
    return output / QUARANTINE


def _beside(directory: Path, unit: int, number: int) -> Path:
    return (directory / file_name(unit, number)).with_suffix(".quarantine.jsonl")
