"""Marks in the texts of a conversation, which show where a template writes each text.

A rendering of a marked conversation counts only if it equals the plain rendering once its marks are
removed. Then the positions of the marks say where each message is in the plain text. Marks are the
code points U+FDD0 to U+FDDD, which Unicode reserves for internal use and which are not characters:
text that contains one is refused.

Marks also break strings that spell a special token or could become part of one. Text of a message
must not become a special token. A template can build one from parts: it writes "<" + name + ">", or
removes the middle of a text. Strings that could take part are found here and broken by marks, so
that every special token still intact in a rendering is the template's own.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import accumulate, groupby, pairwise
from os.path import commonprefix
from typing import Any

from .types import THOUGHT_KEYS, Conversation, Message, MessageText, Span

GENERATED = "\ufdd0"  # around the text of {% generation %} blocks
BREAK = "\ufddd"  # inside a special token that a message spells
MARKS = re.compile("[\ufdd0-\ufddd]")

NO_TEXT = -2  # number of a mark that other text than its own follows

_OPEN, _CLOSE, _ZERO = "\ufdd1", "\ufddc", 0xFDD2
NUMBERED = re.compile(f"{_OPEN}[\ufdd2-\ufddb]+{_CLOSE}")
_MARK = re.compile(f"{_OPEN}([\ufdd2-\ufddb]+){_CLOSE}|[{GENERATED}{BREAK}]")
_TO_DIGIT = {_ZERO + digit: str(digit) for digit in range(10)}
_FROM_DIGIT = {ord(digit): chr(mark) for mark, digit in _TO_DIGIT.items()}

# Strings that templates compare or measure get no marks.
UNTOUCHED = ("id", "type", "role", "tool_call_id")
_FIELDS = {"reasoning": "reasoning_content", "content": "content", "tool_calls": "tool_calls"}


@lru_cache(4096)
def numbered(number: int) -> str:
    """Mark of a text. Example: 12 -> U+FDD1 U+FDD3 U+FDD4 U+FDDC."""
    return _OPEN + str(number).translate(_FROM_DIGIT) + _CLOSE


@dataclass(frozen=True)
class Unmarked:
    """A marked rendering without its marks.

    pieces: the text between two neighbouring marks of any kind; joined, they are `text`.
    marks: (position, number of the text it belongs to), in order; the first is (0, -1), the
    beginning.
    generated: (marks before, position) of every GENERATED.
    rests: characters of its text after each mark, None if other text follows; empty where all marks
    are at the ends of their texts.
    """

    text: str
    pieces: list[str]
    marks: list[tuple[int, int]]
    generated: list[tuple[int, int]]
    rests: Sequence[int | None] = ()

    @cached_property
    def at_ends(self) -> "Unmarked":
        """The same with each mark at the end of its text.

        A mark that other text follows stays in its place, as one of no text (NO_TEXT).
        """
        if not self.rests:
            return self
        marks = [
            (position, NO_TEXT) if rest is None else (position + rest, number)
            for (position, number), rest in zip(self.marks, self.rests, strict=True)
        ]
        return replace(self, marks=marks, rests=())

    @property
    def bounds(self) -> list[int]:
        """Places in `text` of the bounds of {% generation %} blocks."""
        return [position for _, position in self.generated]

    def behind(self, number: int) -> list[tuple[int, int, str]]:
        """Marks of a text: (marks up to it, position, text from there to the next mark)."""
        spots = enumerate(zip(self.marks, self.literals, strict=True), 1)
        return [
            (before, position, literal)
            for before, ((position, owner), literal) in spots
            if owner == number
        ]

    @cached_property
    def literals(self) -> list[str]:
        """The text from each mark to the next."""
        bounds = pairwise([*(position for position, _ in self.marks), len(self.text)])
        return [self.text[start:stop] for start, stop in bounds]


def unmark(rendering: str) -> Unmarked:
    """Remove the marks from a rendering."""
    pieces, marks, generated, last, size = [], [(0, -1)], [], 0, 0
    for match in _MARK.finditer(rendering):
        pieces.append(rendering[last : match.start()])
        size += len(pieces[-1])
        last = match.end()
        if match[1] is not None:
            marks.append((size, int(match[1].translate(_TO_DIGIT))))
        elif match[0] == GENERATED:
            generated.append((len(marks), size))
    pieces.append(rendering[last:])
    return Unmarked("".join(pieces), pieces, marks, generated)


@dataclass(frozen=True)
class Marked:
    """A conversation with marks in its texts, and its rendering.

    texts: as they were; empty where marks are in place of them.
    written: the rendering, with its marks.
    rests: of each text, what comes after its mark; empty where marks are at the ends.
    """

    conversation: Conversation
    texts: Sequence[MessageText]
    written: str
    rests: Sequence[str] = ()

    @cached_property
    def rendering(self) -> Unmarked:
        """The rendering without its marks."""
        return self.read(self.written)

    def read(self, written: str) -> Unmarked:
        """A rendering of some of the messages and others, without its marks.

        A template may trim the part of a text that follows its mark.
        """
        unmarked, sizes = unmark(written), list[int | None]()
        for position, number in unmarked.marks:
            rest = self.rests[number] if 0 <= number < len(self.rests) else ""
            forms = (rest, rest.rstrip())
            fitting = [each for each in forms if unmarked.text.startswith(each, position)]
            sizes.append(len(fitting[0]) if fitting else None)
        return replace(unmarked, rests=sizes) if any(size != 0 for size in sizes) else unmarked

    @cached_property
    def owners(self) -> list[int]:
        """For each mark of the rendering, the number of its message; -1 for the beginning."""
        return [self.texts[of].message if of >= 0 else -1 for _, of in self.rendering.marks]


def thought_keys(message: Message) -> list[str]:
    """The keys of a message that hold its thought, which is one text under several names."""
    thought = message.get("reasoning_content")
    return [] if thought is None else [key for key in THOUGHT_KEYS if message.get(key) == thought]


def with_strings(value: Any, change: Callable[[str], object], *, every: bool = False) -> Any:
    """A text, or a value made of lists and objects, with each text replaced by `change(text)`.

    every: strings that get no marks too, and names of keys, but roles, which are known words.
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [with_strings(item, change, every=every) for item in value]
    if isinstance(value, dict):
        kept = ("role",) if every else UNTOUCHED
        return {
            (change(key) if every else key): (
                item if key in kept else with_strings(item, change, every=every)
            )
            for key, item in value.items()
        }
    return value


