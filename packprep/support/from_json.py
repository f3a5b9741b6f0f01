"""Values of dataclasses from the JSON that packprep wrote of them with `dataclasses.asdict`."""

from collections import Counter
from functools import cache
from types import UnionType
from typing import (
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

_Value = TypeVar("_Value")
_hints = cache(get_type_hints)


def from_json(kind: type[_Value], value: object) -> _Value:
    """The value of a type from its JSON.

    A dataclass is an object, as a typed dict is; a tuple is a list, bytes are text. A field with a
    default may be missing. Raises TypeError or ValueError for JSON of another form.
    """
    made: _Value = _made(kind, value)
    return made


def _made(kind: Any, value: Any) -> Any:
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin in (UnionType, Union):  # a type or None
        return None if value is None else _made(inner[0], value)
    if origin is Literal:
        return inner[inner.index(value)]
    if hasattr(origin, "__dataclass_fields__") or is_typeddict(origin):
        hints, items = _hints(origin), _checked(dict, value).items()
        return origin(**{name: _made(hints.get(name, object), item) for name, item in items})
    if issubclass(origin, list | tuple):
        items, is_named = _checked(list, value), hasattr(origin, "_fields")
        alike = origin is list or inner[1:] == (...,)
        kinds = _hints(origin).values() if is_named else inner[:1] * len(items) if alike else inner
        parts = [_made(*part) for part in zip(kinds, items, strict=True)]
        return origin(*parts) if is_named else origin(parts)
    if inner:  # values of an object
        last = int if origin is Counter else inner[1]
        table = {key: _made(last, item) for key, item in _checked(dict, value).items()}
        return Counter(table) if origin is Counter else table
    if origin is bytes:
        return _checked(str, value).encode()
    return value if origin is object else _checked(origin, value)


def _checked(kind: type, value: Any) -> Any:
    if type(value) is not kind and (kind, type(value)) != (float, int):
        raise ValueError(f"{value!r} is not of type {kind.__name__}")
    return value
