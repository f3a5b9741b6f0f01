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
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import accumulate, product
from typing import Literal, Protocol

from packprep.chat.conversations import ASSISTANT_ROLES, TOOL_ROLES, Conversation
from packprep.chat.marks import MARKS, Unmarked, numbered, unmark, with_texts
from packprep.chat.special_tokens import Span, Specials, strings, strings_beside
from packprep.chat.template import ChatTemplate, RenderError

TrainOn = Literal["all", "assistant", "last-turn"]

_THOUGHT = ("reasoning_content", "thinking")
_GONE = -2  # the number of a mark that is nobody's
_FORMS = 1024  # forms remembered; a corpus of plain chats has one for each number of messages
_ADVICE = "give a template with {% generation %} by --chat-template, or --train-on all"


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


@dataclass(frozen=True)
class _Turn:
    """Positions in the text of an unmarked rendering, each with the number of marks before it."""

    first: tuple[int, int]
    last: tuple[int, int]


@dataclass(frozen=True)
class _Form:
    """A rendering of a conversation whose texts are marks.

    The template's own text, and the order of the others.

    specials: where the template's special tokens are, with the number of marks before each.
    """

    unmarked: Unmarked
    turns: list[_Turn]
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
class _Key:
    """A conversation whose texts are marks, equal to all of the same form.

    owners: the message of each text.
    """

    form: str
    conversation: Conversation = field(compare=False)
    owners: list[int] = field(compare=False)


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
        form = self._form(_Key(beside, blank, [message for message, _ in texts]))
        return form.place(text, [value for _, value in texts]) if form is not None else None

    def _by_itself(self, conversation: Conversation, text: str) -> tuple[list[Span], list[Span]]:
        """The same by marking this very conversation."""
        own = self._own_specials(conversation, text)
        return self._spans(conversation, text) if self.train_on != "all" else [], own

    def _make_form(self, key: _Key) -> _Form | None:
        """The form of a conversation.

        None where the template does not take it or its turns cannot be told.
        """
        try:
            whole = unmark(self._render(key.conversation))
            turns = self._turns(key.conversation, whole, key.owners, lambda part: part)
        except RenderError:
            return None
        specials = []
        for before, ((start, _), (stop, _)) in enumerate(
            zip(whole.marks, _ends(whole), strict=True), 1
        ):
            specials += [
                (before, (start + a, start + b))
                for a, b in self._tokens.spans(whole.text[start:stop])
            ]
        return _Form(whole, turns, specials)

    def _render(self, conversation: Conversation, prompt: bool = False) -> str:
        return self.template.render(conversation, add_generation_prompt=prompt, marked=True)

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
                whole = unmark(self._render(changed))
            except RenderError:
                continue
            if whole.text == text:
                turns = self._turns(changed, moved(whole), [message for message, _ in texts], moved)
                return [(turn.first[1], turn.last[1]) for turn in turns]
        raise RenderError(
            f"what is trained cannot be told: the template changes what it is given; {_ADVICE}"
        )

    def _turns(
        self,
        marked: Conversation,
        whole: Unmarked,
        owners: Sequence[int],
        moved: Callable[[Unmarked], Unmarked],
    ) -> list[_Turn]:
        """The trained turns of a marked conversation, whole its rendering."""
        messages = marked.messages
        trained, after = trained_messages([message["role"] for message in messages], self.train_on)
        if not trained:
            return []
        if self.template.has_generation_blocks(marked):
            return self._generated(whole, owners, after)
        turns: list[_Turn] = []
        for index in trained:
            upto = whole
            if index < len(messages) - 1:
                upto = moved(unmark(self._render(replace(marked, messages=messages[: index + 1]))))
            first = self._beginning(marked, whole, owners, index, moved)
            last = _behind(whole, upto, f"where message {index} ends")
            turn = _Turn(first, self._end_of_turn(whole, first, last, index))
            inside = {
                owners[number] for _, number in whole.marks[first[0] : last[0]] if number >= 0
            }
            beside = whole.marks[: first[0]] + whole.marks[last[0] :]
            if (
                inside - {index}
                or index in {owners[number] for _, number in beside if number >= 0}
                or (turns and turns[-1].last[1] > first[1])
            ):
                raise RenderError(f"the template mixes message {index} with others; {_ADVICE}")
            turns.append(turn)
        return turns

    def _beginning(
        self,
        marked: Conversation,
        whole: Unmarked,
        owners: Sequence[int],
        index: int,
        moved: Callable[[Unmarked], Unmarked],
    ) -> tuple[int, int]:
        """Begin of a turn: behind everything before it, with the generation prompt."""
        what = f"where message {index} begins"
        earlier = replace(marked, messages=marked.messages[:index])
        try:
            before = self._render(earlier, prompt=True)
        except RenderError as error:
            if index > 0:
                raise RenderError(f"{what} cannot be told: {error}; {_ADVICE}") from None
            return self._first_beginning(marked, whole, what)
        try:
            return _behind(whole, moved(unmark(before)), what)
        except RenderError:
            thinks = (
                "reasoning_content" in marked.messages[index]
                and owners.index(index) in dict(whole.marks).values()
            )
            if thinks or (opening := self._opening(marked, index)) is None:
                raise
            return _behind(whole, moved(unmark(self._render(earlier) + opening)), what)

    def _opening(self, marked: Conversation, index: int) -> str | None:
        """The part of the generation prompt that begins message `index` in the conversation.

        None unless the template's own text there is that and no more. With enable_thinking false
        Qwen3's prompt ends with an empty thought, which only the last turn has: the others open
        with "<|im_start|>assistant" alone.
        """
        bare = [
            {key: item for key, item in message.items() if key not in _THOUGHT}
            for message in marked.messages
        ]
        blank, texts = with_texts(
            replace(marked, messages=bare), lambda number, _: numbered(number)
        )
        earlier = replace(blank, messages=blank.messages[:index])
        try:
            whole, without, prompted = (
                self._render(blank),
                self._render(earlier),
                self._render(earlier, prompt=True),
            )
        except RenderError:
            return None
        if not prompted.startswith(without):
            return None
        prompt, end, history = prompted.removeprefix(without), unmark(without), unmark(whole)
        start, last = end.marks[-1]
        for (position, number), (stop, following) in zip(
            history.marks, _ends(history), strict=True
        ):
            if number == last and following >= 0 and texts[following][0] == index:
                literal, closing = history.text[position:stop], end.text[start:]
                opening = literal.removeprefix(closing)
                if (
                    literal.startswith(closing)
                    and opening
                    and opening != prompt
                    and prompt.startswith(opening)
                ):
                    return opening
        return None

    def _first_beginning(self, marked: Conversation, whole: Unmarked, what: str) -> tuple[int, int]:
        """The same for the first message of all, where a template renders no messages not at all.

        Behind the generation prompt that stands once before the message's own text.
        """
        first = replace(marked, messages=marked.messages[:1])
        without, prompted = self._render(first), self._render(first, prompt=True)
        prompt = prompted.removeprefix(without)
        found = whole.text.find(prompt)
        stop = next((position for position, number in whole.marks if number >= 0), 0)
        if (
            not prompt
            or not prompted.startswith(without)
            or found < 0
            or found + len(prompt) > stop
        ):
            raise RenderError(
                f"{what} cannot be told: the template renders nothing before the first message; "
                f"{_ADVICE}"
            )
        return 1, found + len(prompt)

    def _end_of_turn(
        self, whole: Unmarked, first: tuple[int, int], last: tuple[int, int], index: int
    ) -> tuple[int, int]:
        """Behind the token that closes a turn.

        The last special one in it, in the template's own text.
        """
        start = max(first[1], whole.marks[last[0] - 1][0])
        ends = self._tokens.closing_spans(whole.text[start : last[1]])
        if not ends:
            raise RenderError(
                f"the template closes message {index} with no special token, so a model never "
                f"learns to stop; {_ADVICE}"
            )
        return last[0], start + ends[-1][1]

    def _generated(self, whole: Unmarked, owners: Sequence[int], after: int) -> list[_Turn]:
        """Spans in {% generation %} blocks, from behind the message `after`."""
        least = 0
        if after >= 0 and self.train_on == "last-turn":
            own = [
                at
                for at, (_, number) in enumerate(whole.marks)
                if number >= 0 and owners[number] == after
            ]
            if not own:
                raise RenderError(
                    f"the template leaves message {after} out, so the last turn cannot be told; "
                    f"{_ADVICE}"
                )
            least = own[-1] + 1
        starts, stops = whole.generated[::2], whole.generated[1::2]
        turns = [
            _Turn(start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop
        ]
        return [turn for turn in turns if turn.first[0] >= least]

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


def trained_messages(roles: Sequence[str], train_on: TrainOn) -> tuple[list[int], int]:
    """Numbers of the trained messages, and of the last one before each.

    -1 where they begin the conversation.

    The last turn is all that the assistant says after the last message that is not its own or a
    tool's. Example: ["user", "assistant", "user", "assistant", "tool", "assistant"], "last-turn" ->
    [3, 5], 2
    """
    own = [index for index, role in enumerate(roles) if role in ASSISTANT_ROLES]
    if not own or train_on == "all":
        return [], -1
    if train_on == "assistant":
        return own, own[0] - 1
    answered = [
        index for index in range(own[-1]) if roles[index] not in ASSISTANT_ROLES | TOOL_ROLES
    ]
    after = answered[-1] if answered else -1
    return [index for index in own if index > after], after


def _behind_text(value: str) -> int:
    return len(value.rstrip())


def _inside_text(value: str) -> int:
    return len(value) // 2


def _marked(at: Callable[[str], int], number: int, value: str) -> str:
    return value[: at(value)] + numbered(number) + value[at(value) :] if value.strip() else value


def _ends(whole: Unmarked) -> list[tuple[int, int]]:
    """End of the text behind each mark: at the next mark."""
    return [*whole.marks[1:], (len(whole.text), -1)]


def _behind(whole: Unmarked, part: Unmarked, what: str) -> tuple[int, int]:
    """Place in `whole` of the end of `part`: (marks before, position)."""
    start, number = part.marks[-1]
    tail = part.text[start:]
    found = []
    for before, ((position, owner), (stop, _)) in enumerate(
        zip(whole.marks, _ends(whole), strict=True), 1
    ):
        end = position + len(tail)
        if owner == number and end <= stop and whole.text.startswith(tail, position):
            found.append((before, end))
    if len(found) != 1:
        raise RenderError(
            f"{what} cannot be told: the template renders a part of the conversation otherwise; "
            f"{_ADVICE}"
        )
    return found[0]


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
