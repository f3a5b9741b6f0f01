"""JSON lines, an array of objects, or a single object; only wanted columns are parsed.

Arrow's parser takes a block of lines, with an explicit schema, so that other columns may differ
from row to row. Where it refuses a block, each line is parsed by `json`, which finds the bad rows.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.json as paj

from ...support.errors import InputError, brief
from ..types import GROUP, LIMIT, Columns, Format, Kind, Problem, Raw, Source, group_text

BLOCK = 4 << 20  # bytes that are read at once
_BOM = b"\xef\xbb\xbf"
_SPACE = re.compile(r"[ \t\r\n]*")
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
    if block.lstrip()[:1] != b"{":
        return None  # the parser crashes on a block of only null
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
    try:
        rows = _elements(source, block.decode())
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source.name} byte {error.start} is not UTF-8; save it as UTF-8"
        ) from None
    while taken := list(itertools.islice(rows, 1000)):
        yield _from_values(taken, columns)


def _elements(source: Source, text: str) -> Iterator[Any]:
    """Values of an array. Raises InputError with the row where it breaks."""
    row, place = 0, _after_space(text, text.index("[") + 1)

    def broken(what: str) -> InputError:
        return InputError(
            f"{source.name} row {row}: {what}; fix it, as no row after it can be found in an array"
        )

    while row or text[place : place + 1] != "]":
        try:
            value, end = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            raise broken(f"invalid JSON: {_fault(error, place)}") from None
        yield value
        row, place = row + 1, _after_space(text, end)
        if text[place : place + 1] == "]":
            break
        if text[place : place + 1] != ",":
            raise broken("expected a comma or the end of the array before it")
        place = _after_space(text, place + 1)
    if text[place + 1 :].strip():
        raise broken("text follows the end of the array")


def _after_space(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return match.end() if match else place


class _Object(dict[str, Any]):
    """An object that remembers which keys it has twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        counts = Counter(key for key, _ in pairs) if len(self) < len(pairs) else {}
        self.twice = [key for key, count in counts.items() if count > 1]


def _int(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:  # of more digits than int() accepts
        return float(text)


_DECODER = json.JSONDecoder(object_pairs_hook=_Object, parse_int=_int)


def _fault(error: Exception, begin: int = 0) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.removesuffix(' at')} at character {error.pos - begin}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)[:100]


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
    """Array of values; of JSON text if they have no common type."""
    try:
        return pa.array(values, kind.types[0] if kind.types else None)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([json.dumps(value) for value in values], pa.string())


def _object(row: Any, columns: Columns) -> dict[str, Any]:
    """A row, which is sound if `json` or the compiled parser accepts its line alone."""
    if isinstance(row, bytes):
        try:
            row = _DECODER.decode(row.decode())
        except (ValueError, RecursionError) as error:
            if (table := _parsed(row, columns)) is None:
                raise _bad_line(row, error) from None
            row = table.to_pylist()[0]
    if not isinstance(row, dict | None):
        raise _BadRowError("bad_json", f"it is {_shown(row)}, expected an object")
    return row or {}  # null is a row without columns, as for the compiled parser


def _bad_line(line: bytes, error: Exception) -> _BadRowError:
    if isinstance(error, UnicodeDecodeError):
        return _BadRowError("bad_utf8", f"byte {error.start} of the line is not UTF-8")
    if line.startswith(_BOM):
        mark = "it begins with a byte order mark, which only the start of a file may have"
        return _BadRowError("bad_json", mark)
    return _BadRowError("bad_json", f"invalid JSON: {_fault(error)}")


def _value(row: dict[str, Any], name: str, kind: Kind) -> Any:
    """The value of a row in a column, as a type of the column takes it."""
    value = row.get(name)
    if name in getattr(row, "twice", ()):
        raise _BadRowError("bad_json", f"duplicate key {name!r}")
    if value is None or not kind.types:
        return value
    if kind == GROUP and isinstance(value, (str, int, float)):
        value = group_text(value)
    if kind.is_list and not isinstance(value, list):
        what = f"{name!r} is {_shown(value)}, expected {kind.expected}"
        raise _BadRowError(kind.reason, what)
    types = kind.items
    for place, item in enumerate(value if kind.is_list else [value]):
        if item is not None and not any(_fits(item, each) for each in types):
            shown = f"has {brief(item)} at {place}" if kind.is_list else f"is {_shown(item)}"
            raise _BadRowError(kind.reason, f"{name!r} {shown}, expected {kind.value}")
    if isinstance(value, str) and not _is_utf8(value):
        raise _BadRowError("bad_utf8", f"{name!r} has a lone surrogate")
    return _whole(value) if types[0] == pa.int64() else value


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fits(value: Any, kind: pa.DataType) -> bool:
    """True if a column of this type takes the value: 6.0 is a whole number too."""
    if isinstance(value, str) or not pa.types.is_primitive(kind):
        return isinstance(value, str) and not pa.types.is_primitive(kind)
    if isinstance(value, bool) or pa.types.is_boolean(kind):
        return isinstance(value, bool) and pa.types.is_boolean(kind)
    if isinstance(value, float):
        return pa.types.is_floating(kind) or value.is_integer()
    return isinstance(value, int) and -(2**63) <= value < 2**63


def _whole(value: Any) -> Any:
    """1 for 1.0 and true, and for each number of a list."""
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return None if value is None else int(value)


def _shown(value: Any) -> str:
    return _WORDS.get(type(value)) or brief(value)


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
