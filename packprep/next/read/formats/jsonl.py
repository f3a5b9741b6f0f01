"""JSON lines, an array of objects, or a single object; only wanted columns are parsed.

Arrow's parser takes a block of lines, with an explicit schema, so that other columns may differ
from row to row. Where it refuses a block, each line is parsed by `json`, which finds the bad rows.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.json as paj

from ...support.errors import InputError, brief
from ..types import (
    GROUP,
    LIMIT,
    NESTED,
    Columns,
    Format,
    Kind,
    Problem,
    Raw,
    Source,
    group_text,
)

BLOCK = 4 << 20  # bytes that are read at once
_BOM = b"\xef\xbb\xbf"
_COMMA = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")
_WORDS = {dict: "an object", list: "a list", str: "text", bool: "true or false"}


def _read(source: Source, begin: int, end: int, columns: Columns) -> Iterator[Raw]:
    with source.open() as file:
        if begin:
            file.seek(begin - 1)
            file.readline()  # the line that begins before this piece belongs to the one before
        place = file.tell() if begin else 0
        while end < 0 or place < end:
            block = file.read(BLOCK if end < 0 else min(BLOCK, end - place))
            if not block:
                return
            first = not place
            place += len(block)
            if first and (block := block.removeprefix(_BOM)).lstrip()[:1] == b"[":
                yield from _array(source, block + file.read(LIMIT), columns)
                return
            rest = b"" if block.endswith(b"\n") else file.readline(LIMIT + 1)
            if len(rest) > LIMIT:
                raise InputError(f"{source.name} has a line of more than {LIMIT:,} bytes; split it")
            place += len(rest)
            yield _rows(block + rest, columns, first=first)


def _rows(block: bytes, columns: Columns, *, first: bool) -> Raw:
    """Rows of some whole lines. first: they begin the file."""
    if (table := _parsed(block, columns)) is None:
        return _from_values(_objects(block), columns)
    line = block.lstrip().partition(b"\n")[0]
    return Raw(table, names=_from_values([line], {}).names if first else ())


def _parsed(block: bytes, columns: Columns) -> pa.Table | None:
    """Rows by the compiled parser; None if it refuses one, or a row is not one line."""
    if block.lstrip()[:1] != b"{" or NESTED in columns.values():
        return None  # the parser crashes on a block of only null, and gives structs all keys
    for types in itertools.product(*(kind.types for kind in columns.values())):
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
        ends = block.count(b"\n") + (not block.endswith(b"\n"))
        return table if len(table) == ends or len(table) == len([*_lines(block)]) else None
    return None


def _lines(block: bytes) -> Iterator[bytes]:
    return (line for line in block.split(b"\n") if line.strip())


def _objects(block: bytes) -> Iterable[Any]:
    """The lines of a block; its value if that is a single one on several lines."""
    try:
        return [_DECODER.decode(block.decode())] if b"\n" in block.strip() else _lines(block)
    except (ValueError, RecursionError):
        return _lines(block)


def _array(source: Source, block: bytes, columns: Columns) -> Iterator[Raw]:
    """Rows of a file that is an array, which is read whole."""
    if len(block) > LIMIT:
        raise InputError(
            f"{source.name} is a JSON array of more than {LIMIT:,} bytes, which is read whole; "
            "write one object a line (jq -c '.[]')"
        )
    rows = _elements(source, block.decode("utf-8", "surrogateescape").strip())
    while taken := list(itertools.islice(rows, 1000)):
        yield _from_values(taken, columns)


def _elements(source: Source, text: str) -> Iterator[Any]:
    """Values of an array. Raises InputError with the row where it breaks."""
    text, place, row, what = "," + text[1:], 0, 0, ""  # a comma is before each value
    while (comma := _COMMA.match(text, place)) and comma.end() < len(text) - 1:
        try:
            value, place = _DECODER.raw_decode(text, comma.end())
        except (ValueError, RecursionError) as error:
            what = _fault(error, comma.end())
            break
        yield value
        row += 1
    if (rest := text[place:].strip(", \t\r\n")) != "]":
        after = "text follows the end of the array"
        before = "expected a comma or the end of the array before it"
        raise InputError(
            f"{source.name} row {row}: {what or (after if rest[:1] == ']' else before)}; fix it, "
            "as no row after it can be found in an array"
        )


class _Object(dict[str, Any]):
    """An object that remembers its keys: one of them may be there twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.written = [key for key, _ in pairs]


_DECODER = json.JSONDecoder(object_pairs_hook=_Object)


def _fault(error: Exception, begin: int = 0) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"invalid JSON: {error.msg.removesuffix(' at')} at character {error.pos - begin}"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} of the line is not UTF-8"
    deep = isinstance(error, RecursionError)
    return f"invalid JSON: {'nested too deeply' if deep else str(error)[:100]}"


