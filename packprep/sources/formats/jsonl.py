"""JSON rows, parsing only the columns a build uses.

The JSON builder of `datasets` fixes the type of every column by the first 10 MB of a file: a later
row with one more key stops it, and a number in the text column becomes text. Here other columns may
differ from row to row, a value that is not text is reported, and so is the number of its row.

Each table has the wanted columns and READER_PROBLEM (see problems.py). A column is strings, numbers
of a given type, or JSON text where values are nested; null where a row has no value. A column of
groups is always text.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as paj

from packprep.sources.formats.format import Format, Input, LocalPath, Wanted
from packprep.sources.formats.json_array import JsonArray
from packprep.sources.formats.json_values import (
    DECODER,
    GROUP,
    JSON_TEXT,
    Columns,
    column_value,
    decode_row,
    read_types,
)
from packprep.sources.formats.raw_files import numbered_lines
from packprep.support.errors import InputError
from packprep.support.json_words import json_kind
from packprep.support.problems import (
    READER_PROBLEM,
    BadRow,
    Problem,
    no_problems,
    problem_array,
    too_large,
)

BLOCK_BYTES = 4 << 20
_PIECE = 1 << 18
# Types that the compiled parser tries for columns of groups, in this order.
_GROUP_TYPES: tuple[pa.DataType, ...] = (GROUP, pa.int64(), pa.bool_())


def _read(source: Input, path: LocalPath, wanted: Wanted) -> Iterator[pa.Table]:
    """Rows of JSON lines, of an array of objects, or of a single object."""
    plan = wanted.plan
    types = read_types(plan.types) | dict.fromkeys(plan.nested, JSON_TEXT)
    types = dict.fromkeys(plan.groups, GROUP) | dict.fromkeys(plan.texts, pa.string()) | types
    columns = {name: types.get(name, pa.string()) for name in plan.columns}
    with source.plain() as file:
        if wanted.begin:
            file.seek(wanted.begin)
        yield from _tables(file, columns, plan.max_row_size, source.name)


def _first_types(source: Input, names: Sequence[str]) -> dict[str, pa.DataType]:
    """Arrow types of columns in the first rows.

    Null where none of them has a value, string where their types differ.
    """
    with source.plain() as file:
        rows = [row for row in _first_rows(file, source.name) if isinstance(row, dict)]
    types: dict[str, pa.DataType] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            types[name] = pa.array(values).type
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            types[name] = pa.string()
    return types


def _first_rows(file: Any, source: str) -> Iterator[Any]:
    """Up to 512 rows; what is not JSON is null. InputError for an array that is not JSON."""
    block = file.read(1 << 20).removeprefix(b"\xef\xbb\xbf")
    if block.lstrip()[:1] == b"[":
        array = JsonArray(block, file, DECODER, 1 << 30, source)
        return (row for row, _ in itertools.islice(array, 512))
    # Where a row is whole, the line that the block cuts off may be left out: it may have no end.
    is_whole = b"\n" in block and _has_row_a_line(block)
    block += file.readline(1 << 24 if is_whole else 1 << 28)
    return iter(
        _single_object(block)
        or (decode_row(line)[0] for line in itertools.islice(_lines(block), 512))
    )


def _row_begins(source: Input, every: int) -> tuple[list[tuple[int, int]], int]:
    """Lines that begin an object, at least `every` bytes apart, and the number of all lines.

    Returns number, from 0, and first byte of each such line. Lines are rows if there are as many
    lines as rows. Of a file that is not JSON lines: [], 0.
    """
    begins: list[tuple[int, int]] = []
    lines = offset = 0
    goal, last = every, b"\n"
    with source.plain() as file:
        while block := file.read(BLOCK_BYTES):
            if offset == 0 and block.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] != b"{":
                return [], 0
            end = block.find(b"\n{", max(goal - offset, 0))
            if end >= 0:
                begins.append((lines + block.count(b"\n", 0, end + 1), offset + end + 1))
                goal = begins[-1][1] + every
            lines += block.count(b"\n")
            offset += len(block)
            last = block[-1:]
    return begins, lines + (last != b"\n")


def _tables(
    file: Any, columns: Columns, limit: int = 1 << 30, source: str = ""
) -> Iterator[pa.Table]:
    block = file.read(BLOCK_BYTES).removeprefix(b"\xef\xbb\xbf")
    if block.lstrip()[:1] == b"[":
        yield from _array(JsonArray(block, file, DECODER, limit, source), columns)
        return
    while block:
        rest = b"" if block.endswith(b"\n") else file.readline(limit + 1)
        endless = len(rest) > limit
        block = block.rpartition(b"\n")[0] if endless else block + rest
        fits = len(block) <= limit or max(map(len, block.split(b"\n"))) <= limit
        table = _parse(block, columns) if fits else None
        yield (
            _from_values(_single_object(block) or _lines(block), columns, limit)
            if table is None
            else table
        )
        if endless:
            arrays = [pa.array([None], kind) for kind in columns.values()]
            yield pa.table(
                [*arrays, problem_array([too_large("the line", limit)])],
                names=[*columns, READER_PROBLEM],
            )
            while rest and not rest.endswith(
                b"\n"
            ):  # skip the rest of the line, without keeping it
                rest = file.readline(BLOCK_BYTES)
        block = file.read(BLOCK_BYTES)


def _parse(block: bytes, columns: Columns) -> pa.Table | None:
    """Rows of the block by the compiled parser; None if some row must be parsed one by one."""
    if block.lstrip()[:1] != b"{" or JSON_TEXT in columns.values():
        # The parser crashes on a block of only null. It also mixes up the keys of nested objects.
        return None
    groups = [name for name, kind in columns.items() if kind == GROUP]
    for kinds in itertools.product(_GROUP_TYPES, repeat=len(groups)):
        typed = {**columns, **dict(zip(groups, kinds, strict=True))}
        schema = pa.schema(list(typed.items()))
        try:
            table = paj.read_json(
                pa.BufferReader(block),  # type: ignore[arg-type]  # not in the stubs
                read_options=paj.ReadOptions(use_threads=False, block_size=len(block)),
                parse_options=paj.ParseOptions(
                    explicit_schema=schema, unexpected_field_behavior="ignore"
                ),
            )
            table.validate(full=True)
        except pa.ArrowInvalid:
            continue
        if not _one_a_line(block.lstrip(b"\n"), len(table)):
            return None
        table = table.cast(pa.schema(list(columns.items())))
        return table.append_column(READER_PROBLEM, no_problems(len(table)))
    return None


def _one_a_line(block: bytes, rows: int) -> bool:
    """True if each of these objects has a line of its own.

    The compiled parser also accepts {...} {...} and {...\\n...}. Objects on lines of their own are
    separated by }\\n{, which cannot occur inside an object.
    """
    content = np.frombuffer(block, np.uint8)
    # In pieces that fit the cache: new memory for a whole block costs four times as much.
    pieces = [
        np.flatnonzero(content[first : first + _PIECE] == ord("\n")) + first
        for first in range(0, len(block), _PIECE)
    ]
    ends = np.concatenate(pieces)
    if len(ends) and ends[-1] == len(block) - 1:
        ends = ends[:-1]
    carriage = content[ends - 1] == ord("\r")
    before, after = content[ends - 1 - carriage], content[ends + 1]
    return len(ends) + 1 == rows and bool((before == ord("}")).all() and (after == ord("{")).all())


def _lines(block: bytes) -> Iterator[bytes]:
    return (line for line in block.split(b"\n") if line.strip())


def _array(rows: Iterable[tuple[Any, int]], columns: Columns) -> Iterator[pa.Table]:
    """Tables of the elements of an array, a thousand rows or a block's worth of characters each."""
    taken, size = [], 0
    for row, characters in rows:
        taken.append(row)
        size += characters
        if len(taken) == 1000 or size >= BLOCK_BYTES:
            yield _from_values(taken, columns)
            taken, size = [], 0
    if taken:
        yield _from_values(taken, columns)


def _single_object(block: bytes) -> list[Any] | None:
    """The one row of a file that is a single JSON object on several lines."""
    if b"\n" not in block.strip():
        return None
    try:
        return [DECODER.decode(block.decode())]
    except (ValueError, RecursionError):
        return None


def _from_values(rows: Iterable[Any], columns: Columns, limit: int = 0) -> pa.Table:
    """Table of rows that are JSON lines, of `limit` bytes at most, or parsed values."""
    values: dict[str, list[Any]] = {name: [] for name in columns}
    problems: list[Problem | None] = []
    for row in rows:
        parsed, problem = _loads(row, columns, limit) if isinstance(row, bytes) else (row, None)
        if parsed is None:
            parsed = {}  # null is a row without columns, as for the compiled parser
        if not isinstance(parsed, dict):
            problem = problem or Problem(
                BadRow.BAD_JSON, f"it is {json_kind(parsed)}, expected an object"
            )
            parsed = {}
        for name, kind in columns.items():
            value, problem = column_value(parsed, name, kind, problem)
            values[name].append(value)
        problems.append(problem)
    arrays = [pa.array(values[name], kind) for name, kind in columns.items()]
    return pa.table([*arrays, problem_array(problems)], names=[*columns, READER_PROBLEM])


def _loads(row: bytes, columns: Columns, limit: int) -> tuple[Any, Problem | None]:
    """The value of a line, or its problem.

    A line is good if the compiled parser accepts it alone: that parser ignores deep nesting, and
    bad bytes in columns that are not wanted.
    """
    if len(row) > limit:
        return None, too_large("the line", limit)
    value, problem = decode_row(row)
    if problem is not None and (table := _parse(row, columns)) is not None:
        return table.to_pylist()[0], None
    return value, problem


def _columns(source: Input, path: LocalPath) -> list[str]:
    """Names in the first row that is an object."""
    with source.plain() as file:
        rows = _first_rows(file, source.name)
        names = next((list(row) for row in rows if isinstance(row, dict)), None)
    if names is None:
        raise InputError(
            f"{source.name} has no JSON object in its first rows; expected an object in each row"
        )
    return names


def _line_of_row(source: Input, row: int) -> int | None:
    """Line of a row, from 1; reads the file up to it."""
    if source.path is None:
        return None
    with source.plain() as file:
        array = False
        for place, (number, line) in enumerate(numbered_lines(file)):
            array = array or (place == 0 and line.removeprefix(b"\xef\xbb\xbf")[:1] == b"[")
            if place == row:
                return None if array or (row == 0 and line == b"{") else number
    return None


def _has_row_a_line(block: bytes) -> bool:
    """True for JSON lines; false for an array, or an object on several lines."""
    return block.lstrip()[:1] == b"{" and block.split(b"\n", 1)[0].rstrip().endswith(b"}")


JSON = Format(
    name="json",
    endings=("jsonl", "json"),
    columns=_columns,
    tables=_read,
    is_streamed=True,
    has_own_columns=True,
    first_types=_first_types,
    finds_bad_utf8=True,
    line_of_row=_line_of_row,
    row_begins=_row_begins,
    has_row_a_line=_has_row_a_line,
)
