"""Dataclasses from the JSON that `dataclasses.asdict` and canonical JSON make of them."""

from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

_Value = TypeVar("_Value")


def from_json(kind: type[_Value], value: Any) -> _Value:
    """The value of a type from its JSON; a field with a default may be missing.

    Raises TypeError, ValueError or KeyError for JSON of another form.
    """
    made: _Value = _made(kind, value)
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
