"""The form of a conversation: its rendering with each text replaced by a mark.

It is rendered once for all rows that share it. Filled with the texts of a row it must give the
plain rendering of the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from packprep.chat.conversations import Conversation
from packprep.chat.marks import Unmarked
from packprep.chat.special_tokens import Span
from packprep.chat.turn_locator import Turn


@dataclass(frozen=True)
class Form:
    """A rendering of a conversation whose texts are marks.

    The template's own text, and the order of the others.

    specials: where the template's special tokens are, with the number of marks before each.
    """

    unmarked: Unmarked
    turns: list[Turn]
    specials: list[tuple[int, Span]]

    def place(self, text: str, texts: Sequence[str]) -> tuple[list[Span], list[Span]] | None:
        """Trained spans and the template's special tokens in a rendering.

        None if it is not this form, filled.
        """
        filled = self._fill(text, [texts[number] for _, number in self.unmarked.marks[1:]])
        if filled is None:
            return None
        before = [0, 0, *accumulate(map(len, filled))]
        turns = [
            (turn.first[1] + before[turn.first[0]], turn.last[1] + before[turn.last[0]])
            for turn in self.turns
        ]
        return turns, [
            (first + before[marks], last + before[marks]) for marks, (first, last) in self.specials
        ]

    def _fill(self, text: str, values: Sequence[str]) -> list[str] | None:
        """End of a turn, behind the token that closes it.

        That is the last special one in it, in the template's own text.
        """
        if (
            "".join(
                part for pair in zip(self._literals, [*values, ""], strict=True) for part in pair
            )
            == text
        ):
            return list(values)
        at = len(self._literals[0])
        filled = []
        for value, literal in zip(values, self._literals[1:], strict=True):
            forms = (
                value,
                value.strip(),
                value.lstrip(),
                value.rstrip(),
                value.lstrip("\n"),
                value.strip("\n"),
            )
            form = next((form for form in forms if text.startswith(form + literal, at)), None)
            if form is None:
                return None
            filled.append(form)
            at += len(form) + len(literal)
        return filled if at == len(text) and text.startswith(self._literals[0]) else None

    @cached_property
    def _literals(self) -> list[str]:
        marks = [position for position, _ in self.unmarked.marks]
        return [self.unmarked.text[a:b] for a, b in zip(marks, [*marks[1:], None], strict=True)]


@dataclass(frozen=True)
class FormKey:
    """A conversation whose texts are marks, equal to all of the same form.

    owners: the message of each text.
    """

    form: str
    conversation: Conversation = field(compare=False)
    owners: list[int] = field(compare=False)
