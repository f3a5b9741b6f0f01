"""Expressions over the texts of a conversation, and guards: what a template asked about a text.

Original          the text itself
Applied           a method of str, a part of a split, or a slice, of another expression
Joined            text of the template and expressions, one after the other
TextGuard             a question about expressions, and the answer that a trace depends on
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Texts = Sequence[str]


@dataclass(frozen=True)
class Original:
    """A text of the conversation, as it is."""

    number: int

    def of(self, texts: Texts) -> str:
        """The value for these texts of a conversation."""
        return texts[self.number]


@dataclass(frozen=True)
class Applied:
    """Result of a pure function of an expression and constants. name: for comparison."""

    name: str
    owner: Expression
    arguments: tuple[Any, ...]

    def of(self, texts: Texts) -> str:
        """The value for these texts of a conversation."""
        return PURE[self.name](self.owner.of(texts), *self.arguments)


@dataclass(frozen=True)
class Joined:
    """Constants and expressions, joined."""

    parts: tuple[str | Expression, ...]

    def of(self, texts: Texts) -> str:
        """The value for these texts of a conversation."""
        return "".join(part if isinstance(part, str) else part.of(texts) for part in self.parts)


Expression = Original | Applied | Joined


@dataclass(frozen=True)
class TextGuard:
    """A question and its answer. operands: expressions and constants."""

    name: str
    operands: tuple[Any, ...]
    answer: Any

    def holds(self, texts: Texts) -> bool:
        """True if these texts give the same answer."""
        values = (
            operand.of(texts) if isinstance(operand, Original | Applied | Joined) else operand
            for operand in self.operands
        )
        return bool(ASKED[self.name](*values) == self.answer)


def _split_part(text: str, is_reversed: bool, separator: str, most: int, place: int) -> str:
    """The first or last part of a split; a separator that is not empty always gives one."""
    split = text.rsplit if is_reversed else text.split
    return split(separator, most)[place]


def _slice(text: str, start: int | None, stop: int | None, step: int | None) -> str:
    return text[start:stop:step]


def _length_compared(name: str) -> Callable[[str, int], bool]:
    compare = getattr(int, name)
    return lambda text, size: compare(len(text), size)


COMPARED = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")

PURE: dict[str, Callable[..., str]] = {
    name: getattr(str, name)
    for name in (
        "strip",
        "lstrip",
        "rstrip",
        "lower",
        "upper",
        "capitalize",
        "title",
        "casefold",
        "replace",
        "removeprefix",
        "removesuffix",
    )
} | {"split_part": _split_part, "slice": _slice}
"""Functions whose result is a text and depends on nothing but their arguments."""

ASKED: dict[str, Callable[..., Any]] = {
    name: getattr(str, name)
    for name in (
        "startswith",
        "endswith",
        "isspace",
        "isdigit",
        "isalpha",
        "isalnum",
        "isupper",
        "islower",
        "isnumeric",
        "count",
        "__contains__",
        *COMPARED,
    )
}
ASKED |= {f"length{name}": _length_compared(name) for name in COMPARED} | {"bool": bool}
"""Questions about texts, by name."""


def flattened(expression: str | Expression) -> Iterator[str | Expression]:
    """The constants and expressions that are joined in an expression."""
    if isinstance(expression, Joined):
        yield from expression.parts
    else:
        yield expression