def with_texts(
    conversation: Conversation,
    change: Callable[[int, str], object],
    roles: frozenset[str] | None = None,
) -> tuple[Conversation, list[MessageText]]:
    """Replace each text by `change(number, text)`.

    Returns the changed conversation and the texts as they were. Texts are text content, the
    text parts of a list of parts, reasoning, names and arguments of calls. One thought under
    several names is one text. roles: only messages of these roles.
    """
    texts: list[MessageText] = []

    def noted(message: int, field: str, text: str) -> object:
        texts.append(MessageText(message, field, text))
        return change(len(texts) - 1, text)

    messages: list[Message] = []
    for number, message in enumerate(conversation.messages):
        copy = message.copy()
        if roles is None or message["role"] in roles:
            for field, key in _FIELDS.items():
                if key in message:
                    copy[key] = with_strings(message[key], partial(noted, number, field))
            for key in thought_keys(message):
                copy[key] = copy["reasoning_content"]
        messages.append(copy)
    return replace(conversation, messages=messages), texts


# Part of a token counts only with such a sign: a template that writes "<|" and "|>" around a word
# does so on purpose.
_SIGN = re.compile(r"[^\w\s]")


class Specials:
    """The special tokens of a tokenizer. closing: one more token that may end a turn."""

    def __init__(self, tokens: Iterable[str], closing: str | None = None) -> None:
        named = set(tokens)
        self._named = any_of(named)
        self._closing = any_of({*named, closing} if closing else named)
        self._openings = any_of({token[:2] for token in named})
        self._at_opening, self._at_named = (
            re.compile(f"(?={pattern.pattern})(.)", re.DOTALL)
            for pattern in (self._openings, self._named)
        )
        cuts = [(token[:cut], token[cut:]) for token in named for cut in range(1, len(token))]
        self._heads = frozenset(head for head, _ in cuts if _SIGN.search(head))
        self._tails = frozenset(tail for _, tail in cuts if _SIGN.search(tail))
        self._all = "\n".join(sorted(named))
        self._longest = max(map(len, named), default=0)
        self.is_risky = lru_cache(1 << 14)(self._is_risky)

    def spans(self, text: str) -> list[Span]:
        """Spans of special tokens in a text."""
        return [match.span() for match in self._named.finditer(text)]

    def closing_spans(self, text: str) -> list[Span]:
        """Spans of special tokens and of the token that may end a turn."""
        return [match.span() for match in self._closing.finditer(text)]

    def spans_within(self, pieces: Sequence[str]) -> list[Span]:
        """Spans of special tokens in a text made of these pieces, each span within one piece."""
        placed = zip(accumulate(map(len, pieces), initial=0), pieces, strict=False)
        return [(start + a, start + b) for start, piece in placed for a, b in self.spans(piece)]

    def _is_risky(self, text: str) -> bool:
        """True if a special token is or begins in the text, or the text could be a part of one."""
        return self._openings.search(text) is not None or any(self._open_ends(text))

    def _open_ends(self, text: str) -> tuple[bool, bool]:
        """Pair of bools: a token could be completed by text before it, and by text after it."""
        if len(text) < self._longest and _SIGN.search(text) and text in self._all:
            return True, True
        sizes = range(1, min(self._longest, len(text) + 1))
        return any(text[:size] in self._tails for size in sizes), any(
            text[-size:] in self._heads for size in sizes
        )

    def broken(self, conversation: Conversation) -> Iterator[Conversation]:
        """The conversation with marks in all risky strings, names of keys included.

        Roles get no marks; they are known words.

        The first version has marks wherever a token could begin. The second, for templates that
        search for a word such as </think>, has them only in whole tokens and at ends of strings. It
        is left out if removing part of a string could join the rest to a token.
        """
        for where in (self._at_opening, self._at_named):
            broken = _with_strings(conversation, partial(self._broken, where))
            if where is self._at_opening or not any(map(self._could_join, strings(broken))):
                yield broken

    def _broken(self, where: re.Pattern[str], text: str) -> str:
        if not self.is_risky(text):
            return text
        before, behind = self._open_ends(text)
        return BREAK * before + where.sub(rf"\1{BREAK}", text) + BREAK * behind

    def _could_join(self, text: str) -> bool:
        """True if two or more characters of a token's beginning come before the rest of it."""
        if not self.is_risky(text):
            return False
        for token in self._all.split("\n"):
            for cut in range(2, len(token)):
                start = text.find(token[:cut])
                if start < 0:
                    break
                if text.find(token[cut:], start + cut) >= 0:
                    return True
        return False


