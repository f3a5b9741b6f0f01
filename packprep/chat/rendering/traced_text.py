"""Texts that record what a template does with them.

A `TracedText` is no str, so nothing reads its characters unnoticed: every operator and method is
one of those below, and what is neither a pure function nor a question with an answer refuses the
trace. Only `str()` gives real text, a placeholder, because that is how Jinja2 writes a value; the
environment (see `tracing`) turns text with placeholders back before anything can look into it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn

from packprep.chat.rendering.expressions import (
    ASKED,
    COMPARED,
    PURE,
    Applied,
    Expression,
    Joined,
    Original,
    TextGuard,
)

_OPEN, _CLOSE = "\ufdde", "\ufddf"  # not characters, and no marks of `marks` either
_PLACEHOLDER = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_SIGN = re.compile(f"[{_OPEN}{_CLOSE}]")
_DEEPEST = 32  # operations on one text; values are computed by recursion
_GROWTH = {"lower": 3, "upper": 3, "capitalize": 3, "title": 3, "casefold": 3}  # "ΐ".upper()


class UntraceableError(Exception):
    """The template does something with a text that a trace cannot repeat."""


class Size(NamedTuple):
    """Bound of a value: at most `times` the characters of all texts, and `constant` more."""

    times: int
    constant: int


class Recording:
    """Everything that a template did with the texts of one rendering.

    refused: set for good once something cannot be repeated, even where the template or Jinja2
    catches the error. largest: of all values.
    """

    def __init__(self) -> None:
        self.guards: dict[tuple[str, tuple[Any, ...]], TextGuard] = {}
        self.written: list[TracedText] = []
        self.refused: str | None = None
        self.largest = Size(0, 0)

    def text(self, number: int, value: str) -> TracedText:
        """A text of the conversation, traced."""
        return TracedText(self, value, Original(number), Size(1, 0))

    def refuse(self, reason: str) -> NoReturn:
        """Give the trace up."""
        self.refused = self.refused or reason
        raise UntraceableError(reason)

    def ask(self, name: str, *operands: Any) -> Any:
        """The answer to a question about texts, which becomes a guard."""
        expressions = tuple(map(self.operand, operands))
        answer = ASKED[name](*map(_value, operands))
        self.guards[name, expressions] = TextGuard(name, expressions, answer)
        return answer

    def operand(self, value: Any) -> Any:
        """The expression of a traced text, or a constant."""
        if type(value) is TracedText:
            return value.expression
        if not self.is_constant(value):
            self.refuse(f"a text and a {type(value).__name__}")
        return value

    def is_constant(self, value: Any) -> bool:
        """True for a value of plain Python without traced texts or placeholders in it."""
        if type(value) is str:
            return _SIGN.search(value) is None
        if type(value) is tuple:
            return all(map(self.is_constant, value))
        return value is None or type(value) in (bool, int)

    def joined(self, parts: Iterable[Any]) -> TracedText:
        """Texts, one after the other."""
        expressions: list[str | Expression] = []
        values, times, constant, depth = [], 0, 0, 0
        for part in parts:
            values.append(_value(part))
            expression = self.operand(part)
            if type(part) is TracedText:
                times, constant = times + part.size.times, constant + part.size.constant
                depth = max(depth, part.depth)
            else:
                constant += len(part)
            if isinstance(expression, Joined):
                expressions.extend(expression.parts)
            else:
                expressions.append(expression)
        size = Size(times, constant)
        return TracedText(self, "".join(values), Joined(tuple(expressions)), size, depth)

    def lifted(self, value: Any) -> Any:
        """Text with placeholders as a traced text; any other value unchanged."""
        if type(value) is not str or _SIGN.search(value) is None:
            return value
        return self.joined(self._pieces(value))

    def _pieces(self, text: str) -> Iterable[str | TracedText]:
        pieces = _PLACEHOLDER.split(text)
        for place, piece in enumerate(pieces):
            if place % 2:
                if int(piece) >= len(self.written):
                    self.refuse("a placeholder that is none")
                yield self.written[int(piece)]
            elif piece:
                yield piece


def _value(value: Any) -> Any:
    return value.value if type(value) is TracedText else value


class _Refusing:
    """Every operation of Python on it refuses the trace, unless a subclass defines it."""

    __slots__ = ("_recording",)

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def __getattr__(self, name: str) -> NoReturn:
        self._recording.refuse(f"the attribute {name}")


class TracedText(_Refusing):
    """A text of a conversation, or a text made of such, in one rendering."""

    __slots__ = ("depth", "expression", "size", "value")

    def __init__(
        self,
        recording: Recording,
        value: str,
        expression: Expression,
        size: Size,
        depth: int = 0,
    ) -> None:
        super().__init__(recording)
        self.value = value
        self.expression = expression
        self.size = size
        self.depth = depth
        recording.largest = Size(*map(max, recording.largest, size))

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Answer `isinstance`, with which filters and tests ask for text."""
        return str

    def __str__(self) -> str:
        written = self._recording.written
        written.append(self)
        return f"{_OPEN}{len(written) - 1}{_CLOSE}"

    def __bool__(self) -> bool:
        return bool(self._recording.ask("bool", self))

    def __add__(self, other: Any) -> TracedText:
        return self._recording.joined([self, _text(self, other)])

    def __radd__(self, other: Any) -> TracedText:
        return self._recording.joined([_text(self, other), self])

    def __contains__(self, part: Any) -> bool:
        return bool(self._recording.ask("__contains__", self, _text(self, part)))

    def __getitem__(self, place: Any) -> TracedText:
        if type(place) is not slice:
            self._recording.refuse("a character of a text")
        return self._applied("slice", place.start, place.stop, place.step)

    def split(self, separator: Any = None, maxsplit: int = -1) -> TracedParts:
        """Parts, of which the first and the last can be taken."""
        return TracedParts(self._recording, self, False, separator, maxsplit)

    def rsplit(self, separator: Any = None, maxsplit: int = -1) -> TracedParts:
        """Parts, of which the first and the last can be taken."""
        return TracedParts(self._recording, self, True, separator, maxsplit)

    def _applied(self, name: str, *arguments: Any) -> TracedText:
        if not all(map(self._recording.is_constant, arguments)):
            self._recording.refuse(f"{name} with a text")
        if self.depth == _DEEPEST:
            self._recording.refuse("a text that is changed again and again")
        growth = 1 + max((len(each) for each in arguments if type(each) is str), default=0)
        times, constant = (_GROWTH.get(name, 1) * growth * each for each in self.size)
        return TracedText(
            self._recording,
            PURE[name](self.value, *arguments),
            Applied(name, self.expression, arguments),
            Size(times, constant + growth),
            self.depth + 1,
        )


