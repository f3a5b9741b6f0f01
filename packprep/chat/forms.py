"""The form of a conversation: its rendering with a mark in place of each text.

A form is rendered once for all rows that share it. Filled with the texts of a row, it must give
the row's own rendering; otherwise the row is marked by itself.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain
from typing import NamedTuple

from packprep.chat.conversations import Conversation
from packprep.chat.left_out import LeftOut
from packprep.chat.marks import MessageText, Unmarked
from packprep.chat.special_tokens import Span
from packprep.chat.turn_bounds import Turn

_DECODER = json.JSONDecoder()
_KEYS = ["role", "content"]


@dataclass(frozen=True)
class Form:
    """The template's own text, and the order of the texts in it.

    specials: spans of the template's special tokens, each with the number of marks before it.
    others: texts of other keys of messages that the template does not write.
    in_turn: numbers of the texts that it writes only while no later message follows.
    """

    unmarked: Unmarked
    turns: list[Turn]
    specials: list[tuple[int, Span]]
    others: list[LeftOut]
    in_turn: frozenset[int]

    def fill(self, text: str, texts: Sequence[str]) -> list[int] | None:
        """Characters of texts in a row's rendering before each mark, and after the last one.

        texts: of the row. Returns None if `text` is not this form filled with them.
        """
        filled = self._fill(text, [texts[number] for _, number in self.unmarked.marks[1:]])
        if filled is None:
            return None
        return [0, 0, *accumulate(map(len, filled))]

    def trained_spans(self, before: Sequence[int]) -> list[Span]:
        """Trained spans of a row's rendering; before: of `fill`."""
        return [
            (turn.first[1] + before[turn.first[0]], turn.last[1] + before[turn.last[0]])
            for turn in self.turns
        ]

    def special_spans(self, before: Sequence[int]) -> list[Span]:
        """Spans of the template's special tokens in a row's rendering; before: of `fill`."""
        return [
            (first + before[marks], last + before[marks]) for marks, (first, last) in self.specials
        ]

    @cached_property
    def written(self) -> frozenset[int]:
        """Numbers of the texts that the template writes."""
        return frozenset(number for _, number in self.unmarked.marks)

    def _fill(self, text: str, values: Sequence[str]) -> list[str] | None:
        """The values as `text` contains them: whole, or stripped by the template.

        Returns None if `text` is not this form with these values, or white space could be of a
        value or of the template.
        """
        if (
            "".join(
                part for pair in zip(self.literals, [*values, ""], strict=True) for part in pair
            )
            == text
        ):
            return list(values)
        position = len(self.literals[0])
        filled = []
        for value, literal in zip(values, self.literals[1:], strict=True):
            fitting = {
                each for each in _variants(value) if text.startswith(each + literal, position)
            }
            if len(fitting) != 1:
                return None
            variant = fitting.pop()
            filled.append(variant)
            position += len(variant) + len(literal)
        return filled if position == len(text) and text.startswith(self.literals[0]) else None

    @cached_property
    def literals(self) -> list[str]:
        """The template's own text before, between and after the marks."""
        marks = [position for position, _ in self.unmarked.marks]
        return [self.unmarked.text[a:b] for a, b in zip(marks, [*marks[1:], None], strict=True)]


def _variants(value: str) -> set[str]:
    """A text as templates write it: whole or stripped."""
    if value == value.strip():
        return {value}
    return {
        value,
        value.strip(),
        value.lstrip(),
        value.rstrip(),
        value.lstrip("\n"),
        value.strip("\n"),
    }


@dataclass(frozen=True)
class FormKey:
    """Cache key of a form. shape: everything of the conversation but its texts."""

    shape: Hashable
    conversation: Conversation = field(compare=False)
    texts: list[MessageText] = field(compare=False)


def plain_key(conversation: Conversation) -> FormKey | None:
    """Key of a conversation whose messages are texts alone; None for others.

    Equal for conversations that are equal but for texts that are not blank.
    """
    if conversation.tools is not None or conversation.variables:
        return None
    shape: list[Hashable] = []
    texts: list[MessageText] = []
    for number, message in enumerate(conversation.messages):
        content = message.get("content")
        if type(content) is not str:
            return None
        if len(message) == 4 and "thinking" in message:
            reasoning = message.get("reasoning_content")
            if type(reasoning) is not str or message["thinking"] != reasoning:
                return None
            shape.append(reasoning if not reasoning or reasoning.isspace() else True)
            texts.append(MessageText(number, "reasoning", reasoning))
        elif len(message) != 2:
            return None
        shape += message["role"], content if not content or content.isspace() else False
        texts.append(MessageText(number, "content", content))
    beside = conversation.untrained, conversation.is_turn, conversation.prompt
    return FormKey((tuple(shape), *beside), conversation, texts)


class PlainChat(NamedTuple):
    """A conversation of messages that are role and content alone.

    roles: any texts.
    contents: none is blank.
    """

    roles: tuple[str, ...]
    contents: list[str]


def plain_chat(cell: bytes) -> PlainChat | None:
    """The chat of a row's JSON text; None if it is no such chat.

    Lists are read whole, not message by message, which takes a fraction of the time.
    """
    try:
        text = cell.decode()
        messages, end = _DECODER.raw_decode(text)
        if end < len(text) or [*chain.from_iterable(messages)] != _KEYS * len(messages):
            return None
        values = [*chain.from_iterable(map(dict.values, messages))]
        roles, contents = values[::2], values[1::2]
        "".join(roles)  # raises TypeError for other values, as isspace does
        if not contents or "" in contents or True in map(str.isspace, contents):
            return None
        return PlainChat(tuple(roles), contents)
    except (TypeError, ValueError):
        return None  # another value, which `read_chat_rows` reads or refuses
