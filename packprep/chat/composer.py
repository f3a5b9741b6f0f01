"""Renderings of rows without their template.

A template that took one path through the messages of a row takes it again for every row of the same
shape for which it gets the same answers to all that it asked about the texts (see
`rendering.tracing`). The text of such a row is composed: constants of the template, and the texts
as the template changes them. All other rows are rendered.

A trace is kept if it gives the rendering of the row that it was made of, and that of the same row
with other texts. Some composed rows are rendered too, and must not differ: at the uses 1, 2, 4, 8,
... of a trace, and 1 row in 1,000, drawn by a hash of its text, so the same ones in every build.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from operator import methodcaller
from typing import NamedTuple

from packprep.chat.conversations import Conversation, Message
from packprep.chat.forms import Form, FormKey
from packprep.chat.marks import with_texts
from packprep.chat.rendering.expressions import (
    ASKED,
    Applied,
    Expression,
    Joined,
    Original,
    TextGuard,
)
from packprep.chat.rendering.traced_text import Recording, TracedText
from packprep.chat.rendering.tracing import Trace
from packprep.chat.special_tokens import Specials
from packprep.chat.template import ChatTemplate, RenderError

_SHAPES = 4096  # cached
_FIRST = 2  # row of a shape that is traced; many shapes have one row only
_TRACES = 4  # of a shape, each for other answers
_REFUSALS = 8  # in a row, after which a template is not traced any more
_DRAWN = 1000  # of so many composed rows, one is drawn by its hash and rendered too
_PLANTED = " <planted> &amp; \"'\\{0}% \u00e9"  # after a text: none of it may be lost or changed


class Composed(NamedTuple):
    """A composed row.

    trained: positions start, stop, start, stop, ... of the trained spans; None for all of it.
    """

    text: str
    trained: list[int] | None


class Composer:
    """Traces of the rows of a template. Several threads may use it at once."""

    def __init__(self, template: ChatTemplate, tokens: Specials) -> None:
        self._template = template
        self._tokens = tokens
        self._shapes: dict[Hashable, _Shape] = {}
        self._plans: dict[tuple[str, ...], tuple[Plan, ...]] = {}
        self._refusals = 0

    def text(self, key: Hashable, row: FormKey) -> str | None:
        """The rendering of a row; None if no trace fits. key: of `compose_key`."""
        shape = self._shapes.get(key)
        if shape is None:
            return None
        plain = [each.text for each in row.texts]
        for trace in shape.traces:
            text = trace.compose(plain)
            if text is not None and trace.passes(text, partial(self._render, row.conversation)):
                return text
        return None

    def plain(self, roles: tuple[str, ...], texts: list[str]) -> Composed | None:
        """A row of messages that are role and content alone; None if no trace fits.

        texts: contents, none of them blank.
        """
        for plan in self._plans.get(roles, ()):
            composed = plan.fill(texts)
            if composed is not None and plan.passes(
                composed.text, partial(self._render_plain, roles, texts)
            ):
                return composed
        return None

    def learn(
        self, key: Hashable, conversation: Conversation, text: str, form: Form | None
    ) -> None:
        """Trace a row that had to be rendered. text: its rendering. form: which it fills."""
        if self._refusals >= _REFUSALS:
            return
        if len(self._shapes) >= _SHAPES:
            self._shapes.clear()
            self._plans.clear()
        shape = self._shapes.setdefault(key, _Shape())
        shape.rows += 1
        if shape.rows < _FIRST or shape.traced == _TRACES:
            return
        shape.traced += 1
        trace = self._trace(conversation, text)
        self._refusals = self._refusals + 1 if trace is None else 0
        if trace is None:
            return
        shape.traces = (*shape.traces, _Checked(trace))
        roles = _plain_roles(conversation)
        if roles is not None and form is not None and Plan.fits(form, trace, len(roles)):
            plan = Plan(form, trace, self._tokens)
            self._plans[roles] = (*self._plans.get(roles, ()), plan)

    def _trace(self, conversation: Conversation, text: str) -> Trace | None:
        """The trace of a row, if it gives the row's rendering and that of one with other texts."""
        recording = Recording()

        def traced_text(number: int, value: str) -> TracedText | str:
            return recording.text(number, value) if value.strip() else value

        traced, texts = with_texts(conversation, traced_text)
        trace = self._template.trace(traced, recording)
        if trace is None:
            return None
        if trace.compose([each.text for each in texts]) != text:
            return None
        planted, _ = with_texts(
            conversation, lambda _, value: value + _PLANTED if value.strip() else value
        )
        _, others = with_texts(planted, lambda _, value: value)
        composed = trace.compose([each.text for each in others])
        if composed is None or self._render(planted) == composed:
            return trace
        return None

    def _render_plain(self, roles: Sequence[str], texts: Sequence[str]) -> str | None:
        messages: list[Message] = [
            {"role": role, "content": text} for role, text in zip(roles, texts, strict=True)
        ]
        return self._render(Conversation(messages))

    def _render(self, conversation: Conversation) -> str | None:
        """The rendering; None if the template fails."""
        try:
            return self._template.render(conversation)
        except RenderError:
            return None


