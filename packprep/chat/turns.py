"""Trained characters of a rendered conversation, and its special tokens.

Only those special tokens count that the template wrote.

A turn is trained from the end of everything before it rendered with add_generation_prompt=True up
to its end-of-turn token, that token included. Templates with {% generation %} say it themselves.
For the others a second rendering has marks behind the texts of the messages: what follows the last
mark of the conversation up to a turn, generation prompt included, must follow the same mark in the
whole conversation, and there the turn begins. Where a template leaves the end of that prompt, such
as an empty thought, out of earlier turns, the turn begins where the prompt breaks off, if the
message's own text begins there. It is exact or it is refused: a marked rendering counts only if it
is the plain one without its marks. (Growing prefixes as such are not exact: Qwen3's template drops
earlier thinking, Mistral's moves the system message.)

Most rows need one rendering. The conversation with each text replaced by a mark, its form, is
rendered once for all rows that share it; filled with the texts of a row it must give the plain
rendering of the row, or that row is marked.

Message text has no special tokens, whatever it spells: only those in the template's own text count.
Where a row spells one, or tools or calls hold a part of one, a rendering in which it is broken by
marks tells whose each one is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import Protocol

from packprep.chat.conversations import ASSISTANT_ROLES, TOOL_ROLES, Conversation
from packprep.chat.forms import Form, FormKey
from packprep.chat.marks import MARKS, Unmarked, numbered, unmark, with_texts
from packprep.chat.special_tokens import Span, Specials, strings, strings_beside
from packprep.chat.template import ChatTemplate, RenderError
from packprep.chat.turn_locator import ADVICE, TrainOn, TurnLocator

_GONE = -2  # the number of a mark that is nobody's
_FORMS = 1024  # forms remembered; a corpus of plain chats has one for each number of messages


@dataclass(frozen=True)
class Rendered:
    """Text of a conversation. trained: character spans, rising; None when everything is.

    specials: spans of the special tokens that the template wrote, where the text spells others too;
    None where every one that it spells is the template's.
    """

    text: str
    trained: list[Span] | None
    specials: list[Span] | None


class Finder(Protocol):
    """Protocol of a renderer of conversations.

    A `TurnFinder`, or without a template a `prompted.PlainFinder`.
    """

    def render(self, conversation: Conversation) -> Rendered:
        """The text, and what of it is trained. Raises RenderError where there is none."""


class TurnFinder:
    """Renders conversations and finds what is trained in them.

    May be used by several threads at once.

    specials: every special token of the tokenizer.
    """

    def __init__(
        self, template: ChatTemplate, specials: Iterable[str], train_on: TrainOn = "assistant"
    ) -> None:
        self.template = template
        self.train_on = train_on
        self._tokens = Specials(specials, template.variables.get("eos_token"))
        self._locator = TurnLocator(template, self._tokens, train_on)
        self._form = lru_cache(_FORMS)(self._make_form)

    def render(self, conversation: Conversation) -> Rendered:
        """Render a conversation.

        Raises RenderError where the template fails, or what is trained or whose token it is cannot
        be told.
        """
        text = self.template.render(conversation)
        if found := MARKS.search(text):
            raise RenderError(
                f"its text has U+{ord(found[0]):04X}, which is no character; take it out"
            )
        trained, own = self._by_form(conversation, text) or self._by_itself(conversation, text)
        spelled = self._tokens.spans(text)
        return Rendered(
            text, trained if self.train_on != "all" else None, None if spelled == own else own
        )

    def _by_form(
        self, conversation: Conversation, text: str
    ) -> tuple[list[Span], list[Span]] | None:
        """Trained spans and the template's special tokens of a conversation that fills its form.

        None for any other.
        """
        if any("tool_calls" in message for message in conversation.messages):
            return None  # every row has a form of its own
        blank, texts = with_texts(conversation, lambda number, _: numbered(number))
        if any(map(self._tokens.is_risky, strings_beside(blank))):
            return None
        beside = json.dumps(
            [blank.messages, blank.tools, dict(blank.variables)], ensure_ascii=False, default=repr
        )
        form = self._form(FormKey(beside, blank, [message for message, _ in texts]))
        return form.place(text, [value for _, value in texts]) if form is not None else None

    def _by_itself(self, conversation: Conversation, text: str) -> tuple[list[Span], list[Span]]:
        """The same by marking this very conversation."""
        own = self._own_specials(conversation, text)
        return self._spans(conversation, text) if self.train_on != "all" else [], own

    def _make_form(self, key: FormKey) -> Form | None:
        """The form of a conversation.

        None where the template does not take it or its turns cannot be told.
        """
        try:
            whole = unmark(self.template.render(key.conversation, marked=True))
            turns = self._locator.locate(key.conversation, whole, key.owners, lambda part: part)
        except RenderError:
            return None
        specials = []
        for before, ((start, _), (stop, _)) in enumerate(
            zip(whole.marks, whole.ends(), strict=True), 1
        ):
            specials += [
                (before, (start + a, start + b))
                for a, b in self._tokens.spans(whole.text[start:stop])
            ]
        return Form(whole, turns, specials)

    def _spans(self, conversation: Conversation, text: str) -> list[Span]:
        """The trained spans of one conversation, by marks in its own texts.

        Behind each, or else in its middle.

        In the middle because a template may look at how a text begins or ends; or in none of the
        user's texts, because it may compare them.
        """
        for roles, at in product(
            (None, ASSISTANT_ROLES | TOOL_ROLES), (_behind_text, _inside_text)
        ):
            changed, texts = with_texts(conversation, partial(_marked, at), roles)
            moved = partial(_moved, rests=[value[at(value) :] for _, value in texts])
            try:
                whole = unmark(self.template.render(changed, marked=True))
            except RenderError:
                continue
            if whole.text == text:
                turns = self._locator.locate(
                    changed, moved(whole), [message for message, _ in texts], moved
                )
                return [(turn.first[1], turn.last[1]) for turn in turns]
        raise RenderError(
            f"what is trained cannot be told: the template changes what it is given; {ADVICE}"
        )

    def _own_specials(self, conversation: Conversation, text: str) -> list[Span]:
        """Spans of the template's own special tokens where a rendering does not fill its form."""
        everything = [conversation.messages, conversation.tools, conversation.variables]
        if not any(map(self._tokens.is_risky, strings(everything))):
            return self._tokens.spans(text)
        for broken in self._tokens.broken(conversation):
            with suppress(RenderError):
                marked = unmark(self.template.render(broken))
                if marked.text == text:
                    return self._tokens.spans_within(marked.pieces)
        raise RenderError(
            "it spells special tokens that cannot be told from the template's own; take them out "
            "of its text"
        )


def _behind_text(value: str) -> int:
    return len(value.rstrip())


def _inside_text(value: str) -> int:
    return len(value) // 2


def _marked(at: Callable[[str], int], number: int, value: str) -> str:
    return value[: at(value)] + numbered(number) + value[at(value) :] if value.strip() else value


def _moved(unmarked: Unmarked, rests: Sequence[str]) -> Unmarked:
    """Marks moved over the rest of their texts, to the end.

    One whose text goes on otherwise is nobody's.
    """
    marks = []
    for position, number in unmarked.marks:
        rest = rests[number] if number >= 0 else ""
        ending = next(
            (end for end in (rest, rest.rstrip()) if unmarked.text.startswith(end, position)), None
        )
        marks.append((position + len(ending), number) if ending is not None else (position, _GONE))
    return replace(unmarked, marks=marks)
