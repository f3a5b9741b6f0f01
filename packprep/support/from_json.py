"""Values of dataclasses from the JSON that packprep wrote of them with `dataclasses.asdict`."""

from collections import Counter
from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

_Value = TypeVar("_Value")


def from_json(kind: type[_Value], value: object) -> _Value:
    """The value of a type from its JSON.

    A dataclass is an object, a tuple is a list. A field with a default may be missing. Raises
    KeyError, TypeError or ValueError for JSON of another form.
    """
    made: _Value = _made(kind, value)
    return made


@cache
def _hints(kind: type) -> dict[str, object]:
    return get_type_hints(kind)


def _made(kind: Any, value: Any) -> Any:
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin is UnionType:  # a type or None
        return None if value is None else _made(inner[0], value)
    if hasattr(origin, "__dataclass_fields__"):
        hints = _hints(origin)
        fields = _of_type(dict, value).items()
        return kind(**{name: _made(hints[name], item) for name, item in fields})
    if origin in (dict, Mapping, Counter):
        last = int if origin is Counter else inner[1]
        items = {key: _made(last, item) for key, item in _of_type(dict, value).items()}
        return Counter(items) if origin is Counter else items
    if issubclass(origin, tuple | list):
        is_named = hasattr(origin, "_fields")
        kinds = list(_hints(origin).values()) if is_named else inner
        alike = origin is list or inner[1:] == (...,)
        kinds = inner[:1] * len(value) if alike else kinds
        parts = zip(kinds, _of_type(list, value), strict=True)
        made = [_made(each, item) for each, item in parts]
        return origin(*made) if is_named else origin(made)
    return value if origin is object else _of_type(origin, value)


def _of_type(kind: Any, value: Any) -> Any:
    if type(value) is not kind and (kind, type(value)) != (float, int):
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value
