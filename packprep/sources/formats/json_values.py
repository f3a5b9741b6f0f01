"""Values of JSON rows, as columns take them.

A value that does not fit its column is a problem of its row: nothing is cast or guessed.
"""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from packprep.sources.formats.arrow_columns import group_text
from packprep.sources.formats.raw_files import escaped_bytes
from packprep.support.errors import brief
from packprep.support.json_words import json_kind
from packprep.support.problems import BadRow, Problem, no_problems

Columns = Mapping[str, pa.DataType]

# Types of columns: numbers of JSON, any value as JSON text, and groups.
_NUMBERS: set[pa.DataType] = {
    kind for single in (pa.bool_(), pa.int64(), pa.float64()) for kind in (single, pa.list_(single))
}
JSON_TEXT = pa.large_binary()
GROUP = pa.large_string()


def read_types(numbers: Columns) -> dict[str, pa.DataType]:
    """Types to read columns of numbers as.

    A column of any other type is read as whole numbers, so that each row with another value is
    reported.
    """
    integers: dict[str, pa.DataType] = {
        name: pa.list_(pa.int64()) if pa.types.is_list(kind) else pa.int64()
        for name, kind in numbers.items()
    }
    return {name: kind if kind in _NUMBERS else integers[name] for name, kind in numbers.items()}


class _Pairs(dict[str, object]):
    """An object that remembers its duplicate keys."""

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        super().__init__(pairs)
        counts = Counter(key for key, _ in pairs) if len(self) < len(pairs) else {}
        self.duplicates = {key for key, count in counts.items() if count > 1}


def _parse_int(text: str) -> int | float:
    """An integer; a float where it has more digits than int() accepts (4,300)."""
    try:
        return int(text)
    except ValueError:
        return float(text)


DECODER = json.JSONDecoder(object_pairs_hook=_Pairs, parse_int=_parse_int)


def decode_row(row: bytes) -> tuple[Any, Problem | None]:
    """The value of a line, or its problem."""
    try:
        return DECODER.decode(row.decode()), None
    except UnicodeDecodeError as error:
        return None, Problem(BadRow.BAD_UTF8, f"byte {error.start} of the line is not UTF-8")
    except json.JSONDecodeError as error:
        if row.startswith(b"\xef\xbb\xbf"):  # concatenated files
            return None, Problem(
                BadRow.BAD_JSON,
                "it begins with a byte order mark, which is allowed only at the start of a file",
            )
        return None, Problem(
            BadRow.BAD_JSON,
            f"invalid JSON: {error.msg.removesuffix(' at')} at character {error.pos}",
        )
    except RecursionError:
        return None, Problem(BadRow.BAD_JSON, "invalid JSON: nested too deeply")
    except ValueError as error:
        return None, Problem(BadRow.BAD_JSON, f"invalid JSON: {error}")


def column_value(
    row: Mapping[str, object], name: str, kind: pa.DataType, problem: Problem | None
) -> tuple[Any, Problem | None]:
    """The value of a row in a column of this type, and the row's first problem.

    problem: the first one so far.
    """
    value = row.get(name)
    if name in getattr(row, "duplicates", ()):
        return None, problem or Problem(BadRow.BAD_JSON, f"duplicate key {name!r}")
    if value is None:
        return None, problem
    if kind == JSON_TEXT:
        return _json(value, name, problem)
    if kind == GROUP and not isinstance(value, str):
        return _group(value, name, problem)
    return _numbers(value, name, kind, problem) if kind in _NUMBERS else _text(value, name, problem)


def _json(value: Any, name: str, problem: Problem | None) -> tuple[bytes | None, Problem | None]:
    if (key := _duplicate_key(value)) is not None:
        return None, problem or Problem(
            BadRow.BAD_JSON, f"{name!r}: an object has the key {brief(key)} twice"
        )
    try:
        return json.dumps(value, ensure_ascii=False).encode(), problem
    except UnicodeEncodeError:
        return None, problem or Problem(BadRow.BAD_UTF8, f"{name!r} has a lone surrogate")
    except RecursionError:
        return None, problem or Problem(BadRow.BAD_JSON, f"{name!r} is nested too deeply")


def _duplicate_key(value: Any) -> str | None:
    """A key that an object in `value` has twice."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, _Pairs):
            if item.duplicates:
                return min(item.duplicates)
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return None


def _group(value: Any, name: str, problem: Problem | None) -> tuple[str | None, Problem | None]:
    """A value other than text, as `arrow_columns.group_text` writes it."""
    if isinstance(value, (list, dict)):
        detail = f"{name!r} is {json_kind(value)}, expected text, a number, true or false"
        return None, problem or Problem(BadRow.BAD_GROUP, detail)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value), problem  # of any size
    text, _ = group_text(pa.chunked_array([[value]]), name, no_problems(1))
    return text[0].as_py(), problem


def _numbers(
    value: Any, name: str, kind: pa.DataType, problem: Problem | None
) -> tuple[Any, Problem | None]:
    """A number, or a list of numbers, as a column of this type takes it."""
    is_list = pa.types.is_list(kind)
    if isinstance(value, list) != is_list:
        expected = "a list of numbers" if is_list else "a number"
        return None, problem or Problem(
            BadRow.NOT_NUMBERS, f"{name!r} is {json_kind(value)}, expected {expected}"
        )
    single = kind.value_type if pa.types.is_list(kind) else kind
    accepted: tuple[type, ...]
    if single == pa.bool_():
        accepted, expected = (bool,), "true or false"
    elif single == pa.int64():
        accepted, expected = (int,), "a whole number"
    else:
        accepted, expected = (int, float), "a number"
    for item in value if is_list else [value]:
        fits = isinstance(item, accepted) and isinstance(item, bool) == (single == pa.bool_())
        if item is not None and (
            not fits or (isinstance(item, int) and not -(2**63) <= item < 2**63)
        ):
            shown = item if isinstance(item, (int, float)) else json_kind(item)
            return None, problem or Problem(
                BadRow.NOT_NUMBERS,
                f"{name!r} has {shown}, expected {expected} as in the first rows",
            )
    if single == pa.float64():
        value = (
            [item if item is None else float(item) for item in value] if is_list else float(value)
        )
    return value, problem


def _text(value: Any, name: str, problem: Problem | None) -> tuple[str | None, Problem | None]:
    if not isinstance(value, str):
        return None, problem or Problem(
            BadRow.NOT_TEXT, f"{name!r} is {json_kind(value)}, expected text"
        )
    if (place := escaped_bytes(value)) >= 0:
        fault = "has a lone surrogate" + (
            " or is not UTF-8" if "\udc80" <= value[place] <= "\udcff" else ""
        )
        return None, problem or Problem(BadRow.BAD_UTF8, f"{name!r} {fault}")
    return value, problem
