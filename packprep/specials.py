"""Special tokens, and strings of a conversation that spell one or a part of one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from packprep.conversations import Conversation
from packprep.marks import BREAK, TEXT_KEYS

Span = tuple[int, int]


class Specials:
    """The special tokens of a tokenizer, and texts that spell them or parts of them."""

    def __init__(self, tokens: Iterable[str], end: str | None) -> None:
        named = sorted(set(tokens), key=lambda token: (-len(token), token))
        self.pattern = _any_of(named)
        self._closing = _any_of([*named, end] if end else named)
        self._beginning = _any_of({token[:2] for token in named})
        marked = re.compile(r"[^\w\s]")
        cuts = [(token[:at], token[at:]) for token in named for at in range(1, len(token))]
        self._heads = {head for head, _ in cuts if marked.search(head)}
        self._tails = {tail for _, tail in cuts if marked.search(tail)}
        self._longest = max(map(len, named), default=0)
        self._named = named
        self._marked = marked
        self.may_take_part = lru_cache(1 << 14)(self._may_take_part)

    def _may_take_part(self, text: str) -> bool:
        """Whether a special token is in the text, or could be made of it and what a template puts around it.

        A part without a sign such as < or | does not count: a template that writes "<|" and "|>" around a word means
        it to be one.
        """
        if self.pattern.search(text):
            return True
        for size in range(1, min(self._longest, len(text) + 1)):
            if text[-size:] in self._heads or text[:size] in self._tails:
                return True
        inside = len(text) < self._longest and self._marked.search(text) is not None
        return inside and any(text in token for token in self._named)

    def spans(self, text: str) -> list[Span]:
        return [found.span() for found in self.pattern.finditer(text)]

    def ends(self, text: str) -> list[Span]:
        return [found.span() for found in self._closing.finditer(text)]

    def spans_of_pieces(self, pieces: Iterable[str]) -> list[Span]:
        """In a text laid out in pieces, those within one piece."""
        spans, start = [], 0
        for piece in pieces:
            spans += [(start + a, start + b) for a, b in self.spans(piece)]
            start += len(piece)
        return spans

    def broken(self, text: str) -> str:
        """The text with a mark inside each special token that it spells."""
        return self.pattern.sub(lambda found: found[0][0] + BREAK + found[0][1:], text)

    def broken_up(self, text: str) -> str:
        """The text with a mark at both ends and wherever two characters could begin a special token."""
        return BREAK + self._beginning.sub(lambda found: found[0][0] + BREAK + found[0][1:], text) + BREAK


def _any_of(tokens: Iterable[str]) -> re.Pattern[str]:
    """Matches any of the tokens, the longest where several begin at one place; nothing where there are none."""
    return re.compile("|".join(map(re.escape, sorted(tokens, key=lambda token: (-len(token), token)))) or "(?!)")


def strings_beside(conversation: Conversation) -> Iterator[str]:
    """Every string of a conversation, names of keys too, but its texts, roles and the keys of messages."""
    for message in conversation.messages:
        for key, value in message.items():
            if key == "role" or (key in TEXT_KEYS and isinstance(value, str)):
                continue
            yield from _strings(value)
    yield from _strings(conversation.tools)
    yield from _strings(dict(conversation.variables))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def everywhere(conversation: Conversation, change: Callable[[str], str], risky: Callable[[str], bool]) -> Conversation:
    """The conversation with every string changed but roles, and of the keys the risky ones."""

    def changed(value: Any) -> Any:
        if isinstance(value, str):
            return change(value) if value else value
        if isinstance(value, Mapping):
            # Templates look for the names they know; a name of its own that spells a token is data.
            return {change(key) if risky(key) else key: changed(item) for key, item in value.items()}
        return [changed(item) for item in value] if isinstance(value, list) else value

    messages = [
        {key: value if key == "role" else changed(value) for key, value in message.items()}
        for message in conversation.messages
    ]
    return replace(conversation, messages=messages, tools=changed(conversation.tools))
