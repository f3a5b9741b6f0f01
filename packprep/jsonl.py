"""JSON rows through `datasets`, parsing only the columns a build uses.

The JSON builder of `datasets` fixes the type of every column by the first 10 MB of a file: a later row with one more
key stops it, and a number in the text column becomes text. Here other columns may differ from row to row, a value
that is not text stays a finding, and the row that is wrong is known.

Each table has the asked columns as strings (null where the row has none) and `problem`, null or "reason: detail".
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.json as paj

from packprep.rowbuilder import RowBuilder

BLOCK_BYTES = 8 << 20
_WORDS = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}


@dataclasses.dataclass
class JsonRowsConfig(datasets.BuilderConfig):  # type: ignore[misc]
    """columns: names of the columns to read."""

    columns: tuple[str, ...] = ("text",)


class JsonRows(RowBuilder):
    """JSON lines, an array of objects, or a single object, plain or compressed."""

    BUILDER_CONFIG_CLASS = JsonRowsConfig

    def tables(self, file: Any) -> Iterator[pa.Table]:
        """See `RowBuilder.tables`."""
        return _tables(file, self.config.columns)


def _tables(file: Any, columns: Sequence[str]) -> Iterator[pa.Table]:
    block = file.read(BLOCK_BYTES).removeprefix(b"\xef\xbb\xbf")
    if block.lstrip()[:1] == b"[":
        yield from _array(block + file.read(), columns)
        return
    while block:
        if not block.endswith(b"\n"):
            block += file.readline()
        table = _parse(block, columns)
        yield _from_values(_single_object(block) or _lines(block), columns) if table is None else table
        block = file.read(BLOCK_BYTES)


def _parse(block: bytes, columns: Sequence[str]) -> pa.Table | None:
    """The block by the compiled parser, or None when some row needs a closer look."""
    if block.lstrip()[:1] != b"{":
        return None  # the parser crashes on a block that is nothing but null
    schema = pa.schema([(name, pa.string()) for name in columns])
    try:
        table = paj.read_json(
            pa.BufferReader(block),
            read_options=paj.ReadOptions(use_threads=False, block_size=len(block)),
            parse_options=paj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
        table.validate(full=True)
    except pa.ArrowInvalid:
        return None
    return table.append_column("problem", pa.nulls(len(table), pa.string()))


def _lines(block: bytes) -> Iterator[bytes]:
    return (line for line in block.split(b"\n") if line.strip())


def _array(data: bytes, columns: Sequence[str]) -> Iterator[pa.Table]:
    values = json.loads(data, object_pairs_hook=_Pairs)
    for start in range(0, len(values), 1000):
        yield _from_values(values[start : start + 1000], columns)


def _single_object(block: bytes) -> list[Any] | None:
    """The one row of a file that is a JSON object written over several lines."""
    try:
        loaded = json.loads(block, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        return None
    return [loaded]


def _from_values(rows: Iterable[Any], columns: Sequence[str]) -> pa.Table:
    """Rows given as JSON bytes or as parsed values."""
    values: dict[str, list[str | None]] = {name: [] for name in columns}
    problems = []
    for row in rows:
        parsed, problem = _loads(row) if isinstance(row, bytes) else (row, None)
        if parsed is None:
            parsed = {}  # null is a row without columns, as the compiled parser has it
        if not isinstance(parsed, dict):
            problem = problem or f"bad_json: it is {_word(parsed)}, expected an object"
            parsed = {}
        for name in columns:
            value, problem = _text(parsed, name, problem)
            values[name].append(value)
        problems.append(problem)
    arrays = [pa.array(values[name], pa.string()) for name in columns]
    return pa.table([*arrays, pa.array(problems, pa.string())], names=[*columns, "problem"])


def _loads(row: bytes) -> tuple[Any, str | None]:
    try:
        return json.loads(row, object_pairs_hook=_Pairs), None
    except UnicodeDecodeError as error:
        return None, f"bad_utf8: byte {error.start} of the line is not UTF-8"
    except json.JSONDecodeError as error:
        return None, f"bad_json: it is not JSON: {error.msg.removesuffix(' at')} at character {error.pos}"
    except (ValueError, RecursionError) as error:
        return None, f"bad_json: it is not JSON: {error}"


class _Pairs(dict[str, Any]):
    """An object that remembers which keys it was given twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        counts = Counter(key for key, _ in pairs) if len(self) < len(pairs) else {}
        self.twice = {key for key, count in counts.items() if count > 1}


def _text(row: dict[str, Any], name: str, problem: str | None) -> tuple[str | None, str | None]:
    value = row.get(name)
    if name in getattr(row, "twice", ()):
        return None, problem or f"bad_json: the key {name!r} stands twice"
    if value is None:
        return None, problem
    if not isinstance(value, str):
        return None, problem or f"not_text: {name!r} is {_word(value)}, expected text"
    try:
        value.encode()
    except UnicodeEncodeError:
        return None, problem or f"bad_utf8: {name!r} has a lone surrogate"
    return value, problem


def _word(value: Any) -> str:
    """What JSON calls the kind of a value."""
    return next(word for kind, word in _WORDS.items() if isinstance(value, kind))
