"""JSON rows, parsing only the columns a build uses.

The JSON builder of `datasets` fixes the type of every column by the first 10 MB of a file: a later
row with one more key stops it, and a number in the text column becomes text. Here other columns may
differ from row to row, a value that is not text stays a finding, and the row that is wrong is
known.

Each table has the asked columns as strings, as numbers of a given type, or as JSON again where they
are nested (null where the row has none), and `problem` (see problems.py). A column of groups is
text whatever its values are.
"""

import io
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as paj

from packprep.sources.formats.arrow_columns import group_text
from packprep.sources.formats.format import Format, Input, LocalPath, Wanted
from packprep.sources.formats.json_array import JsonArray
from packprep.sources.formats.raw_files import escaped_bytes, numbered_lines
from packprep.support.errors import InputError
from packprep.support.problems import BadRow, Problem, no_problems, problem_array, too_large

BLOCK_BYTES = 4 << 20
_PIECE = 1 << 18
# Types of numbers as JSON has them.
_TYPES = {
    kind for single in (pa.bool_(), pa.int64(), pa.float64()) for kind in (single, pa.list_(single))
}
_JSON = pa.large_binary()
_GROUP = pa.large_string()
_GROUP_TYPES = (
    _GROUP,
    pa.int64(),
    pa.bool_(),
)  # that the compiled parser is asked for, one after another
Columns = Mapping[str, pa.DataType]
_WORDS = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}


def _read(file: io.BufferedReader, source: Input, wanted: Wanted) -> Iterator[pa.Table]:
    """Rows of JSON lines, of an array of objects, or of a single object."""
    if wanted.begin:
        file.seek(wanted.begin)
    types = _read_types(wanted.numbers) | dict.fromkeys(wanted.nested, _JSON)
    types = {wanted.group or "": _GROUP} | types
    columns = {name: types.get(name, pa.string()) for name in wanted.columns}
    return _tables(file, columns, wanted.config.max_row_size, source.name)


def _read_types(numbers: Columns) -> dict[str, pa.DataType]:
    """Types to read columns of numbers as.

    A type that is no number's becomes that of whole numbers, so that every row with something else
    is named.
    """
    whole = {
        name: pa.list_(pa.int64()) if pa.types.is_list(kind) else pa.int64()
        for name, kind in numbers.items()
    }
    return {name: kind if kind in _TYPES else whole[name] for name, kind in numbers.items()}


def first_types(file: Any, columns: Sequence[str], source: str = "") -> dict[str, pa.DataType]:
    """Arrow types of columns in the first rows.

    Null where none of them has a value, string where they are at odds.

    source: the file as messages name it.
    """
    rows = [row for row in _first_rows(file, source) if isinstance(row, dict)]
    types = {}
    for name in columns:
        values = [row.get(name) for row in rows]
        try:
            types[name] = pa.array(values).type
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            types[name] = pa.string()
    return types


def first_keys(file: Any, source: str = "") -> list[str] | None:
    """Names in the first row that is an object; None where none of the first rows is one."""
    return next((list(row) for row in _first_rows(file, source) if isinstance(row, dict)), None)


def _first_rows(file: Any, source: str) -> Iterator[Any]:
    """Up to 512 rows; what is not JSON is null. InputError for an array that is not JSON."""
    block = file.read(1 << 20).removeprefix(b"\xef\xbb\xbf")
    if block.lstrip()[:1] == b"[":
        return (row for row, _ in itertools.islice(elements(block, file, 1 << 30, source), 512))
    block += file.readline(1 << 28)
    return iter(
        _single_object(block)
        or (_decoded(line)[0] for line in itertools.islice(_lines(block), 512))
    )


