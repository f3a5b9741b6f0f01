"""CSV, TSV and plain text, every value as text; a row that does not fit is reported.

CSV is quoted as in RFC 4180. 007 stays 007, and a row with more or fewer fields than the header is
a bad row. A .txt file is one document, or its paragraphs or lines are; line ends \\r\\n and \\r are
read as \\n there, and a byte order mark is not part of the text.
"""

import csv
import io
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from ...support.errors import InputError
from ..types import Problem, Raw, Source, Wanted
from .format import Format, opened

_ROWS = 1000
csv.field_size_limit(2**31 - 1)  # for the whole process; `_CsvLines` has a limit of its own


class _CsvLines:
    """Lines of a file for csv.reader, with a limit for the size of a row."""

    def __init__(self, source: Source, text: io.TextIOWrapper, limit: int) -> None:
        self.source, self.text, self.limit = source, text, limit
        self.size, self.row_line, self.line = 0, 1, 0

    def __iter__(self) -> Iterator[str]:
        while line := self.text.readline(self.limit + 1):
            self.line += 1
            self.size += len(line)
            if self.size > self.limit:
                raise InputError(
                    f"{self.source.name} line {self.row_line}: the row has more than "
                    f"{self.limit:,} bytes; is a quote left open?"
                )
            yield line

    def fault(self, error: csv.Error) -> InputError:
        """The error about a row that ends the reading."""
        return InputError(f"{self.source.name} line {self.row_line}: {error}; quote it as CSV does")


def _csv_text(source: Source) -> io.TextIOWrapper:
    return io.TextIOWrapper(opened(source), "utf-8-sig", "surrogateescape", newline="")


def _csv_rows(
    source: Source, text: io.TextIOWrapper, limit: int
) -> tuple[list[str], Iterator[tuple[list[str], Problem | None]]]:
    """The header, and the rows that are not blank."""
    lines = _CsvLines(source, text, limit)
    ending = source.path.removesuffix(f".{source.compression}") if source.compression else ""
    delimiter = "\t" if (ending or source.path).lower().endswith(".tsv") else ","
    reader = csv.reader(iter(lines), delimiter=delimiter, strict=True)
    try:
        header = next(reader, [])
    except csv.Error as error:
        raise lines.fault(error) from None

    def rows() -> Iterator[tuple[list[str], Problem | None]]:
        while True:
            lines.size, lines.row_line = 0, reader.line_num + 1
            try:
                row = next(reader, None)
            except csv.Error as error:
                if "unexpected end" in str(error):  # the quote includes all later rows
                    raise lines.fault(error) from None
                yield [], Problem("bad_csv", f"line {reader.line_num}: {error}")
                continue
            if row is None:
                return
            if row and len(row) != len(header):
                fields = f"{len(row)} field{'s' * (len(row) != 1)}"
                what = f"line {reader.line_num} has {fields}, the header has {len(header)}"
                yield [], Problem("bad_csv", what)
            elif row:
                yield row, None

    return header, rows()


def _read_csv(source: Source, begin: int, end: int, wanted: Wanted) -> Iterator[Raw]:
    with _csv_text(source) as text:
        header, rows = _csv_rows(source, text, wanted.limit)
        while taken := list(itertools.islice(rows, _ROWS)):
            problems = {number: fault for number, (_, fault) in enumerate(taken) if fault}
            columns = {}
            for name in wanted.columns:
                place = header.index(name) if name in header else -1
                values = [row[place] if row and place >= 0 else None for row, _ in taken]
                columns[name] = _texts(values, problems, repr(name))
            yield Raw(pa.table(columns), problems)


def _texts(values: Iterable[str | None], problems: dict[int, Problem], what: str) -> Any:
    """Values as text; those that are not UTF-8 are null, and a problem."""
    sound: list[str | None] = []
    for number, value in enumerate(values):
        if value is not None and (fault := text_fault(value)):
            problems.setdefault(number, Problem("bad_utf8", f"{what} {fault}"))
            value = None
        sound.append(None if number in problems else value)
    return pa.array(sound, pa.string())


def text_fault(value: str) -> str:
    """What is wrong with text that was decoded with surrogateescape; "" if nothing is."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return "is not UTF-8"
    return "has a NUL, so it may be UTF-16 or a binary file" if "\0" in value else ""


def _columns_csv(source: Source) -> list[str]:
    with _csv_text(source) as text:
        header, _ = _csv_rows(source, text, 1 << 20)
    return [name.encode("utf-8", "replace").decode() for name in header]


def _read_text(source: Source, begin: int, end: int, wanted: Wanted) -> Iterator[Raw]:
    by = {"document": _document, "paragraph": _paragraphs, "line": _lines}[wanted.sample_by]
    with io.TextIOWrapper(opened(source), "utf-8-sig", "surrogateescape") as text:
        rows = by(text, wanted.limit)
        while taken := list(itertools.islice(rows, _ROWS)):
            problems: dict[int, Problem] = {}
            for number, (value, line) in enumerate(taken):
                if value is None:
                    what = f"the {wanted.sample_by} at line {line} has more than"
                    problems[number] = Problem("too_large", f"{what} {wanted.limit:,} bytes")
                elif fault := text_fault(value):
                    at = next(i for i, sign in enumerate(value) if text_fault(sign))
                    place = line + value.count("\n", 0, at)
                    problems[number] = Problem("bad_utf8", f"line {place} {fault}")
            values = [None if n in problems else value for n, (value, _) in enumerate(taken)]
            yield Raw(pa.table({"text": pa.array(values, pa.string())}), problems)


def _document(text: io.TextIOWrapper, limit: int) -> Iterator[tuple[str | None, int]]:
    content = text.read(limit + 1)
    if content:
        yield (content if len(content) <= limit else None), 1


def _lines(text: io.TextIOWrapper, limit: int) -> Iterator[tuple[str | None, int]]:
    number = 0
    while line := text.readline(limit + 1):
        number += 1
        ended = line.endswith("\n")
        yield (line.removesuffix("\n") if len(line) <= limit + ended else None), number
        while line and not line.endswith("\n"):
            line = text.readline(1 << 20)


def _paragraphs(text: io.TextIOWrapper, limit: int) -> Iterator[tuple[str | None, int]]:
    """Texts between two line ends, without empty ones."""
    number, rest = 1, ""
    while block := text.read(1 << 20):
        *paragraphs, rest = (rest + block).split("\n\n")
        if len(rest) > limit:
            raise InputError(
                f"{text.name} has a paragraph of more than {limit:,} bytes at line {number}; "
                "sample_by: line reads lines"
            )
        for paragraph in paragraphs:
            if paragraph:
                yield (paragraph if len(paragraph) <= limit else None), number
            number += paragraph.count("\n") + 2
    if rest:
        yield rest, number


CSV = Format(name="csv", endings=("csv", "tsv"), read=_read_csv, columns=_columns_csv)
TEXT = Format(name="text", endings=("txt",), read=_read_text, columns=lambda _: ["text"])
