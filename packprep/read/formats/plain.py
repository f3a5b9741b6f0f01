"""CSV, TSV and plain text, every value as text; a row that does not fit is reported.

CSV is quoted as in RFC 4180. 007 stays 007, and a row with more or fewer fields than the header is
a bad row. A .txt file is one document, or its paragraphs or lines are; line ends \\r\\n and \\r are
read as \\n there, and a byte order mark is not part of the text.
"""

import csv
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ...support.errors import InputError
from ..types import LIMIT, Format, Source, Text
from ..values import Columns, Problem, Raw, Row, raws

_SEPARATORS = {"document": "", "paragraph": "\n\n", "line": "\n"}
_NUL = "has a NUL, so it may be UTF-16 or a binary file"
_FAULT = re.compile("[\0\ud800-\udfff]")  # of text that is read as UTF-8
csv.field_size_limit(LIMIT)  # for the whole process


def _opened(source: Source, newline: str | None) -> io.TextIOWrapper:
    return io.TextIOWrapper(source.open(), "utf-8-sig", "surrogateescape", newline=newline)


def _read_csv(source: Source, begin: int, end: int, columns: Columns) -> Iterator[Raw]:
    delimiter = "\t" if source.format == "tsv" else ","
    with _opened(source, "") as text:
        reader = csv.reader(_bounded(text, source), delimiter=delimiter, strict=True)
        header: list[str] = next(_csv_rows(reader, source), [])
        if any("\0" in name for name in header):
            raise InputError(f"the header of {source.name} {_NUL}")
        rows = (_values(header, row, columns) for row in _csv_rows(reader, source, len(header)))
        names = [name.encode("utf-8", "replace").decode() for name in header]
        yield from raws(rows, columns, names)


def _values(header: Sequence[str], row: Any, columns: Columns) -> Row:
    """Values of a row by name, or its problem."""
    if isinstance(row, Problem):
        return row
    values = dict(zip(header, row, strict=True))
    wrong = [name for name in columns if "\0" in values.get(name, "")]
    return Problem("bad_utf8", f"{wrong[0]!r} {_NUL}") if wrong else values


def _bounded(text: io.TextIOWrapper, source: Source) -> Iterator[str]:
    """Lines of a file."""
    while line := text.readline(LIMIT + 1):
        if len(line) > LIMIT:
            raise InputError(f"{source.name} has a line of more than {LIMIT:,} bytes; split it")
        yield line


def _csv_rows(reader: Any, source: Source, fields: int = 0) -> Iterator[Any]:
    """Rows that are not blank, or the problem of one. fields: of each; 0 before they are known.

    Raises InputError for a wrong quote.
    """
    for number in itertools.count():
        row: Any = []
        while row == []:
            line = reader.line_num + 1
            try:
                row = next(reader, None)
            except csv.Error as error:
                # Where the row ends is not known: a quote that is left open takes in later ones.
                place = f"row {number} (line {line})" if fields else f"line {line}"
                raise InputError(f"{source.name} {place}: {error}; quote it as CSV does") from None
        if row is None:
            return
        if fields and len(row) != fields:
            have = f"{len(row)} field{'s' * (len(row) != 1)}"
            yield Problem("bad_csv", f"line {reader.line_num} has {have}, the header has {fields}")
        else:
            yield row


def _read_text(source: Source, begin: int, end: int, columns: Columns) -> Iterator[Raw]:
    with _opened(source, None) as text:
        yield from raws(itertools.starmap(_row, _samples(text, source)), columns)


def _row(sample: str, line: int) -> Row:
    """The row of a sample that begins at a line, or its problem."""
    if match := _FAULT.search(sample):
        what = _NUL if match[0] == "\0" else "is not UTF-8"
        at = line + sample.count("\n", 0, match.start())
        return Problem("bad_utf8", f"line {at} {what}")
    return {"text": sample}


def _samples(text: io.TextIOWrapper, source: Source) -> Iterator[tuple[str, int]]:
    """Documents, paragraphs or lines, each with the line it begins at; no empty paragraph."""
    assert isinstance(source.rows, Text)
    by = source.rows.sample_by
    separator, line, rest = _SEPARATORS[by], 1, ""
    while block := text.read(1 << 20 if separator else LIMIT + 1):
        *whole, rest = (rest + block).split(separator) if separator else [rest + block]
        if len(rest) > LIMIT:
            what = f"{source.name} line {line} begins a {by} of more than {LIMIT:,} bytes"
            raise InputError(f"{what}; split it, or choose another sample_by")
        for sample in whole:
            if sample or by == "line":
                yield sample, line
            line += f"{sample}{separator}".count("\n")
    if rest:
        yield rest, line


FORMATS = dict.fromkeys(("csv", "tsv"), Format(read=_read_csv)) | {"text": Format(read=_read_text)}