class _BadRowError(Exception):
    """A row that cannot be used. args: those of its `Problem`."""


def _from_values(rows: Iterable[Any], columns: Columns) -> Raw:
    """Rows that are JSON lines, or parsed values."""
    values: dict[str, list[Any]] = {name: [] for name in columns}
    problems: dict[int, Problem] = {}
    names: Sequence[str] | None = None
    for number, each in enumerate(rows):
        row: dict[str, Any] = {}
        try:
            found = _object(each, columns)
            names = [*found] if names is None else names
            row = {name: _value(found, name, kind) for name, kind in columns.items()}
        except _BadRowError as error:
            problems[number] = Problem(*error.args)
        for name in columns:
            values[name].append(row.get(name))
    table = {name: _column(values[name], kind) for name, kind in columns.items()}
    return Raw(pa.table(table), problems, names or ())


def _column(values: list[Any], kind: Kind) -> Any:
    """Array of values that `_value` accepted; of text if they have no common type."""
    if kind.types == NESTED.types:
        return pa.array(values, pa.large_binary())
    if kind.dtype:
        return pa.array(values, kind.types[0])
    if kind.types:
        return pa.array(values, pa.binary()).view(pa.string())
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([json.dumps(value) for value in values])


def _object(row: Any, columns: Columns) -> dict[str, Any]:
    """A row, which is sound if `json` or the compiled parser accepts its line alone."""
    if isinstance(row, bytes):
        try:
            row = _DECODER.decode(row.decode())
        except (ValueError, RecursionError) as error:
            if (table := _parsed(row, columns)) is None:
                is_utf8 = not isinstance(error, UnicodeDecodeError)
                raise _BadRowError("bad_json" if is_utf8 else "bad_utf8", _fault(error)) from None
            row = table.to_pylist()[0]
    if not isinstance(row, dict | None):
        raise _BadRowError("bad_json", f"it is {_shown(row)}, expected an object")
    return row or {}  # null is a row without columns, as for the compiled parser


def _value(row: dict[str, Any], name: str, kind: Kind) -> Any:
    """The value of a row in a column; bytes for text, which may have lone surrogates."""
    value = row.get(name)
    if isinstance(row, _Object) and row.written.count(name) > 1:
        raise _BadRowError("bad_json", f"duplicate key {name!r}")
    if value is None or not kind.types:
        return value
    if kind.types == NESTED.types:
        try:
            return json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise _BadRowError("bad_utf8", f"{name!r} has a lone surrogate") from None
    if kind == GROUP and isinstance(value, (str, int, float)):
        value = group_text(value)
    if isinstance(value, str) and not kind.dtype:
        return value.encode("utf-8", "surrogatepass")
    reason = "not_numbers" if kind.dtype else kind.reason
    if not kind.dtype or (kind.is_list and not isinstance(value, list)):
        what = f"{name!r} is {_shown(value)}, expected {kind.expected}"
        raise _BadRowError(reason, what)
    items = [_number(item, kind) for item in (value if kind.is_list else [value])]
    for place, item in enumerate(value if kind.is_list else [value]):
        if items[place] is None and item is not None:
            shown = f"has {brief(item)} at {place}" if kind.is_list else f"is {_shown(item)}"
            raise _BadRowError(reason, f"{name!r} {shown}, expected {kind.value}")
    return items if kind.is_list else items[0]


def _number(item: Any, kind: Kind) -> int | float | None:
    """A number as its column has it, 1 for 1.0 and true; None for another value."""
    is_float = kind.dtype.startswith("float")
    if is_float and isinstance(item, float):
        return item
    if isinstance(item, (int, float)) and item % 1 == 0 and abs(item) < 2**63:
        return float(item) if is_float else int(item)
    return None


def _shown(value: Any) -> str:
    words = (words for kind, words in _WORDS.items() if isinstance(value, kind))
    return next(words, None) or brief(value)


def _cut(source: Source, size: int) -> list[int]:
    """Places of pieces of JSON lines; one piece of an array or a single object."""
    with source.open() as file:
        head = file.readline(1 << 24).removeprefix(_BOM).strip()
    is_line = head.startswith(b"{") and head.endswith(b"}")
    return list(range(0, max(source.bytes, 1), size)) if is_line else [0]


def _line_of(source: Source, row: int) -> int | None:
    """Line of a row; reads the file up to it. None in an array."""
    with source.open() as file:
        for number, line in enumerate(file, 1):
            text = line.removeprefix(_BOM).strip()
            if number == 1 and text.startswith(b"["):
                return None
            row -= bool(text)
            if row < 0:
                return number
    return None


FORMATS = {"json": Format(read=_read, cut=_cut, line_of=_line_of)}
