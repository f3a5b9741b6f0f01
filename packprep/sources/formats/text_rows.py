"""Plain text: a file is one document, or its paragraphs or its lines are documents.

The text builder of `datasets` reads a whole file at once, unpacks compressed ones to disk, and
names neither file nor line of a byte that is not UTF-8. Here only one row is in memory, and a bad
row is reported with its number.

Line ends \\r\\n and \\r are read as \\n; a byte order mark is not part of the text. Each table has
`text` and READER_PROBLEM (see problems.py).
"""

import io
from collections.abc import Iterator
from typing import TextIO

import pyarrow as pa

from packprep.sources.formats.format import Format, Input, LocalPath, Wanted
from packprep.sources.formats.raw_files import NUL, escaped_bytes
from packprep.support.problems import READER_PROBLEM, BadRow, Problem, problem_array, too_large

BLOCK = 1 << 20


def _tables(source: Input, path: LocalPath, wanted: Wanted) -> Iterator[pa.Table]:
    by, limit = wanted.plan.sample_by, wanted.plan.max_row_size
    rows = {"document": _document, "paragraph": _paragraphs, "line": _lines}[by]
    taken: list[tuple[str | None, Problem | None]] = []
    size = 0
    with io.TextIOWrapper(source.plain(), "utf-8-sig", "surrogateescape") as text:
        for value, line in rows(text, limit):
            taken.append(_checked(value, line, by, limit))
            size += len(value or "")
            if size >= BLOCK or len(taken) == 10_000:
                yield _table(taken)
                taken, size = [], 0
    if taken:
        yield _table(taken)


def _document(text: TextIO, limit: int) -> Iterator[tuple[str | None, int]]:
    """The whole file, None if it is longer than `limit`, and the line where it begins."""
    content = text.read(limit + 1)
    if content:
        yield (content if len(content) <= limit else None), 1


def _lines(text: TextIO, limit: int) -> Iterator[tuple[str | None, int]]:
    number = 0
    while line := text.readline(limit + 1):
        number += 1
        if len(line) <= limit + line.endswith("\n"):
            yield line.removesuffix("\n"), number
            continue
        yield None, number
        while line and not line.endswith("\n"):
            line = text.readline(BLOCK)


def _paragraphs(text: TextIO, limit: int) -> Iterator[tuple[str | None, int]]:
    """Paragraphs: texts between two consecutive line ends, without empty ones."""
    number, rest, endless = 1, "", False
    passed = 0  # line ends of an endless paragraph that are no longer in `rest`
    while block := text.read(BLOCK):
        *paragraphs, rest = (rest + block).split("\n\n")
        for paragraph in paragraphs:
            if paragraph or endless:
                yield (None if endless or len(paragraph) > limit else paragraph), number
            number += passed + paragraph.count("\n") + 2
            passed, endless = 0, False
        if len(rest) > limit:
            passed += rest[:-1].count("\n")
            rest, endless = rest[-1:], True  # it may be the first of two line ends
    if rest or endless:
        yield (None if endless or len(rest) > limit else rest), number


def _checked(
    value: str | None, line: int, what: str, limit: int
) -> tuple[str | None, Problem | None]:
    if value is None:
        subject = f"line {line}" if what == "line" else f"the {what} that starts on line {line}"
        return None, too_large(subject, limit)
    wrong = "is not UTF-8"
    at = escaped_bytes(value)
    if at < 0:
        at, wrong = value.find("\0"), NUL
    if at < 0:
        return value, None
    return None, Problem(BadRow.BAD_UTF8, f"line {line + value.count(chr(10), 0, at)} {wrong}")


def _table(rows: list[tuple[str | None, Problem | None]]) -> pa.Table:
    texts, problems = zip(*rows, strict=True)
    return pa.table({"text": pa.array(texts, pa.string()), READER_PROBLEM: problem_array(problems)})


def _columns(source: Input, path: LocalPath) -> list[str]:
    return ["text"]


TEXT = Format(
    name="text",
    endings=("txt",),
    columns=_columns,
    tables=_tables,
    is_streamed=True,
    finds_bad_utf8=True,
)
