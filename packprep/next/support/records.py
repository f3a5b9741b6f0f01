"""Receipts: dataclasses in files of canonical JSON with a digest of itself."""

import json
from dataclasses import asdict
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ..schemas.files import parse_signed, signed_json, write_file

_Value = TypeVar("_Value")


def write_record(path: Path, value: Any) -> None:
    """Write a dataclass whole or not at all."""
    write_file(path, signed_json(json.loads(json.dumps(asdict(value)))))


def read_record(path: Path, kind: type[_Value]) -> _Value | None:
    """What `write_record` wrote; None if that is missing, damaged or of another form."""
    try:
        made: _Value = _made(kind, parse_signed(path.read_bytes(), str(path)))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return made


def _made(kind: Any, value: Any) -> Any:
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if kind in (Any, object):
        return value
    if origin in (UnionType, Union):
        return None if value is None else _made(inner[0], value)
    hints: Any
    if hasattr(origin, "__dataclass_fields__"):
        hints = get_type_hints(origin)
        return origin(**{name: _made(hints[name], item) for name, item in value.items()})
    if issubclass(origin, tuple):
        if hints := getattr(origin, "__annotations__", None):  # a named tuple
            return origin(*(_made(k, v) for k, v in zip(hints.values(), value, strict=True)))
        kinds = inner[:1] * len(value) if inner[-1] is ... else inner
        return tuple(_made(k, v) for k, v in zip(kinds, value, strict=True))
    if inner:  # a mapping
        return {inner[0](key): _made(inner[1], item) for key, item in value.items()}
    if type(value) is not origin and (origin, type(value)) != (float, int):
        raise ValueError(f"{value!r} is not of type {origin.__name__}")
    return value
