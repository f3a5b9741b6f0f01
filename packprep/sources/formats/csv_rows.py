"""CSV and TSV rows, quoted as in RFC 4180, every value as text.

The CSV builder of `datasets` guesses: digits become numbers, a row with fewer fields than the
header gets empty ones, and a first row with more shifts every column. Here 007 stays 007, and a row
that does not fit the header is reported.

`pyarrow.csv` (26) reports less: it accepts an open quote, and text after a closing one, counts rows
instead of lines, and stops at a row that is not UTF-8, where we only skip that row.

Each table has the asked columns as strings and READER_PROBLEM (see problems.py).
"""

import csv
import io
import itertools
from collections.abc import Iterator, Sequence
from typing import TextIO

import pyarrow as pa

from packprep.sources.formats.format import Format, Input, LocalPath, Wanted
from packprep.sources.formats.raw_files import NUL, escaped_bytes
from packprep.support.errors import InputError
from packprep.support.problems import READER_PROBLEM, BadRow, Problem, problem_array

_ROWS = 1000
csv.field_size_limit(2**31 - 1)  # for the whole process, so the reader below has its own limit


def _tables(source: Input, path: LocalPath, wanted: Wanted) -> Iterator[pa.Table]:
    with _decoded(source.plain()) as text:
        reader = CsvReader(text, _delimiter(source), wanted.plan.max_row_size, source.name)
        header = reader.header()
        while rows := list(itertools.islice(reader.rows(header), _ROWS)):
            yield _table(rows, header, wanted.plan.columns)


def _decoded(file: io.BufferedReader) -> io.TextIOWrapper:
    """The file as text, its bad bytes as surrogates, so that the row can be named."""
    return io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="")


def _delimiter(source: Input) -> str:
    return "\t" if source.suffix == "tsv" else ","


def _columns(source: Input, path: LocalPath) -> list[str]:
    with _decoded(source.plain()) as text:
        header = CsvReader(text, _delimiter(source), 1 << 20, source.name).header()
        return [name.encode("utf-8", "replace").decode() for name in header]


class CsvReader:
    """Rows of a CSV file, each with its problem.

    Raises InputError for a quote that is never closed.
    """

    def __init__(self, text: TextIO, delimiter: str, limit: int, source: str) -> None:
        self._text = text
        self._reader = csv.reader(self._lines(), delimiter=delimiter, strict=True)
        self._limit = limit
        self._source = source
        self._size = 0  # characters of the row so far: a quoted field may hold lines
        self._line = 1  # where the row begins

    def _lines(self) -> Iterator[str]:
        while line := self._text.readline(self._limit + 1):
            self._size += len(line)
            if self._size > self._limit:
                raise self._stop(
                    f"the row has more than {self._limit:,} bytes (--max-row-size); is a quote "
                    "left open?"
                )
            yield line

    def _stop(self, what: str) -> InputError:
        return InputError(f"{self._source} line {self._line}: {what}")

    def header(self) -> list[str]:
        """Names of the columns; none in an empty file."""
        try:
            return next(self._reader, [])
        except csv.Error as error:
            raise self._stop(f"{error}; quote it as CSV does") from None

    def rows(self, header: Sequence[str]) -> Iterator[tuple[list[str], Problem | None]]:
        """Rows that are not blank, each with its problem."""
        while True:
            self._size, self._line = 0, self._reader.line_num + 1
            try:
                row = next(self._reader, None)
            except csv.Error as error:
                if "unexpected end" in str(error):  # the quote includes all later rows
                    raise self._stop(
                        "a quote in this row is never closed; quote it as CSV does"
                    ) from None
                yield [], Problem(BadRow.BAD_CSV, f"line {self._reader.line_num}: {error}")
                continue
            if row is None:
                return
            if len(row) == len(header):
                yield row, None
            elif row:
                count = f"{len(row)} field" + ("s" if len(row) != 1 else "")
                fields = f"{count}, the header has {len(header)}"
                yield [], Problem(BadRow.BAD_CSV, f"line {self._reader.line_num} has {fields}")


def _table(
    rows: Sequence[tuple[list[str], Problem | None]], header: Sequence[str], columns: Sequence[str]
) -> pa.Table:
    problems = [problem for _, problem in rows]
    arrays = []
    for name in columns:
        place = header.index(name) if name in header else None
        values = [None if place is None or not row else row[place] for row, _ in rows]
        for number, value in enumerate(values):
            wrong = (
                None
                if value is None
                else "is not UTF-8"
                if escaped_bytes(value) >= 0
                else NUL
                if "\0" in value
                else None
            )
            if wrong:
                values[number] = None
                problems[number] = problems[number] or Problem(BadRow.BAD_UTF8, f"{name!r} {wrong}")
        arrays.append(pa.array(values, pa.string()))
    return pa.table([*arrays, problem_array(problems)], names=[*columns, READER_PROBLEM])


CSV = Format(
    name="csv",
    endings=("csv", "tsv"),
    columns=_columns,
    tables=_tables,
    is_streamed=True,
    numbers_are_text=True,
    finds_bad_utf8=True,
)