def row_begins(file: Any, every: int) -> tuple[list[tuple[int, int]], int]:
    """Lines that begin an object, number from 0 and byte, at least `every` bytes from each other.

    And how many lines.

    Lines are rows where there are as many of them. No lines of a file that is no JSON lines.
    """
    found: list[tuple[int, int]] = []
    lines = at = 0
    goal, last = every, b"\n"
    while block := file.read(BLOCK_BYTES):
        if at == 0 and block.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] != b"{":
            return [], 0
        end = block.find(b"\n{", max(goal - at, 0))
        if end >= 0:
            found.append((lines + block.count(b"\n", 0, end + 1), at + end + 1))
            goal = found[-1][1] + every
        lines += block.count(b"\n")
        at += len(block)
        last = block[-1:]
    return found, lines + (last != b"\n")


def _tables(
    file: Any, columns: Columns, limit: int = 1 << 30, source: str = ""
) -> Iterator[pa.Table]:
    block = file.read(BLOCK_BYTES).removeprefix(b"\xef\xbb\xbf")
    if block.lstrip()[:1] == b"[":
        yield from _array(elements(block, file, limit, source), columns)
        return
    while block:
        rest = b"" if block.endswith(b"\n") else file.readline(limit + 1)
        endless = len(rest) > limit
        block = block.rpartition(b"\n")[0] if endless else block + rest
        table = _parse(block, columns) if _longest_line(block, limit) <= limit else None
        yield (
            _from_values(_single_object(block) or _lines(block), columns, limit)
            if table is None
            else table
        )
        if endless:
            arrays = [pa.nulls(1, kind) for kind in columns.values()]
            yield pa.table(
                [*arrays, problem_array([too_large("the line", limit)])],
                names=[*columns, "problem"],
            )
            while rest and not rest.endswith(
                b"\n"
            ):  # the rest of the line is passed over, never kept
                rest = file.readline(BLOCK_BYTES)
        block = file.read(BLOCK_BYTES)


def _longest_line(block: bytes, limit: int) -> int:
    """Bytes of the longest line, or of all, which is as good where they are within the limit."""
    return len(block) if len(block) <= limit else max(map(len, block.split(b"\n")))