class TracedParts(_Refusing):
    """The parts of a split text."""

    __slots__ = ("_arguments", "_text")

    def __init__(
        self, recording: Recording, text: TracedText, is_reversed: bool, separator: Any, most: int
    ) -> None:
        super().__init__(recording)
        if type(separator) is not str or not separator or not recording.is_constant(separator):
            recording.refuse("a split without a constant separator")
        if type(most) is not int:
            recording.refuse("a split with another number")
        self._text = text
        self._arguments = (is_reversed, separator, most)

    def __getitem__(self, place: Any) -> TracedText:
        if type(place) is not int or place not in (0, -1):
            self._recording.refuse("a part in the middle of a split")
        return self._text._applied("split_part", *self._arguments, place)


class TracedLength(_Refusing):
    """The number of characters of a text, which can be compared with a constant."""

    __slots__ = ("_text",)

    def __init__(self, text: TracedText) -> None:
        super().__init__(text._recording)
        self._text = text

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Answer `isinstance`, with which filters and tests ask for numbers."""
        return int

    def __bool__(self) -> bool:
        return bool(self._text)


TRACED = frozenset({TracedText, TracedParts, TracedLength})


def _text(owner: TracedText, other: Any) -> Any:
    """The other operand where only text is allowed."""
    if type(other) not in (str, TracedText):
        owner._recording.refuse(f"a text and a {type(other).__name__}")
    return other


def _refuses(name: str) -> Callable[..., NoReturn]:
    def refused(self: _Refusing, *_: Any, **__: Any) -> NoReturn:
        self._recording.refuse(name)

    return refused


def _pure(name: str) -> Callable[..., TracedText]:
    def method(self: TracedText, *arguments: Any) -> TracedText:
        return self._applied(name, *arguments)

    return method


def _asked(name: str) -> Callable[..., Any]:
    def method(self: TracedText, *arguments: Any) -> Any:
        return self._recording.ask(name, self, *arguments)

    return method


def _compared(name: str) -> Callable[..., Any]:
    def method(self: TracedText | TracedLength, other: Any) -> Any:
        if type(self) is TracedLength:
            if type(other) is not int:
                self._recording.refuse("a length and something else")
            return self._recording.ask(f"length{name}", self._text, other)
        if type(other) not in (str, TracedText):
            # As str: a value of another type is never equal, and is in no order.
            return {"__eq__": False, "__ne__": True}.get(name, NotImplemented)
        return self._recording.ask(name, self, other)

    return method


METHODS = frozenset({"split", "rsplit", *(name for name in (*PURE, *ASKED) if hasattr(str, name))})
"""Methods of str that a traced text has."""

# All operators of Python: one on a traced text that is not modelled must not fall back to anything.
_OPERATIONS = {
    *(name for kind in (int, complex, list, set, bytes) for name in dir(kind) if name[:2] == "__"),
    *("__matmul__", "__rmatmul__", "__fspath__"),
} - {*dir(object)}
_OPERATIONS |= {"__repr__", "__str__", "__format__", "__hash__", "__reduce_ex__", *COMPARED}

for _name in sorted(_OPERATIONS):
    setattr(_Refusing, _name, _refuses(_name))
for _name in PURE:
    if _name in METHODS:
        setattr(TracedText, _name, _pure(_name))
for _name in ASKED:
    if _name in METHODS and not _name.startswith("__"):
        setattr(TracedText, _name, _asked(_name))
for _name in COMPARED:
    setattr(TracedText, _name, _compared(_name))
    setattr(TracedLength, _name, _compared(_name))
