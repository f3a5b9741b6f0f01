"""JSON lines, an array of objects, or a single object; only wanted columns are parsed.

Arrow's block parser does the work, with an explicit schema, so that other columns may differ from
row to row. Where it refuses a block, the lines are parsed one by one, which finds the bad rows.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as paj

from ...support.errors import InputError, brief
from ..types import Problem, Raw, Source, Wanted
from .format import BLOCK, GROUP, Format, group_text, opened

_BOM = b"\xef\xbb\xbf"
_KINDS = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}


def _read(source: Source, begin: int, end: int, wanted: Wanted) -> Iterator[Raw]:
    with opened(source) as file:
        if begin:
            file.seek(begin - 1)
            file.readline()  # the line that begins before this piece belongs to the one before
        place = file.tell() if begin else 0
        first = True
        while end < 0 or place < end:
            size = BLOCK if end < 0 else min(BLOCK, end - place)
            block = file.read(size)
            if not block:
                return
            place += len(block)
            if first and not begin:
                block, first = block.removeprefix(_BOM), False
                if block.lstrip()[:1] == b"[":
                    yield from _array(source, block + file.read(wanted.limit), wanted)
                    return
            rest = b"" if block.endswith(b"\n") else file.readline(wanted.limit + 1)
            place += len(rest)
            if len(rest) > wanted.limit:
                raise InputError(
                    f"{source.name} has a line of more than {wanted.limit:,} bytes; split it"
                )
            yield _rows(block + rest, wanted)


def _rows(block: bytes, wanted: Wanted) -> Raw:
    """Rows of some whole lines."""
    table = _parsed(block, wanted)
    if table is not None:
        return Raw(table)
    return _from_values(_single_object(block) or _lines(block), wanted)


def _parsed(block: bytes, wanted: Wanted) -> pa.Table | None:
    """Rows by the compiled parser; None if some row must be parsed alone."""
    if block.lstrip()[:1] != b"{" or _JSON_TEXT in [t[0] for t in wanted.columns.values()]:
        return None  # the parser crashes on a block of only null, and mixes up nested keys
    for types in itertools.product(*wanted.columns.values()):
        schema = pa.schema(list(zip(wanted.columns, types, strict=True)))
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
        return table if _one_a_line(block.lstrip(b"\n"), len(table)) else None
    return None


def _one_a_line(block: bytes, rows: int) -> bool:
    """True if each of these objects has a line of its own.

    The parser also accepts {...} {...} and {...\\n...}. Objects on lines of their own are separated
    by }\\n{, which cannot occur inside an object.
    """
    content = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(content == ord("\n"))
    if len(ends) and ends[-1] == len(block) - 1:
        ends = ends[:-1]
    carriage = content[ends - 1] == ord("\r")
    before, after = content[ends - 1 - carriage], content[ends + 1]
    return len(ends) + 1 == rows and bool((before == ord("}")).all() and (after == ord("{")).all())


def _lines(block: bytes) -> Iterator[bytes]:
    return (line for line in block.split(b"\n") if line.strip())


def _single_object(block: bytes) -> list[Any] | None:
    """The one row of a file that is a single object on several lines."""
    if b"\n" not in block.strip():
        return None
    try:
        return [_DECODER.decode(block.decode())]
    except (ValueError, RecursionError):
        return None


def _array(source: Source, block: bytes, wanted: Wanted) -> Iterator[Raw]:
    """Rows of a file that is an array, which is read whole."""
    if len(block) > wanted.limit:
        raise InputError(
            f"{source.name} is a JSON array of more than {wanted.limit:,} bytes, which is read "
            "whole; write one object a line (jq -c '.[]')"
        )
    try:
        rows = _elements(source, block.decode())
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source.name} byte {error.start} is not UTF-8; save it as UTF-8"
        ) from None
    while taken := list(itertools.islice(rows, 1000)):
        yield _from_values(taken, wanted)


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
    if _after_space(text, place + 1) < len(text):
        raise broken("text follows the end of the array")


def _after_space(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return match.end() if match else place


def _fault(error: Exception, begin: int = 0) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.removesuffix(' at')} at character {error.pos - begin}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)[:100]


class _Object(dict[str, Any]):
    """An object that remembers a key that it has twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        counts = Counter(key for key, _ in pairs) if len(self) < len(pairs) else {}
        self.twice = min((key for key, count in counts.items() if count > 1), default=None)


def _int(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:  # of more digits than int() accepts
        return float(text)


_DECODER = json.JSONDecoder(object_pairs_hook=_Object, parse_int=_int)
_JSON_TEXT = pa.large_binary()
_SPACE = re.compile(r"[ \t\r\n]*")


def _from_values(rows: Iterable[Any], wanted: Wanted) -> Raw:
    """Rows that are JSON lines, or parsed values."""
    values: dict[str, list[Any]] = {name: [] for name in wanted.columns}
    problems: dict[int, Problem] = {}
    for number, line in enumerate(rows):
        row, problem = _decoded(line, wanted) if isinstance(line, bytes) else (line, None)
        row = {} if row is None else row  # null is a row without columns, as for the parser
        if not isinstance(row, dict):
            problem = Problem("bad_json", f"it is {_kind(row)}, expected an object")
            row = {}
        for name, types in wanted.columns.items():
            value, fault = _value(row, name, types)
            problem = problem or fault
            values[name].append(value if problem is None else None)
        if problem is not None:
            problems[number] = problem
            for name in wanted.columns:
                values[name][-1] = None
    return Raw(
        pa.table({name: _column(values[name], types) for name, types in wanted.columns.items()}),
        problems,
    )


def _column(values: list[Any], types: tuple[pa.DataType, ...]) -> Any:
    """Array of values that `_value` accepted."""
    for kind in types:
        try:
            return pa.array(values, kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            continue
    return pa.array([None if v is None else json.dumps(v) for v in values], pa.large_string())


def _decoded(line: bytes, wanted: Wanted) -> tuple[Any, Problem | None]:
    """The value of a line, or its problem; good if the compiled parser accepts it alone."""
    if len(line) > wanted.limit:
        return None, Problem("too_large", f"the line has more than {wanted.limit:,} bytes")
    try:
        return _DECODER.decode(line.decode()), None
    except UnicodeDecodeError as error:
        problem = Problem("bad_utf8", f"byte {error.start} of the line is not UTF-8")
    except (ValueError, RecursionError) as error:
        problem = Problem("bad_json", f"invalid JSON: {_fault(error)}")
        if line.startswith(_BOM):
            mark = "it begins with a byte order mark, which only the start of a file may have"
            problem = Problem("bad_json", mark)
    if (table := _parsed(line, wanted)) is not None:
        return table.to_pylist()[0], None
    return None, problem


def _value(
    row: dict[str, Any], name: str, types: tuple[pa.DataType, ...]
) -> tuple[Any, Problem | None]:
    """The value of a row in a column, or the problem that it has."""
    value = row.get(name)
    if getattr(row, "twice", None) == name:
        return None, Problem("bad_json", f"duplicate key {name!r}")
    if value is None:
        return None, None
    if types[0] == _JSON_TEXT:
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"), None
    if types == GROUP and isinstance(value, (str, int, float)):
        value = group_text(value)
    if str(types[0]) in ("int64", "list<item: int64>"):
        value = _whole(value)
    if not any(_fits(value, kind) for kind in types):
        is_text = pa.types.is_string(types[0]) and len(types) == 1
        reason = "bad_group" if types == GROUP else "not_text" if is_text else "not_numbers"
        what = f"{name!r} {_misfit(value, types)}, expected {_expected(types)}"
        return None, Problem(reason, what)
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return None, Problem("bad_utf8", f"{name!r} has a lone surrogate")
    return value, None


def _whole(value: Any) -> Any:
    """6 for 6.0, and for each number of a list; another value unchanged."""
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _misfit(value: Any, types: tuple[pa.DataType, ...]) -> str:
    """What a value is that fits none of the types; of a list, its first such item."""
    if isinstance(value, list) and pa.types.is_list(types[0]):
        items: list[Any] = [getattr(kind, "value_type", kind) for kind in types]
        fitting = (any(item is None or _fits(item, kind) for kind in items) for item in value)
        place = next((place for place, fits in enumerate(fitting) if not fits), 0)
        return f"has {brief(value[place])} at {place}"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"is {brief(value) if is_number else _kind(value)}"


def _fits(value: Any, kind: pa.DataType) -> bool:
    """True if a column of this type takes the value without a change."""
    if pa.types.is_list(kind):
        return isinstance(value, list) and all(
            item is None or _fits(item, kind.value_type) for item in value
        )
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return isinstance(value, str)
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if pa.types.is_integer(kind):
        return isinstance(value, int) and -(2**63) <= value < 2**63
    return True


def _expected(types: tuple[pa.DataType, ...]) -> str:
    kind: Any = types[0]
    if types == GROUP:
        return "text, a number, true or false"
    if pa.types.is_list(kind):
        return (
            f"a list of {'numbers' if pa.types.is_floating(kind.value_type) else 'whole numbers'}"
        )
    if pa.types.is_string(kind):
        return "text"
    return "a number" if pa.types.is_floating(kind) else "a whole number"


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "a number")


def _columns(source: Source) -> list[str]:
    """Names in the first row that is an object. Raises InputError if there is none."""
    return list(next(first_rows(source), {}))


def first_rows(source: Source, most: int = 512) -> Iterator[dict[str, Any]]:
    """Up to `most` rows at the beginning of a file that are objects."""
    with opened(source) as file:
        block = file.read(1 << 20).removeprefix(_BOM)
        if block.lstrip()[:1] == b"[":
            block += file.read(1 << 28)
            try:
                rows = _DECODER.decode(block.decode())
            except (ValueError, RecursionError):
                rows = []
        else:
            block += file.readline(1 << 28)
            rows = _single_object(block) or (_quietly(line) for line in _lines(block))
    return (row for row in itertools.islice(rows, most) if isinstance(row, dict))


def _quietly(line: bytes) -> Any:
    try:
        return _DECODER.decode(line.decode())
    except (ValueError, RecursionError):
        return None


def _cut(source: Source, size: int) -> list[int]:
    """Places of pieces of JSON lines; one piece of an array or a single object."""
    with opened(source) as file:
        head = file.readline(1 << 24).removeprefix(_BOM).strip()
    if not (head.startswith(b"{") and head.endswith(b"}")):
        return [0]
    return list(range(0, max(source.bytes, 1), size))


def _line_of(source: Source, row: int) -> int | None:
    """Line of a row; reads the file up to it."""
    with opened(source) as file:
        rows = -1
        for number, line in enumerate(file, 1):
            if number == 1 and line.removeprefix(_BOM).lstrip()[:1] == b"[":
                return None
            rows += bool(line.removeprefix(_BOM).strip())
            if rows == row:
                return number
    return None


JSON = Format(
    name="json",
    endings=("jsonl", "json", "ndjson"),
    read=_read,
    columns=_columns,
    cut=_cut,
    line_of=_line_of,
)
