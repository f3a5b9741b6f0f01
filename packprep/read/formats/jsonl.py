"""JSON lines, or an array of objects; only wanted columns are parsed.

Arrow's parser takes a block of lines, with an explicit schema, so that other columns may differ
from row to row. Where it refuses a block, each line is parsed by `json`, which finds the bad rows.
"""

import itertools
import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as paj

from ...support.errors import InputError
from ..types import LIMIT, Format, Source
from ..values import Columns, Problem, Raw, raw_of, raws, shown

BLOCK, _REST = 4 << 20, 1 << 18  # bytes that are read at once, and of a line that they cut
_BOM = b"\xef\xbb\xbf"


def _read(source: Source, begin: int, end: int, columns: Columns) -> Iterator[Raw]:
    if not begin and _is_array(source):
        yield from raws((_object(value, columns) for value in _elements(source)), columns)
        return
    with source.open() as file:
        if begin:
            file.seek(begin - 1)
            file.readline(LIMIT)  # the line that begins before this piece is of the one before
        place, buffer = file.tell() if begin else 0, np.empty(BLOCK + _REST, np.uint8).data
        end = sys.maxsize if end < 0 else end
        while place < end and (count := file.readinto(buffer[: min(BLOCK, end - place)])):
            rest = b"" if buffer[count - 1] == ord("\n") else file.readline(LIMIT + 1)
            if len(rest) > LIMIT:
                raise InputError(f"{source.name} has a line of more than {LIMIT:,} bytes; split it")
            size = count + len(rest)
            if size > len(buffer):
                buffer = np.resize(buffer, size).data
            buffer[count:size] = rest
            yield from _rows(buffer[:size], columns, first=not place)
            place += size


def _is_array(source: Source) -> bool:
    with source.open() as file:
        return bool(file.read(1 << 16).removeprefix(_BOM).lstrip()[:1] == b"[")


def _rows(block: memoryview, columns: Columns, *, first: bool) -> Iterator[Raw]:
    """Rows of some whole lines. first: they begin the file."""
    block = block[3:] if first and block[:3] == _BOM else block
    if (table := _parsed(block, columns)) is None:
        yield from raws((_object(line, columns) for line in _lines(block)), columns)
        return
    row = _object(next(_lines(block), b""), {}) if first else {}
    names = [*row] if isinstance(row, dict) else []
    yield raw_of({name: table[name] for name in columns}, len(table), columns, names, {})


def _parsed(block: bytes | memoryview, columns: Columns) -> pa.Table | None:
    """Rows by the compiled parser; None if it refuses one, or a row is not one line."""
    head = bytes(block[:64]).lstrip()
    if head[:1] != b"{" or not all(kind.json for kind in columns.values()):
        return None  # the parser crashes on a block of only null, and gives structs all keys
    for types in itertools.product(*(kind.json for kind in columns.values())):
        schema = pa.schema(list(zip(columns, types, strict=True)))
        try:
            table = paj.read_json(
                pa.BufferReader(block),  # type: ignore[arg-type]
                read_options=paj.ReadOptions(use_threads=False, block_size=len(block)),
                parse_options=paj.ParseOptions(
                    explicit_schema=schema, unexpected_field_behavior="ignore"
                ),
            )
            table.validate(full=True)
        except pa.ArrowInvalid:
            continue
        found = np.frombuffer(block, np.uint8) == ord("\n")
        ends = np.count_nonzero(found) + (block[-1:] != b"\n")
        return table if len(table) == ends or len(table) == len([*_lines(block)]) else None
    return None


def _lines(block: bytes | memoryview) -> Iterator[bytes]:
    return (line for line in bytes(block).split(b"\n") if line.strip())


def _elements(source: Source) -> list[Any]:
    """Values of an array, which is read whole. Raises InputError with the line where it breaks."""
    with source.open() as file:
        content = file.read(LIMIT + 1)
    if len(content) > LIMIT:
        raise InputError(
            f"{source.name} is an array of over {LIMIT:,} bytes; split it: jq -c '.[]'"
        )
    text = content.decode("utf-8-sig", "surrogateescape")
    try:
        made: list[Any] = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        line = f" line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        after = "as no row after it can be found in an array"
        raise InputError(f"{source.name}{line}: {_fault(error).detail}; fix it, {after}") from None
    return made


class _Repeated(dict[str, Any]):
    """An object in which a key is there twice. written: its keys."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.written = [key for key, _ in pairs]


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    return made if len(made) == len(pairs) else _Repeated(pairs)


_DECODER = json.JSONDecoder(object_pairs_hook=_object_of)


def _fault(error: Exception) -> Problem:
    if isinstance(error, UnicodeDecodeError):
        return Problem("bad_utf8", f"byte {error.start} of the line is not UTF-8")
    what = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:100]
    if isinstance(error, json.JSONDecodeError):
        what = f"{error.msg.removesuffix(' at')} at character {error.colno - 1}"
    return Problem("bad_json", f"invalid JSON: {what}")


def _object(row: Any, columns: Columns) -> dict[str, Any] | Problem:
    """A row, or its problem: neither `json` nor the compiled parser accepts its line alone."""
    if isinstance(row, bytes):
        try:
            row = _DECODER.decode(row.decode())
        except (ValueError, RecursionError) as error:
            if (table := _parsed(row, columns)) is None:
                return _fault(error)
            row = table.to_pylist()[0]
    if not isinstance(row, dict | None):
        return Problem("bad_json", f"it is {shown(row)}, expected an object")
    for name in columns:
        if isinstance(row, _Repeated) and row.written.count(name) > 1:
            return Problem("bad_json", f"duplicate key {name!r}")
    return row or {}  # null is a row without columns, as for the compiled parser


def _cut(source: Source, size: int) -> list[int]:
    """Places of pieces of JSON lines; one piece of an array."""
    return [0] if _is_array(source) else list(range(0, source.bytes, size))


def _line_of(source: Source, row: int) -> int | None:
    """Line of a row; reads the file up to it. None in an array."""
    if _is_array(source):
        return None
    with source.open() as file:
        lines = enumerate(file, 1)
        rows = (number for number, line in lines if line.removeprefix(_BOM).strip())
        return next(itertools.islice(rows, row, None), None)


FORMATS = {"json": Format(read=_read, cut=_cut, line_of=_line_of)}
