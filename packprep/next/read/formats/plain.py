"""CSV, TSV and plain text, every value as text; a row that does not fit is reported.

CSV is quoted as in RFC 4180. 007 stays 007, and a row with more or fewer fields than the header is
a bad row. A .txt file is one document, or its paragraphs or lines are; line ends \\r\\n and \\r are
read as \\n there, and a byte order mark is not part of the text.
"""

import csv
import io
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from ...support.errors import InputError
from ..types import LIMIT, Columns, Format, Problem, Raw, Source, Text

_ROWS = 1000
_SEPARATORS = {"document": None, "paragraph": "\n\n", "line": "\n"}
csv.field_size_limit(LIMIT)  # for the whole process


def text_fault(value: str) -> str:
    """What is wrong with text that was decoded with surrogateescape; "" if nothing is."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return "is not UTF-8"
    return "has a NUL, so it may be UTF-16 or a binary file" if "\0" in value else ""


def _opened(source: Source, newline: str | None) -> io.TextIOWrapper:
    return io.TextIOWrapper(source.open(), "utf-8-sig", "surrogateescape", newline=newline)


def _read_csv(source: Source, begin: int, end: int, columns: Columns) -> Iterator[Raw]:
    ending = source.paths[0].lower().removesuffix(f".{source.compression}")
    delimiter = "\t" if ending.endswith(".tsv") else ","
    with _opened(source, "") as text:
        reader = csv.reader(_bounded(text, source), delimiter=delimiter, strict=True)
        header = next(_csv_rows(reader, source), ([], None))[0]
        rows = _csv_rows(reader, source, len(header))
        names = [name.encode("utf-8", "replace").decode() for name in header]
        while taken := list(itertools.islice(rows, _ROWS)):
            problems = {number: fault for number, (_, fault) in enumerate(taken) if fault}
            table = {}
            for name in columns:
                place = header.index(name) if name in header else -1
                values = [row[place] if row and place >= 0 else None for row, _ in taken]
                table[name] = _texts(values, problems, repr(name))
            yield Raw(pa.table(table), problems, names)


def _bounded(text: io.TextIOWrapper, source: Source) -> Iterator[str]:
    """Lines of a file."""
    while line := text.readline(LIMIT + 1):
        if len(line) > LIMIT:
            raise InputError(f"{source.name} has a line of more than {LIMIT:,} bytes; split it")
        yield line


def _csv_rows(
    reader: Any, source: Source, fields: int = 0
) -> Iterator[tuple[Sequence[str], Problem | None]]:
    """Rows that are not blank. fields: of each; 0 if it is not known yet."""
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            what = f"line {line}: {error}"
            if not fields or "unexpected end" in what or "field limit" in what:
                # a quote that is left open takes in all later rows
                raise InputError(f"{source.name} {what}; quote it as CSV does") from None
            yield (), Problem("bad_csv", what)
            continue
        if row and fields and len(row) != fields:
            plural = "s" * (len(row) != 1)
            what = f"line {reader.line_num} has {len(row)} field{plural}, the header has {fields}"
            yield (), Problem("bad_csv", what)
        elif row:
            yield row, None


def _texts(values: Sequence[str | None], problems: dict[int, Problem], what: str) -> Any:
    """Values as text; those that are not UTF-8 are null, and a problem."""
    for number, value in enumerate(values):
        if value is not None and (fault := text_fault(value)):
            problems.setdefault(number, Problem("bad_utf8", f"{what} {fault}"))
    return pa.array(
        [None if n in problems else value for n, value in enumerate(values)], pa.string()
    )


def _read_text(source: Source, begin: int, end: int, columns: Columns) -> Iterator[Raw]:
    assert isinstance(source.rows, Text)
    with _opened(source, None) as text:
        samples = _samples(text, source, source.rows.sample_by)
        while taken := list(itertools.islice(samples, _ROWS)):
            problems: dict[int, Problem] = {}
            for number, (value, line) in enumerate(taken):
                if fault := text_fault(value):
                    at = next(i for i, sign in enumerate(value) if text_fault(sign))
                    place = line + value.count("\n", 0, at)
                    problems[number] = Problem("bad_utf8", f"line {place} {fault}")
            values = [None if n in problems else value for n, (value, _) in enumerate(taken)]
            yield Raw(pa.table({"text": pa.array(values, pa.string())}), problems, ["text"])


def _samples(text: io.TextIOWrapper, source: Source, by: str) -> Iterator[tuple[str, int]]:
    """Documents, paragraphs or lines, each with the line it begins at; no empty paragraph."""
    separator, line, rest = _SEPARATORS[by], 1, ""
    while block := text.read(1 << 20 if separator else LIMIT + 1):
        *whole, rest = (rest + block).split(separator) if separator else [rest + block]
        if len(rest) > LIMIT:
            raise InputError(
                f"{source.name} has a {by} of more than {LIMIT:,} bytes at line {line}; "
                "sample_by: line or paragraph makes smaller ones"
            )
        for sample in whole:
            if sample or by == "line":
                yield sample, line
            line += f"{sample}{separator}".count("\n")
    if rest:
        yield rest, line


FORMATS = {"csv": Format(read=_read_csv), "text": Format(read=_read_text)}
