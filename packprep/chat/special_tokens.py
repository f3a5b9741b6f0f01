"""Special tokens, and strings of a conversation that spell one or could become part of one.

Text of a message may spell any special token and must not become one. A template can also build one
from parts: it writes "<" + name + ">", or removes the middle of a text. Strings that could take
part are found here and broken by marks, so that every special token still intact in a rendering is
the template's own.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import accumulate, groupby
from os.path import commonprefix

from .marks import BREAK, with_strings
from .types import Conversation, Span

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
