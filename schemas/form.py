"""Compares JSON with a JSON Schema of this folder: the form of manifest.json and report.json.

Only the keywords that the two schemas use are known.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
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
    schema = _schema(name)
    return next(_Form(schema["$defs"], later_keys).faults(value, schema, "it"), None)


@cache
def _schema(name: str) -> Any:
    return json.loads(Path(__file__).with_name(f"{name}.schema.json").read_bytes())


@dataclass(frozen=True)
class _Form:
    """A schema to compare with. definitions: its `$defs`. later_keys: see `form_fault`."""

    definitions: Any
    later_keys: bool

    def faults(self, value: Any, kind: Any, place: str) -> Iterator[str]:
        """Faults of a value, in the order in which it is read. kind: the schema of this value."""
        if kind is False and not self.later_keys:
            yield f"{place} must not be there"
        if isinstance(kind, bool):
            return
        if "$ref" in kind:  # next to it are descriptions only
            kind = self.definitions[kind["$ref"].rpartition("/")[2]]
        for part in kind.get("allOf", ()):
            yield from self.faults(value, part, place)
        if not _is_a(value, kind):
            yield f"{place} is {value!r:.100}, not {_words(kind)}"
        elif isinstance(value, dict):
            outer = "" if place == "it" else f"{place}."
            missing = sorted(set(kind.get("required", ())) - value.keys())
            yield from (f"{place} has no {key}" for key in missing)
            named, others = kind.get("properties", {}), kind.get("additionalProperties", True)
            for key in value if "propertyNames" in kind else ():
                yield from self.faults(key, kind["propertyNames"], f"the key {outer}{key}")
            for key, item in value.items():
                yield from self.faults(item, named.get(key, others), outer + key)
        elif isinstance(value, list):
            for number, item in enumerate(value):
                yield from self.faults(item, kind.get("items", True), f"{place}[{number}]")
        if "if" in kind:
            fits = next(self.faults(value, kind["if"], place), None) is None
            yield from self.faults(value, kind["then" if fits else "else"], place)


def _is_a(value: Any, kind: Any) -> bool:
    """True for a value of the type, range and length that the schema says, without its parts."""
    types = _types(kind)
    if types and not any(type(value) in _KINDS[name][1] for name in types):  # True is no int
        return False
    if "enum" in kind or "const" in kind:
        return any(value == each and type(value) is type(each) for each in _choices(kind))
    if isinstance(value, str):
        return _pattern(kind.get("pattern", "")).search(value) is not None
    if isinstance(value, list | dict):
        return all(len(value) >= kind.get(key, 0) for key in _LEAST)
    if isinstance(value, int | float):  # NaN is in no range
        least, most = kind.get("minimum", -(1 << 63)), kind.get("maximum", (1 << 63) - 1)
        return bool(least <= value <= most)
    return True


def _words(kind: Any) -> str:
    """Words for the values that `_is_a` accepts."""
    if "enum" in kind or "const" in kind:
        return " or ".join(map(str, _choices(kind)))
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
    return [kind["const"]] if "const" in kind else list(kind["enum"])


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text.replace("$", r"\Z"))  # $ would match before a line feed at the end
