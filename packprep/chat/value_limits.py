"""Bounds of the values that a chat template makes: too large ones are refused before they exist."""

import re
from typing import Any

from jinja2.exceptions import TemplateError

MAX_SIZE = 1 << 24  # characters of one rendering or of one value inside it
MAX_ITEMS = 1 << 20  # lists, objects and what is in them, of one value

PLAIN = frozenset({str, bool, int, type(None)})
"""Types of values without others in them."""

_TOO_LARGE = f"a value of more than {MAX_SIZE:,} characters or {MAX_ITEMS:,} items"
# Such as %-5s, %(name)s, {0:>5} and the beginning of {0:{1}}.
_FIELD = re.compile(r"%(?:\([^)]*\))?[-+ #0-9.*]*|\{[^{}]*\{?")
_WIDE = re.compile(r"[0-9]{4}|\*|.\{")  # a field of 1,000 characters, or as wide as a value says
_GROWING = ("expandtabs", "indent", "join", "replace", "translate", "wordwrap")
"""Filters and methods whose result can be as large as the product of their arguments."""


class LimitError(TemplateError):
    """A rendering exceeded one of the bounds."""


def steps_of(value: Any) -> int:
    """Steps of a filter or method of a value: 1, and 1 for each 64 items or 1,024 characters."""
    kind = type(value)
    if kind is str:
        return 1 + (len(value) >> 10)
    return 1 + (len(value) >> 6) if kind in (list, tuple, dict, range) else 1


def sized(value: Any) -> Any:
    """Return the value, or raise LimitError if it is too large."""
    if type(value) not in PLAIN or (type(value) is str and len(value) > MAX_SIZE):
        measured(value)
    return value


def measured(value: Any) -> int:
    """Characters of a value as text, about; LimitError if it is too large.

    Nested lists are counted at every level: [x, x] of [x, x] doubles each time.
    """
    pending, size, items = [value], 0, 0
    while pending:
        item = pending.pop()
        items += 1
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, (list, tuple)):
            pending.extend(item)
        if size > MAX_SIZE or items + len(pending) > MAX_ITEMS:
            raise LimitError(f"the template makes {_TOO_LARGE}")
    return size + items


def check_arguments(owner: Any, name: str, arguments: tuple[Any, ...]) -> None:
    """Refuse a call whose result could be larger than MAX_SIZE.

    That is one with a huge number, or a product of two texts.
    """
    for argument in arguments:
        if isinstance(argument, int) and abs(argument) > MAX_SIZE:
            raise LimitError(f"the template calls {name} with {argument:,}")
    if name in ("format", "format_map") and isinstance(owner, str):
        _check_format(owner, arguments)
    elif name in _GROWING and isinstance(owner, (str, list, tuple)):
        is_width = name in ("expandtabs", "indent")
        sizes = [
            each if is_width and isinstance(each, int) else measured(each) for each in arguments
        ]
        _check_product(owner or "-", max(sizes, default=8))


def check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuse an operation of two values whose result could be larger than MAX_SIZE."""
    if operator == "**":
        raise LimitError("the template takes a power")
    if operator == "*":
        _check_product(left, right)
        _check_product(right, left)
    elif operator == "%" and isinstance(left, str):
        _check_format(left, (right,))


def _check_format(text: str, arguments: tuple[Any, ...]) -> None:
    """Refuse a format whose fields could be too wide, alone or together."""
    fields = _FIELD.findall(text.replace("{{", "").replace("%%", ""))
    if any(map(_WIDE.search, fields)) or len(fields) * (1000 + measured(arguments)) > MAX_SIZE:
        raise LimitError(f"the template formats with {text[:30]!r}")


def _check_product(value: Any, times: Any) -> None:
    if isinstance(value, (str, list, tuple)) and isinstance(times, int):
        size = len(value) if isinstance(value, str) else measured(value)
        if size * times > MAX_SIZE:
            raise LimitError(f"the template makes {_TOO_LARGE}")
