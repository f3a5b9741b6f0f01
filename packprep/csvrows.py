"""CSV and TSV rows through `datasets`, every value as text.

The CSV builder of `datasets` guesses: digits become numbers, a row with fewer fields than the header gets empty ones,
and a first row with more shifts every column. Here 007 stays 007, and a row that does not fit the header is a finding.

Each table has the asked columns as strings and `problem`, null or "reason: detail".
"""

import csv
import dataclasses
import io
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import datasets
import pyarrow as pa

from packprep.errors import InputError
from packprep.rowbuilder import RowBuilder

_ROWS = 1000
csv.field_size_limit(2**31 - 1)


@dataclasses.dataclass
class CsvRowsConfig(datasets.BuilderConfig):  # type: ignore[misc]
    """columns: names of the columns to read. source: the file as messages name it."""

    columns: tuple[str, ...] = ("text",)
    delimiter: str = ","
    source: str = ""


class CsvRows(RowBuilder):
    """A file with a header, quoted as RFC 4180 says, plain or compressed."""

    BUILDER_CONFIG_CLASS = CsvRowsConfig

    def tables(self, file: Any) -> Iterator[pa.Table]:
        """See `RowBuilder.tables`."""
        reader = rows_of(file, self.config.delimiter)
        try:
            header: list[str] = next(reader, [])
            while rows := list(itertools.islice(_problems(reader, header), _ROWS)):
                yield _table(rows, header, self.config.columns)
        except csv.Error as error:
            raise InputError(f"{self.config.source} line {reader.line_num}: {error}; quote it as CSV does") from None


def rows_of(file: io.BufferedReader, delimiter: str) -> Any:
    """A csv.reader over bytes; those that are not UTF-8 come as surrogates, so that the row can be named."""
    text = io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="")
    return csv.reader(text, delimiter=delimiter, strict=True)


def _problems(reader: Any, header: Sequence[str]) -> Iterator[tuple[list[str], str | None]]:
    """Rows that are not blank, each with what is wrong with it."""
    for row in reader:
        if len(row) == len(header):
            yield row, None
        elif row:
            yield [], f"bad_csv: line {reader.line_num} has {len(row)} fields, the header {len(header)}"


def _table(rows: Sequence[tuple[list[str], str | None]], header: Sequence[str], columns: Sequence[str]) -> pa.Table:
    problems = [problem for _, problem in rows]
    arrays = []
    for name in columns:
        place = header.index(name) if name in header else None
        values = [None if place is None or not row else row[place] for row, _ in rows]
        for number, value in enumerate(values):
            if value is not None and not _is_text(value):
                values[number] = None
                problems[number] = problems[number] or f"bad_utf8: {name!r} is not UTF-8"
        arrays.append(pa.array(values, pa.string()))
    return pa.table([*arrays, pa.array(problems, pa.string())], names=[*columns, "problem"])


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
