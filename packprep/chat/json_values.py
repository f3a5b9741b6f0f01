"""Values of JSON text in cells of a row, and words for what is wrong with them."""

import json
from typing import Any

from ..support.errors import brief
from .types import BadRowError

_KINDS: dict[type, str] = {str: "text", list: "a list", dict: "an object", type(None): "null"}
_KINDS |= {bool: "a boolean", int: "a number", float: "a number"}


def json_kind(value: Any) -> str:
    """Name of the kind of a parsed value, or of a value that JSON cannot hold."""
    return _KINDS.get(type(value), f"a value of type {type(value).__name__}")


def expect(kind: type, value: object, reason: str, place: str, expected: str) -> None:
    """Raise BadRowError unless the value is of this kind."""
    if not isinstance(value, kind):
        raise BadRowError(reason, f"{place} is {json_kind(value)}, expected {expected}")


def parsed_json(value: Any, where: str) -> Any:
    """The value of JSON text; any other value unchanged. where: in the row, for errors."""
    if not isinstance(value, str):
        return value
    try:
        parsed = json.loads(value, object_pairs_hook=_unique) if value.strip() else None
        if "\\u" in value:
            json.dumps(parsed, ensure_ascii=False).encode()
        return parsed
    except UnicodeEncodeError:
        raise BadRowError("bad_utf8", f"{where} has a lone surrogate") from None
    except json.JSONDecodeError as error:
        what = f"{error.msg.removesuffix(' at')} in line {error.lineno}, column {error.colno}"
    except RecursionError:
        what = "it is nested too deeply"
    except ValueError as error:  # a duplicate key, or a number of more than 4,300 digits
        what = str(error)
    raise BadRowError("bad_json", f"{where} is text but not JSON: {what}")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object of JSON text. Raises ValueError for a duplicate key."""
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        duplicate = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"an object has the key {brief(duplicate)} twice")
    return value