def compose_key(row: FormKey) -> Hashable | None:
    """Everything that a rendering depends on beside the texts; None if texts may hide some.

    A thought may differ from the text under its other name, and the order of keys matters to a
    template that writes a message as JSON.
    """
    for message in row.conversation.messages:
        if message.get("thinking") != message.get("reasoning_content"):
            return None
    return row.shape, tuple(map(tuple, row.conversation.messages))


def _plain_roles(conversation: Conversation) -> tuple[str, ...] | None:
    """The roles, where messages are role and content alone and no content is blank; else None."""
    plain = (
        not (conversation.tools or conversation.variables or conversation.untrained)
        and not conversation.is_turn
        and all([*message] == ["role", "content"] for message in conversation.messages)
        and all(
            type(message["content"]) is str and message["content"].strip()
            for message in conversation.messages
        )
    )
    return tuple(message["role"] for message in conversation.messages) if plain else None


class _Checked:
    """A trace that is compared with a rendering at its uses 1, 2, 4, 8, ... and for drawn rows."""

    def __init__(self, trace: Trace) -> None:
        self.compose = trace.compose
        self._uses = 0
        self._is_refused = False

    def passes(self, text: str, render: Callable[[], str | None]) -> bool:
        """True if a composed text can be used.

        A trace that fails at its first use, where it has written nothing yet, is not used at all.
        """
        self._uses += 1
        is_power = self._uses & (self._uses - 1) == 0
        asks = is_power or zlib.crc32(text.encode(errors="surrogatepass")) % _DRAWN == 0
        if asks and not self._is_refused and render() != text:
            if self._uses > 1:
                raise RuntimeError(
                    "a row composed from a trace of its chat template differs from its rendering; "
                    "please report this with the template"
                )
            self._is_refused = True
        return not self._is_refused


class _Shape:
    """Traces of a shape, the number of rows that had to be rendered, and of those traced."""

    __slots__ = ("rows", "traced", "traces")

    def __init__(self) -> None:
        self.rows = 0
        self.traced = 0
        self.traces: tuple[_Checked, ...] = ()