def _parse(block: bytes, columns: Columns) -> pa.Table | None:
    """The block by the compiled parser, or None when some row needs a closer look."""
    if block.lstrip()[:1] != b"{" or _JSON in columns.values():
        # the parser crashes on a block that is nothing but null, and gives objects each other's
        # keys
        return None
    for group_type in _GROUP_TYPES if _GROUP in columns.values() else (_GROUP,):
        schema = pa.schema(
            [(name, group_type if kind == _GROUP else kind) for name, kind in columns.items()]
        )
        try:
            table = paj.read_json(
                pa.BufferReader(block),
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
        return table.append_column("problem", no_problems(len(table)))
    return None


def _one_a_line(block: bytes, rows: int) -> bool:
    """True if each of these objects has a line of its own.

    The compiled parser takes {...} {...} and {...\\n...} too.

    Objects follow each other as }\\n{ there: }, { and a line feed between can stand in no other
    place of an object.
    """
    content = np.frombuffer(block, np.uint8)
    # In pieces that stay in the cache: fresh memory for a whole block costs four times as much.
    pieces = [
        np.flatnonzero(content[at : at + _PIECE] == ord("\n")) + at
        for at in range(0, len(block), _PIECE)
    ]
    ends = np.concatenate(pieces)
    if len(ends) and ends[-1] == len(block) - 1:
        ends = ends[:-1]
    carriage = content[ends - 1] == ord("\r")
    before, after = content[ends - 1 - carriage], content[ends + 1]
    return len(ends) + 1 == rows and bool((before == ord("}")).all() and (after == ord("{")).all())


def _lines(block: bytes) -> Iterator[bytes]:
    return (line for line in block.split(b"\n") if line.strip())


def _array(rows: Iterator[tuple[Any, int]], columns: Columns) -> Iterator[pa.Table]:
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


def elements(block: bytes, file: Any, limit: int, source: str) -> Iterator[tuple[Any, int]]:
    """The elements of an array and their characters.

    block: its beginning, already read from `file`.
    """
    return iter(JsonArray(block, file, _DECODER, limit, source))


def _single_object(block: bytes) -> list[Any] | None:
    """The one row of a file that is a JSON object written over several lines."""
    if b"\n" not in block.strip():
        return None
    try:
        return [_DECODER.decode(block.decode())]
    except (ValueError, RecursionError):
        return None


def _from_values(rows: Iterable[Any], columns: Columns, limit: int = 0) -> pa.Table:
    """Rows given as JSON bytes, of `limit` at most, or as parsed values."""
    values: dict[str, list[Any]] = {name: [] for name in columns}
    problems: list[Problem | None] = []
    for row in rows:
        parsed, problem = _loads(row, columns, limit) if isinstance(row, bytes) else (row, None)
        if parsed is None:
            parsed = {}  # null is a row without columns, as the compiled parser has it
        if not isinstance(parsed, dict):
            problem = problem or Problem(
                BadRow.BAD_JSON, f"it is {_word(parsed)}, expected an object"
            )
            parsed = {}
        for name, kind in columns.items():
            value, problem = _value(parsed, name, kind, problem)
            values[name].append(value)
        problems.append(problem)
    arrays = [pa.array(values[name], kind) for name, kind in columns.items()]
    return pa.table([*arrays, problem_array(problems)], names=[*columns, "problem"])


def _loads(row: bytes, columns: Columns, limit: int) -> tuple[Any, Problem | None]:
    """The value of a line, or what is wrong with it.

    A line that the compiled parser takes by itself is good, whatever stands beside it: that parser
    minds neither deep nesting nor wrong bytes in columns that are not asked for.
    """
    if len(row) > limit:
        return None, too_large("the line", limit)
    value, problem = _decoded(row)
    if problem is not None and (table := _parse(row, columns)) is not None:
        return table.to_pylist()[0], None
    return value, problem


def _decoded(row: bytes) -> tuple[Any, Problem | None]:
    try:
        return _DECODER.decode(row.decode()), None
    except UnicodeDecodeError as error:
        return None, Problem(BadRow.BAD_UTF8, f"byte {error.start} of the line is not UTF-8")
    except json.JSONDecodeError as error:
        if row.startswith(b"\xef\xbb\xbf"):  # files that were put behind each other
            return None, Problem(
                BadRow.BAD_JSON,
                "it begins with a byte order mark, which has its place at the start of a file",
            )
        return None, Problem(
            BadRow.BAD_JSON,
            f"it is not JSON: {error.msg.removesuffix(' at')} at character {error.pos}",
        )
    except (ValueError, RecursionError) as error:
        return None, Problem(BadRow.BAD_JSON, f"it is not JSON: {error}")


class _Pairs(dict[str, Any]):
    """An object that remembers which keys it was given twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        counts = Counter(key for key, _ in pairs) if len(self) < len(pairs) else {}
        self.twice = {key for key, count in counts.items() if count > 1}


def _whole(text: str) -> int | float:
    """An integer; int() refuses 5,000 digits, which are a number all the same."""
    try:
        return int(text)
    except ValueError:
        return float(text)


_DECODER = json.JSONDecoder(object_pairs_hook=_Pairs, parse_int=_whole)


def _value(
    row: dict[str, Any], name: str, kind: pa.DataType, problem: Problem | None
) -> tuple[Any, Problem | None]:
    value = row.get(name)
    if name in getattr(row, "twice", ()):
        return None, problem or Problem(BadRow.BAD_JSON, f"the key {name!r} stands twice")
    if value is None:
        return None, problem
    if kind == _JSON:
        return _json(value, name, problem)
    if kind == _GROUP and not isinstance(value, str):
        return _group(value, name, problem)
    return _numbers(value, name, kind, problem) if kind in _TYPES else _text(value, name, problem)


def _json(value: Any, name: str, problem: Problem | None) -> tuple[bytes | None, Problem | None]:
    try:
        return json.dumps(value, ensure_ascii=False).encode(), problem
    except UnicodeEncodeError:
        return None, problem or Problem(BadRow.BAD_UTF8, f"{name!r} has a lone surrogate")
    except RecursionError:
        return None, problem or Problem(BadRow.BAD_JSON, f"{name!r} is nested too deeply")


def _group(value: Any, name: str, problem: Problem | None) -> tuple[str | None, Problem | None]:
    """A value that is no text as `arrow_columns.group_text` has it."""
    if isinstance(value, (list, dict)):
        what = f"{name!r} is {_word(value)}, expected text, a number, true or false"
        return None, problem or Problem(BadRow.BAD_GROUP, what)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value), problem  # of any size
    text, _ = group_text(pa.chunked_array([[value]]), name, no_problems(1))
    return text[0].as_py(), problem


def _numbers(
    value: Any, name: str, kind: pa.DataType, problem: Problem | None
) -> tuple[Any, Problem | None]:
    """A number or a list of them as a column of this type takes it."""
    is_list = pa.types.is_list(kind)
    if isinstance(value, list) != is_list:
        expected = "a list of numbers" if is_list else "a number"
        return None, problem or Problem(
            BadRow.NOT_NUMBERS, f"{name!r} is {_word(value)}, expected {expected}"
        )
    single = kind.value_type if is_list else kind
    wanted = {pa.bool_(): (bool,), pa.int64(): (int,), pa.float64(): (int, float)}[single]
    said = {pa.bool_(): "true or false", pa.int64(): "a whole number", pa.float64(): "a number"}[
        single
    ]
    for item in value if is_list else [value]:
        right = isinstance(item, wanted) and isinstance(item, bool) == (single == pa.bool_())
        if item is not None and (
            not right or (isinstance(item, int) and not -(2**63) <= item < 2**63)
        ):
            shown = item if isinstance(item, (int, float)) else _word(item)
            return None, problem or Problem(
                BadRow.NOT_NUMBERS, f"{name!r} has {shown}, expected {said} as in the first rows"
            )
    if single == pa.float64():
        value = (
            [item if item is None else float(item) for item in value] if is_list else float(value)
        )
    return value, problem


def _text(value: Any, name: str, problem: Problem | None) -> tuple[str | None, Problem | None]:
    if not isinstance(value, str):
        return None, problem or Problem(
            BadRow.NOT_TEXT, f"{name!r} is {_word(value)}, expected text"
        )
    if (at := escaped_bytes(value)) >= 0:
        what = "has a lone surrogate" + (
            " or is not UTF-8" if "\udc80" <= value[at] <= "\udcff" else ""
        )
        return None, problem or Problem(BadRow.BAD_UTF8, f"{name!r} {what}")
    return value, problem


def _word(value: Any) -> str:
    """Name that JSON has for the kind of a value."""
    return next(word for kind, word in _WORDS.items() if isinstance(value, kind))


def _columns(source: Input, path: LocalPath) -> list[str]:
    """Names in the first row that is an object."""
    with source.plain() as file:
        names = first_keys(file, source.name)
    if names is None:
        raise InputError(
            f"{source.name} has no JSON object in its first rows; expected an object in each row"
        )
    return names


def _first_types(source: Input, names: Sequence[str]) -> dict[str, pa.DataType]:
    with source.plain() as file:
        return first_types(file, names, source.name)


def _line_of_row(source: Input, row: int) -> int | None:
    """Reads the file up to there."""
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
    """Not so in an array, or an object over many lines."""
    return block.lstrip()[:1] == b"{" and block.split(b"\n", 1)[0].rstrip().endswith(b"}")


JSON = Format(
    name="json",
    endings=("jsonl", "json"),
    columns=_columns,
    tables=_read,
    has_own_columns=True,
    first_types=_first_types,
    finds_bad_utf8=True,
    line_of_row=_line_of_row,
    row_begins=row_begins,
    has_row_a_line=_has_row_a_line,
)
