"""Compares JSON with a JSON Schema of this folder: the form of manifest.json and report.json.

Only the keywords that the two schemas use are known.
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

_KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "object": ("an object", (dict,)),
    "array": ("a list", (list,)),
    "string": ("text", (str,)),
    "integer": ("a whole number", (int,)),
    "number": ("a number", (int, float)),
    "null": ("null", (type(None),)),
}
_LEAST = {"minItems": "items", "minProperties": "keys"}


def form_fault(value: Any, name: str, *, later_keys: bool = False) -> str | None:
    """First value that the schema of that name refuses, and why; None if it is of this form.

    Numbers are below 2**63. later_keys: allow keys that a later version may add.
    Example: form_fault({}, "report") -> "it has no bias"
    """
    return _schema(name).fault(value, "it", later_keys)


@cache
def _schema(name: str) -> "_Kind":
    schema = json.loads(Path(__file__).with_name(f"{name}.schema.json").read_bytes())
    return _Kind(schema, schema["$defs"])


class _Kind:
    """A schema, ready to compare many values with. A manifest has one for each of its shards."""

    def __init__(self, schema: Any, definitions: Any) -> None:
        def kind(part: Any) -> "_Kind | bool":
            return part if isinstance(part, bool) else _Kind(part, definitions)

        if "$ref" in schema:  # next to it are descriptions only
            schema = definitions[schema["$ref"].rpartition("/")[2]]
        self._schema = schema
        self._types = {kind for name in _types(schema) for kind in _KINDS[name][1]}
        self._choices = _choices(schema)
        self._pattern = re.compile(schema.get("pattern", "").replace("$", r"\Z"))  # no line feed
        self._size = max(schema.get(key, 0) for key in _LEAST)
        self._least = schema.get("minimum", -(1 << 63))
        self._most = schema.get("maximum", (1 << 63) - 1)
        self._all_of = [kind(part) for part in schema.get("allOf", ())]
        self._required = sorted(schema.get("required", ()))
        self._keys = kind(schema.get("propertyNames", True))
        self._named = {key: kind(part) for key, part in schema.get("properties", {}).items()}
        self._others = kind(schema.get("additionalProperties", True))
        self._items = kind(schema.get("items", True))
        self._if = kind(schema.get("if", True))
        self._then, self._else = kind(schema.get("then", True)), kind(schema.get("else", True))
        parted = not self._types or dict in self._types or list in self._types
        self._has_parts = parted or bool(self._all_of) or "if" in schema

    def fault(self, value: Any, place: str, later_keys: bool) -> str | None:
        """First fault of a value, in the order in which it is read."""
        for part in self._all_of:
            if fault := _fault(value, part, place, later_keys):
                return fault
        if not self._accepts(value):
            return f"{place} is {value!r:.100}, not {_words(self._schema)}"
        fault = None
        if isinstance(value, dict):
            fault = self._fault_inside(value, place, later_keys)
        elif isinstance(value, list) and self._items is not True:
            faults = (
                _fault(item, self._items, f"{place}[{number}]", later_keys)
                for number, item in enumerate(value)
            )
            fault = next(filter(None, faults), None)
        if fault is None and self._if is not True:
            fits = _fault(value, self._if, place, later_keys) is None
            fault = _fault(value, self._then if fits else self._else, place, later_keys)
        return fault

    def _fault_inside(self, value: dict[str, Any], place: str, later_keys: bool) -> str | None:
        for key in self._required:
            if key not in value:
                return f"{place} has no {key}"
        outer = "" if place == "it" else f"{place}."
        for key in value if self._keys is not True else ():
            if fault := _fault(key, self._keys, f"the key {outer}{key}", later_keys):
                return fault
        for key, item in value.items():
            kind = self._named.get(key, self._others)
            if isinstance(kind, _Kind) and not kind._has_parts and kind._accepts(item):
                continue  # most values of a manifest
            if fault := _fault(item, kind, outer + key, later_keys):
                return fault
        return None

    def _accepts(self, value: Any) -> bool:
        """True for a value of the right type, range and length, without its parts."""
        if self._types and type(value) not in self._types:  # True is no int
            return False
        if self._choices:
            return any(value == each and type(value) is type(each) for each in self._choices)
        if isinstance(value, str):
            return self._pattern.search(value) is not None
        if isinstance(value, list | dict):
            return len(value) >= int(self._size)
        if isinstance(value, int | float):  # NaN is in no range
            return bool(self._least <= value <= self._most)
        return True


def _fault(value: Any, kind: _Kind | bool, place: str, later_keys: bool) -> str | None:
    """First fault of a value; a kind that is False allows none."""
    if isinstance(kind, bool):
        return None if kind or later_keys else f"{place} must not be there"
    return kind.fault(value, place, later_keys)


def _words(kind: Any) -> str:
    """Words for the values that `_Kind` accepts."""
    if choices := _choices(kind):
        return " or ".join(map(str, choices))
    if "pattern" in kind:
        return str(kind.get("description", f"text of the form {kind['pattern']}"))
    words = " or ".join(_KINDS[name][0] for name in _types(kind))
    words += "".join(f" of at least {kind[key]} {of}" for key, of in _LEAST.items() if key in kind)
    least, most = kind.get("minimum"), kind.get("maximum", "2**63 - 1")
    return words if least is None else f"{words} from {least} to {most}"


def _types(kind: Any) -> list[str]:
    types = kind.get("type", [])
    return [types] if isinstance(types, str) else types


def _choices(kind: Any) -> list[Any]:
    return [kind["const"]] if "const" in kind else list(kind.get("enum", ()))