class Plan(_Checked):
    """A trace of rows of role and content alone, and the turns of the form that they fill."""

    def __init__(self, form: Form, trace: Trace, tokens: Specials) -> None:
        super().__init__(trace)
        self._form = form
        self._tokens = tokens
        self._most = trace.most
        self._pieces = [part for literal in trace.literals for part in (literal, "")][:-1]
        self._order = [*map(_source, trace.values)]
        self._is_in_order = self._order == [*range(len(self._order))]
        self._changes = _changes(trace)
        self._quick = [
            (ASKED[guard.name], guard.operands[0].number, guard.operands[1:], guard.answer)
            for guard in filter(_is_quick, trace.guards)
        ]
        self._guards = [guard for guard in trace.guards if not _is_quick(guard)]
        self._bounds = [
            (position, marks) for turn in form.turns for marks, position in (turn.first, turn.last)
        ]
        signs = {beginning[0] for beginning in tokens.beginnings}
        between = "\n".join(trace.literals)
        self._is_clear = tokens.has_only(len(form.specials), between) and not any(
            literal.endswith(tuple(signs)) for literal in trace.literals
        )
        self._signs = [(sign, between.count(sign)) for sign in sorted(signs)]

    @staticmethod
    def fits(form: Form, trace: Trace, texts: int) -> bool:
        """True if the trace writes all texts, in the order and with the constants of the form."""
        order = [number for _, number in form.unmarked.marks[1:]]
        return (
            [*trace.literals] == form.literals
            and [*map(_source, trace.values)] == order
            and {*order} == {*range(texts)}
            and not form.others
        )

    def fill(self, texts: list[str]) -> Composed | None:
        """The row with these texts.

        None if the template could take another path, where the bounds of turns are not those of
        the form, or where a text might spell a special token.
        """
        for function, number, arguments, answer in self._quick:
            if function(texts[number], *arguments) != answer:
                return None
        if self._guards and not all(guard.holds(texts) for guard in self._guards):
            return None
        values = written = texts if self._is_in_order else [texts[each] for each in self._order]
        for change, places in self._changes:
            if places is None:
                values = [*map(change, values)]
            else:
                values = values.copy()
                for place in places:
                    values[place] = change(values[place])
        pieces = self._pieces.copy()
        pieces[1::2] = values
        text = "".join(pieces)
        if self._has_others(text):
            return None
        if values == written:
            before = [0, 0, *accumulate(map(len, values))]
            size = before[-1]
        else:
            filled = self._form.fill(text, texts)
            if filled is None:
                return None
            before, size = filled, sum(map(len, texts))
        if size > self._most:
            return None
        return Composed(text, [position + before[marks] for position, marks in self._bounds])

    def _has_others(self, text: str) -> bool:
        """True if the text might have special tokens that are not the template's.

        A text without any sign with which one begins cannot have one: these are counted first.
        """
        for sign, count in self._signs:
            if text.count(sign) != count:
                break
        else:
            if self._is_clear:
                return False
        return not self._tokens.has_only(len(self._form.specials), text)


def _is_quick(guard: TextGuard) -> bool:
    """True for a guard that asks about a text and constants alone."""
    text, *others = guard.operands
    return isinstance(text, Original) and not any(
        isinstance(other, Original | Applied | Joined) for other in others
    )


def _source(expression: Expression) -> int:
    """Number of the text that an expression is of; -1 where it is of several."""
    while isinstance(expression, Applied):
        expression = expression.owner
    return expression.number if isinstance(expression, Original) else -1


def _changes(trace: Trace) -> list[tuple[Callable[[str], str], list[int] | None]]:
    """Functions to apply to values, each with the places of its values; None for all."""
    places: dict[Expression, list[int]] = {}
    for place, value in enumerate(trace.values):
        if not isinstance(value, Original):
            places.setdefault(_of_first(value), []).append(place)
    return [
        (_function(value), None if len(at) == len(trace.values) else at)
        for value, at in places.items()
    ]


def _of_first(expression: Expression) -> Expression:
    """The same expression of text 0."""
    if isinstance(expression, Applied):
        return replace(expression, owner=_of_first(expression.owner))
    return Original(0)


def _function(expression: Expression) -> Callable[[str], str]:
    """The function that computes an expression of text 0."""
    if (
        isinstance(expression, Applied)
        and isinstance(expression.owner, Original)
        and hasattr(str, expression.name)
    ):
        return methodcaller(expression.name, *expression.arguments)
    return lambda text: expression.of([text])