def _with_strings(conversation: Conversation, change: Callable[[str], object]) -> Conversation:
    """The conversation with every string changed, names of keys included, roles excluded."""
    messages, tools, variables = (
        with_strings(value, change, every=True)
        for value in (conversation.messages, conversation.tools, conversation.variables)
    )
    return replace(conversation, messages=messages, tools=tools, variables=variables)


def any_of(tokens: Iterable[str]) -> re.Pattern[str]:
    """Pattern that matches any of the tokens, the longest where several begin at one place.

    Without tokens it matches nothing. Common prefixes are shared: trying a thousand tokens one by
    one would cost a microsecond at every "<".
    """
    named = sorted(set(tokens) - {""})
    return re.compile(f"(?:{_shared(named)})" if named else "(?!)")


def _shared(tokens: list[str]) -> str:
    """A regular expression of sorted tokens.

    Example: ["<a>", "<b>", "<b>c"] -> "<(?:a>|b>(?:c)?)"
    """
    options = []
    for _, group in groupby(tokens, key=lambda token: token[:1]):
        same = list(group)
        head = commonprefix(same)  # noqa: RUF071 of characters, not of paths
        rest = [token[len(head) :] for token in same]
        inner = _shared([token for token in rest if token])
        options.append(re.escape(head) + (f"(?:{inner})" + "?" * ("" in rest) if inner else ""))
    return "|".join(options)


def strings(conversation: Conversation) -> list[str]:
    """Every string of a conversation, names of keys included, roles excluded."""
    found: list[str] = []
    _with_strings(conversation, found.append)
    return found
