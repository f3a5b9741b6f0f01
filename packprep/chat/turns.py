"""Renders conversations, and finds what is trained and which special tokens the template wrote.

`turn_locator` says where a turn begins and ends. Its result is exact, or the row is refused: a
marked rendering counts only if it equals the plain rendering once its marks are removed.

Most rows need one rendering. Their form (see `forms`) is rendered once for all rows that share it;
a row that does not fit its form is marked by itself.

Text of a message has no special tokens, whatever it spells: only those in the template's own text
count. Where a row spells one, or tools or calls contain part of one, a rendering with marks inside
these strings shows which tokens are the template's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import product
from typing import Protocol, TypedDict

from packprep.chat.composer import Composed, Composer, compose_key
from packprep.chat.conversations import ASSISTANT_ROLES, TOOL_ROLES, Conversation
from packprep.chat.forms import Form, FormKey, plain_key
from packprep.chat.left_out import (
    LeftOut,
    not_contained,
    unwritten_keys,
    unwritten_parts,
    with_own_turns,
    without_repeated,
    without_written,
)
from packprep.chat.marks import MARKS, Marked, numbered, unmark, with_texts
from packprep.chat.special_tokens import Span, Specials, strings, strings_beside
from packprep.chat.template import ChatTemplate, RenderError
from packprep.chat.turn_bounds import ADVICE, Turn
from packprep.chat.turn_counts import RowTurns
from packprep.chat.turn_fields import FieldSelector, with_thoughts_apart
from packprep.chat.turn_locator import TrainOn, TurnLocator, unknown_block
from packprep.config.grammar.option import TRAIN_FIELDS

_FORMS = 1024  # cached forms; a corpus of plain chats has one for each number of messages


class RowPart(TypedDict):
    """A part of a row that is encoded by itself: text, or token ids.

    size: in characters. ids: None for text. trained, specials: positions in it, see
    `masks.RENDERED`; those of ids count ids.
    """

    size: int
    trained: list[int] | None
    specials: list[int] | None
    ids: list[int] | None


@dataclass(frozen=True)
class Rendered:
    """Text of a conversation.

    trained: character spans, rising; None when everything is trained.
    specials: spans of the special tokens that the template wrote, where messages spell others; None
    if all special tokens of the text are the template's.
    left_out: text of messages that is not in `text`.
    form: the form that `text` fills, if there is one.
    at_text: see `Turn`.
    turns: the documents in `text`, see turn_documents.py.
    parts: the parts of the row, which say what is trained in each; None if `text` is one.
    """

    text: str
    trained: list[Span] | None
    specials: list[Span] | None
    left_out: list[LeftOut] = field(default_factory=list)
    form: FormKey | None = None
    at_text: bool = False
    turns: RowTurns | None = None
    parts: list[RowPart] | None = None


class Finder(Protocol):
    """Protocol of a renderer of conversations.

    A `TurnFinder`, a `turn_documents.TurnSplitter` or, without a template, a
    `prompt_response.PlainFinder`.
    """

    def render(self, conversation: Conversation) -> Rendered:
        """The text and its trained spans. Raises RenderError where there is no text."""

    def unread(self, conversation: Conversation, keys: Collection[str]) -> Collection[str]:
        """Those of these keys of the messages that nothing reads."""


class TurnFinder:
    """Renders conversations and finds what is trained in them.

    Several threads may use it at once.
    specials: every special token of the tokenizer.
    fields: of the assistant's messages, see `turn_fields`.
    """

    def __init__(
        self,
        template: ChatTemplate,
        specials: Iterable[str],
        train_on: TrainOn = "assistant",
        fields: Collection[str] = TRAIN_FIELDS,
    ) -> None:
        self.template = template
        self.train_on = train_on
        self._specials = tuple(specials)
        self._tokens = Specials(self._specials, template.eos)
        self._locator = TurnLocator(template, self._tokens, train_on)
        self._fields = FieldSelector(template, self._tokens, fields)
        self._form = lru_cache(_FORMS)(self._make_form)
        self._composer = Composer(template, self._tokens)

    def render(self, conversation: Conversation) -> Rendered:
        """Render a conversation.

        Raises RenderError where the template fails, or where trained text or the template's own
        special tokens cannot be found.
        """
        off = [number for number in conversation.untrained if number >= conversation.prompt]
        if self.train_on == "all" and off:
            raise RenderError(
                f"the row takes message {off[0]} out of what is trained, but "
                "--train-on all trains everything; choose --train-on assistant"
            )
        conversation = self.template.with_call_arguments(conversation)
        shaped = self._shaped(conversation)
        key = compose_key(shaped) if shaped is not None else None
        composed = None
        if shaped is not None and key is not None:
            composed = self._composer.text(key, shaped)
        text = self.template.render(conversation) if composed is None else composed
        if not text.isascii() and (mark := MARKS.search(text)):
            raise RenderError(
                f"its text has U+{ord(mark[0]):04X}, which is not a character; remove it"
            )
        apart = conversation
        if not self._fields.takes_all:
            apart = with_thoughts_apart(conversation, partial(self._renders_as, text))
            shaped = self._shaped(apart)
        found = self._by_form(shaped, text) if shaped is not None else None
        if found is not None and composed is None and key is not None:
            form = self._form(found.form) if self._fields.takes_all else None
            self._composer.learn(key, conversation, text, form)
        return found or self._by_itself(apart, text)

    def unread(self, conversation: Conversation, keys: Collection[str]) -> Collection[str]:
        """See `ChatTemplate.unread`."""
        return self.template.unread(conversation, keys)

    def compose(self, roles: tuple[str, ...], texts: list[str]) -> Composed | None:
        """A row of messages that are role and content alone, without its template.

        texts: the contents, none of them blank. Returns None if `render` must render the row.
        """
        composed = self._composer.plain(roles, texts) if self._fields.takes_all else None
        if composed is None or (not composed.text.isascii() and MARKS.search(composed.text)):
            return None
        return composed if self.train_on != "all" else composed._replace(trained=None)

    def of_text(self) -> TurnFinder:
        """A finder of texts and what they leave out, which looks for no turns."""
        return TurnFinder(self.template, self._specials, "all")

    def ends_turns(self) -> bool:
        """True unless the template ends the assistant's turns without a special token."""
        probe = Conversation(
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        )
        try:
            rendered = self.render(probe)
        except RenderError:
            return True  # told with the row that it concerns
        return not rendered.trained or any(
            self._tokens.closing_spans(rendered.text[first:last])
            for first, last in rendered.trained[-1:]
        )

    def _by_form(self, key: FormKey, text: str) -> Rendered | None:
        """Parts by the conversation's form; None if the conversation does not fit its form."""
        form, texts = self._form(key), key.texts
        before = form.fill(text, [each.text for each in texts]) if form is not None else None
        if form is None or before is None:
            return None
        has_others = not self._tokens.has_only(len(form.specials), text)
        specials = self._if_others(form.special_spans(before), text) if has_others else None
        trained = form.trained_spans(before) if self.train_on != "all" else None
        gone = [
            LeftOut(*each, in_turn=number in form.in_turn)
            for number, each in enumerate(texts)
            if number not in form.written and each.text.strip()
        ]
        left_out = sorted([*gone, *without_repeated(form.others, texts)])
        at_text = any(turn.at_text for turn in form.turns)
        return Rendered(text, trained, specials, left_out, key, at_text)

    def _if_others(self, specials: list[Span], text: str) -> list[Span] | None:
        """The template's own special tokens; None if the text has no others."""
        return None if specials == self._tokens.spans(text) else specials

    def _shaped(self, conversation: Conversation) -> FormKey | None:
        """Form key of a conversation.

        None if every such row has its own form, or where something beside the texts could take
        part in a special token.
        """
        if any("tool_calls" in message for message in conversation.messages):
            return None
        plain = plain_key(conversation)
        if plain is not None:
            return plain
        blank, texts = with_texts(conversation, as_mark)
        if any(map(self._tokens.is_risky, strings_beside(blank))):
            return None
        beside = [blank.messages, blank.tools, dict(blank.variables)]
        shape = json.dumps(beside, ensure_ascii=False, default=repr)
        return FormKey((shape, blank.untrained, blank.is_turn, blank.prompt), conversation, texts)

    def _by_itself(self, conversation: Conversation, text: str) -> Rendered:
        """Parts by marks in the texts of this conversation."""
        specials = self._own_specials(conversation, text)
        marked = self._marked(conversation, text)
        turns = self._turns(conversation, text, marked) if self.train_on != "all" else []
        trained = [(turn.first[1], turn.last[1]) for turn in turns]
        return Rendered(
            text,
            trained if self.train_on != "all" else None,
            self._if_others(specials, text),
            self._left_out(conversation, text, marked),
            at_text=any(turn.at_text for turn in turns),
        )

    def _make_form(self, key: FormKey) -> Form | None:
        """The form of a conversation.

        None if the template cannot render it or its turns cannot be found.
        """
        blank, texts = with_texts(key.conversation, as_mark)
        try:
            empty = [text._replace(text="") for text in texts]
            marked = Marked(blank, empty, self.template.render(blank, marked=True))
            turns = self._fields.select(self._locator.locate(marked), marked)
        except RenderError:
            return None
        specials, rendering = [], marked.rendering
        for before, ((start, _), (stop, _)) in enumerate(
            zip(rendering.marks, rendering.ends(), strict=True), 1
        ):
            specials += [
                (before, (start + a, start + b))
                for a, b in self._tokens.spans(rendering.text[start:stop])
            ]
        render = self.template.render
        others = unwritten_keys(blank, rendering.text, render, first=len(texts))
        written = {number for _, number in rendering.marks}
        gone = [] if blank.is_turn else [n for n in range(len(texts)) if n not in written]
        parts = [LeftOut(*texts[number][:2], numbered(number)) for number in gone]
        parts = with_own_turns(blank, rendering.text, parts, render)
        in_turn = frozenset(n for n, part in zip(gone, parts, strict=True) if part.in_turn)
        return Form(rendering, turns, specials, others, in_turn)

    def _marked(self, conversation: Conversation, text: str) -> Marked | None:
        """The conversation with marks in its texts; None if marks change its rendering.

        Marks go after each text; then into its middle, because a template may inspect how a text
        begins or ends; then into no text of the user, because a template may compare those.
        """
        for roles, place in product(
            (None, ASSISTANT_ROLES | TOOL_ROLES), (_behind_text, _inside_text)
        ):
            changed, texts = with_texts(conversation, partial(_with_mark, place), roles)
            try:
                written = self.template.render(changed, marked=True)
            except RenderError:
                continue
            marked = Marked(changed, texts, written, place, roles)
            if marked.rendering.text == text:
                return marked
        return None

    def _turns(self, conversation: Conversation, text: str, marked: Marked | None) -> list[Turn]:
        """Trained turns of a conversation. marked: the conversation with marks."""
        if marked is None:
            return self._blocks_alone(conversation, text)
        turns = self._locator.locate(marked)
        if self._fields.takes_all:
            return turns
        starts = self._starts(conversation, text, marked)
        return self._fields.select(turns, replace(marked, starts=starts))

    def _blocks_alone(self, conversation: Conversation, text: str) -> list[Turn]:
        """Trained turns where marks in texts change the rendering: {% generation %} blocks."""
        if self.template.has_generation_blocks(conversation):
            rendering = unmark(self.template.render(conversation, marked=True))
            if rendering.text == text:
                if not self._fields.takes_all:
                    raise unknown_block("--train-fields")
                return self._locator.blocks_alone(conversation, rendering)
        raise RenderError(
            f"cannot find the trained text: the template changes the texts of messages; {ADVICE}"
        )

    def _starts(self, conversation: Conversation, text: str, marked: Marked) -> dict[int, int]:
        """Positions where the rendering has the beginning of each content of the assistant.

        Marks are put before it, or after white space that the template removes. A template that
        inspects how a content begins gives none.
        """
        roles = [message["role"] for message in conversation.messages]

        def mark(is_behind_space: bool, number: int, value: str) -> str:
            owner = marked.texts[number]
            if owner.field != "content" or roles[owner.message] not in ASSISTANT_ROLES:
                return value
            cut = len(value) - len(value.lstrip()) if is_behind_space else 0
            return _with_mark(lambda _: cut, number, value)

        for is_behind_space in (False, True):
            changed, _ = with_texts(conversation, partial(mark, is_behind_space), marked.roles)
            with suppress(RenderError):
                rendering = unmark(self.template.render(changed, marked=True))
                if rendering.text == text:
                    return {number: position for position, number in rendering.marks}
        return {}

    def _left_out(
        self, conversation: Conversation, text: str, marked: Marked | None
    ) -> list[LeftOut]:
        """Text of the messages that is not in a rendering."""
        if marked is not None and marked.roles is None:
            texts = marked.texts
            parts = unwritten_parts(texts, marked.rendering, marked.place)
        else:
            _, texts = with_texts(conversation, lambda _, value: value)
            parts = not_contained(texts, text)
        if marked is not None and marked.roles is not None:
            roles = [message["role"] for message in conversation.messages]
            places = [
                number for number, each in enumerate(texts) if roles[each.message] in marked.roles
            ]
            found = unwritten_parts(marked.texts, marked.rendering, marked.place)
            for number, part in zip(places, found, strict=True):
                parts[number] = part
        if any(parts):
            parts = without_written(conversation, text, parts, self.template.render)
        gone = [
            LeftOut(each.message, each.field, part)
            for each, part in zip(texts, parts, strict=True)
            if part.strip()
        ]
        if not conversation.is_turn:
            gone = with_own_turns(conversation, text, gone, self.template.render)
        others = unwritten_keys(conversation, text, self.template.render)
        return sorted([*gone, *without_repeated(others, texts)])

    def _renders_as(self, text: str, conversation: Conversation) -> bool:
        with suppress(RenderError):
            return self.template.render(conversation) == text
        return False

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
            "its text has special tokens that cannot be told apart from the template's own; remove "
            "them from the text"
        )


def as_mark(number: int, value: str) -> str:
    """The mark of a text in place of it; a blank text unchanged, which templates ask about."""
    return numbered(number) if value.strip() else value


def _behind_text(value: str) -> int:
    return len(value.rstrip())


def _inside_text(value: str) -> int:
    return len(value) // 2


def _with_mark(place: Callable[[str], int], number: int, value: str) -> str:
    """A text with its mark at `place(value)`; blank texts get none."""
    cut = place(value)
    return value[:cut] + numbered(number) + value[cut:] if value.strip() else value
