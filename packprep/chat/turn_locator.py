"""Trained turns of a marked conversation: where each begins and ends in the rendering.

A turn begins where the earlier messages, rendered with add_generation_prompt=True, end. It ends
behind its end-of-turn token. Templates with {% generation %} blocks mark their turns themselves.

Elsewhere marks in the texts of the messages locate the turns. A rendering of the first messages
ends with some text behind its last mark; the same text must follow the same mark in the rendering
of all messages, and a turn begins (or ends) there.

A document of one turn (`Conversation.is_turn`) begins with the rendering of the earlier messages
and the generation prompt, and its turn is the rest. Where it begins with something else, its turn
begins behind the prompt that the marks show, or else at its own text.

A template may leave the end of the generation prompt, such as an empty thought, out of earlier
turns. Then the turn begins where the prompt breaks off, if the message's own text begins there.

Comparing prefixes alone would be wrong: Qwen3's template drops earlier reasoning, and Mistral's
moves the system message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from packprep.chat.conversations import ASSISTANT_ROLES, TOOL_ROLES, Conversation
from packprep.chat.marks import Unmarked, numbered, unmark, with_texts
from packprep.chat.special_tokens import Specials
from packprep.chat.template import ChatTemplate, RenderError

TrainOn = Literal["all", "assistant", "last-turn"]

ADVICE = "give a template with {% generation %} by --chat-template, or --train-on all"
_REASONING_KEYS = ("reasoning_content", "thinking")
_SHOWN = 80  # characters of a prompt in an error


@dataclass(frozen=True)
class Turn:
    """Bounds of a turn: (number of marks before it, position in the unmarked text).

    at_text: True for a document of one turn that does not begin with what a model is prompted with.
    """

    first: tuple[int, int]
    last: tuple[int, int]
    at_text: bool = False


class TurnLocator:
    """Finds the trained turns of marked conversations."""

    def __init__(self, template: ChatTemplate, specials: Specials, train_on: TrainOn) -> None:
        self.template = template
        self.train_on = train_on
        self._tokens = specials

    def locate(
        self,
        marked: Conversation,
        rendering: Unmarked,
        owners: Sequence[int],
        moved: Callable[[Unmarked], Unmarked],
    ) -> list[Turn]:
        """The trained turns of a marked conversation.

        rendering: of that conversation. owners: message number of each text. moved: moves marks to
        the ends of their texts. Raises RenderError where a turn has no clear bounds.
        """
        messages = marked.messages
        trained, after = trained_messages([message["role"] for message in messages], self.train_on)
        trained = [index for index in trained if index not in marked.untrained]
        if marked.is_turn:
            return [self._last_turn(marked, rendering, owners, moved)]
        if not trained:
            return []
        if self.template.has_generation_blocks(marked):
            blocks = self._generated(rendering, owners, after)
            return _without(blocks, marked.untrained, rendering, owners)
        turns: list[Turn] = []
        for index in trained:
            until = rendering
            if index < len(messages) - 1:
                until = moved(unmark(self._render(replace(marked, messages=messages[: index + 1]))))
            first = self._beginning(marked, rendering, owners, index, moved)
            last = _end_in(rendering, until, f"where message {index} ends")
            turn = Turn(first, self._end_of_turn(rendering, first, last))
            inside = {
                owners[number] for _, number in rendering.marks[first[0] : last[0]] if number >= 0
            }
            beside = rendering.marks[: first[0]] + rendering.marks[last[0] :]
            if (
                inside - {index}
                or index in {owners[number] for _, number in beside if number >= 0}
                or (turns and turns[-1].last[1] > first[1])
            ):
                raise RenderError(
                    f"the template mixes message {index} with other messages; {ADVICE}"
                )
            turns.append(turn)
        return turns

    def _last_turn(
        self,
        marked: Conversation,
        rendering: Unmarked,
        owners: Sequence[int],
        moved: Callable[[Unmarked], Unmarked],
    ) -> Turn:
        """The turn of the last message, in a document that has only that one.

        A {% generation %} block behind the earlier messages is the turn.
        """
        index = len(marked.messages) - 1
        earlier = [
            number
            for number, (_, text) in enumerate(rendering.marks)
            if text >= 0 and owners[text] < index
        ]
        if self.template.has_generation_blocks(marked):
            behind = 1 + max(earlier, default=0)
            blocks = [
                turn for turn in self._generated(rendering, owners, -1) if turn.first[0] >= behind
            ]
            if blocks:
                return Turn(blocks[0].first, blocks[-1].last)
        first = self._behind_prompt(marked, rendering, index, moved)
        at_text = first is None
        if first is None:
            try:
                first = self._beginning(marked, rendering, owners, index, moved)
            except RenderError:
                first = _first_text(marked, rendering, index)
        if first is None or any(number >= first[0] for number in earlier):
            raise RenderError(f"cannot find where message {index} begins; {ADVICE}")
        last = len(rendering.marks), len(rendering.text)
        return Turn(first, self._end_of_turn(rendering, first, last), at_text)

    def _behind_prompt(
        self,
        marked: Conversation,
        rendering: Unmarked,
        index: int,
        moved: Callable[[Unmarked], Unmarked],
    ) -> tuple[int, int] | None:
        """The end of the generation prompt of message `index`; None where another text is there."""
        earlier = replace(marked, messages=marked.messages[:index])
        try:
            prompt = moved(unmark(self._render(earlier, prompt=True)))
        except RenderError:
            return None
        before = len(prompt.marks)
        same = rendering.text.startswith(prompt.text) and rendering.marks[:before] == prompt.marks
        return (before, len(prompt.text)) if same else None

    def _render(self, conversation: Conversation, prompt: bool = False) -> str:
        return self.template.render(conversation, add_generation_prompt=prompt, marked=True)

    def _beginning(
        self,
        marked: Conversation,
        rendering: Unmarked,
        owners: Sequence[int],
        index: int,
        moved: Callable[[Unmarked], Unmarked],
    ) -> tuple[int, int]:
        """Beginning of a turn: behind all earlier messages and the generation prompt."""
        bound = f"where message {index} begins"
        earlier = replace(marked, messages=marked.messages[:index])
        try:
            prompted = self._render(earlier, prompt=True)
        except RenderError as error:
            if index > 0:
                raise RenderError(f"cannot find {bound}: {error}; {ADVICE}") from None
            return self._first_beginning(marked, rendering, bound)
        try:
            return _end_in(rendering, moved(unmark(prompted)), bound)
        except RenderError as error:
            thinks = (
                "reasoning_content" in marked.messages[index]
                and owners.index(index) in dict(rendering.marks).values()
            )
            if not thinks and (opening := self._opening(marked, index)) is not None:
                return _end_in(rendering, moved(unmark(self._render(earlier) + opening)), bound)
            raise (
                self._other_opening(marked, rendering, index, moved, prompted) or error
            ) from None

    def _opening(self, marked: Conversation, index: int) -> str | None:
        """The part of the generation prompt that begins message `index` in the conversation.

        None unless the template's own text there is exactly that. With enable_thinking false,
        Qwen3's prompt ends with an empty thought, which only the last turn has: the others open
        with "<|im_start|>assistant" alone.
        """
        bare = [
            {key: item for key, item in message.items() if key not in _REASONING_KEYS}
            for message in marked.messages
        ]
        blank, texts = with_texts(
            replace(marked, messages=bare), lambda number, _: numbered(number)
        )
        earlier = replace(blank, messages=blank.messages[:index])
        try:
            complete, without, prompted = (
                self._render(blank),
                self._render(earlier),
                self._render(earlier, prompt=True),
            )
        except RenderError:
            return None
        if not prompted.startswith(without):
            return None
        prompt, end, history = prompted.removeprefix(without), unmark(without), unmark(complete)
        start, last = end.marks[-1]
        for (position, number), (stop, following) in zip(
            history.marks, history.ends(), strict=True
        ):
            if number == last and following >= 0 and texts[following].message == index:
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

    def _other_opening(
        self,
        marked: Conversation,
        rendering: Unmarked,
        index: int,
        moved: Callable[[Unmarked], Unmarked],
        prompted: str,
    ) -> RenderError | None:
        """The error for a message that does not begin as the generation prompt ends.

        None where the end of the earlier messages cannot be found either.
        """
        without = self._render(replace(marked, messages=marked.messages[:index]))
        prompt = unmark(prompted).text.removeprefix(unmark(without).text)
        try:
            _, start = _end_in(rendering, moved(unmark(without)), "")
        except RenderError:
            return None
        opening = rendering.text[start : start + len(prompt)]
        if not prompt or opening == prompt:
            return None
        message = marked.messages[index]
        variables = {**self.template.variables, **marked.variables}
        advice = ADVICE
        if "reasoning_content" in message or "</think>" in str(message.get("content")):
            advice = "remove the reasoning from the row, or " + ADVICE
            if variables.get("enable_thinking") is False:
                advice = (
                    "enable_thinking is false but the message has reasoning; remove the reasoning "
                    "from the row, or set enable_thinking to true for it (--template-variables, or "
                    "its chat_template_kwargs)"
                )
        return RenderError(
            f"message {index} does not begin with the template's generation prompt: the prompt is "
            f"{prompt[-_SHOWN:]!r}, the template renders {opening[-_SHOWN:]!r} there; {advice}"
        )

    def _first_beginning(
        self, marked: Conversation, rendering: Unmarked, bound: str
    ) -> tuple[int, int]:
        """Beginning of message 0, for a template that cannot render zero messages.

        It is behind the generation prompt, which must occur before the message's own text.
        """
        first = replace(marked, messages=marked.messages[:1])
        without, prompted = self._render(first), self._render(first, prompt=True)
        prompt = prompted.removeprefix(without)
        start = rendering.text.find(prompt)
        stop = next((position for position, number in rendering.marks if number >= 0), 0)
        if (
            not prompt
            or not prompted.startswith(without)
            or start < 0
            or start + len(prompt) > stop
        ):
            raise RenderError(
                f"cannot find {bound}: the template renders nothing before the first message; "
                f"{ADVICE}"
            )
        return 1, start + len(prompt)

    def _end_of_turn(
        self, rendering: Unmarked, first: tuple[int, int], last: tuple[int, int]
    ) -> tuple[int, int]:
        """End of a turn, behind its end-of-turn token.

        That token is the last special one of the turn in the template's own text. Without one, the
        turn ends with the last text that the template writes for it.
        """
        start = max(first[1], rendering.marks[last[0] - 1][0])
        ends = self._tokens.closing_spans(rendering.text[start : last[1]])
        return (last[0], start + ends[-1][1]) if ends else last

    def _generated(self, rendering: Unmarked, owners: Sequence[int], after: int) -> list[Turn]:
        """Spans of {% generation %} blocks, from behind message `after`."""
        least = 0
        if after >= 0 and self.train_on == "last-turn":
            marks_of_it = [
                number
                for number, (_, text) in enumerate(rendering.marks)
                if text >= 0 and owners[text] == after
            ]
            if not marks_of_it:
                raise RenderError(
                    f"cannot find the last turn: the template leaves out message {after}; {ADVICE}"
                )
            least = marks_of_it[-1] + 1
        starts, stops = rendering.generated[::2], rendering.generated[1::2]
        turns = [
            Turn(start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop
        ]
        return [turn for turn in turns if turn.first[0] >= least]


def trained_messages(roles: Sequence[str], train_on: TrainOn) -> tuple[list[int], int]:
    """Numbers of the trained messages, and number of the message before the first of them.

    The second is -1 where they begin the conversation. The last turn is everything that the
    assistant says after the last message that is neither its own nor a tool's.

    Example: ["user", "assistant", "user", "assistant", "tool", "assistant"], "last-turn" ->
    [3, 5], 2
    """
    assistants = [index for index, role in enumerate(roles) if role in ASSISTANT_ROLES]
    if not assistants or train_on == "all":
        return [], -1
    if train_on == "assistant":
        return assistants, assistants[0] - 1
    answered = [
        index for index in range(assistants[-1]) if roles[index] not in ASSISTANT_ROLES | TOOL_ROLES
    ]
    after = answered[-1] if answered else -1
    return [index for index in assistants if index > after], after


def _first_text(marked: Conversation, rendering: Unmarked, index: int) -> tuple[int, int] | None:
    """Beginning of the first text of message `index` that the template writes."""
    _, texts = with_texts(
        replace(marked, messages=[marked.messages[index]]), lambda _, value: value
    )
    plain = {
        number: each.text
        for each in (unmark(text.text) for text in texts)
        for _, number in each.marks[1:]
    }
    for before, (position, number) in enumerate(rendering.marks):
        text = plain.get(number, "")
        for form in (text, text.strip(), text.lstrip(), text.rstrip()) if number in plain else ():
            if rendering.text[:position].endswith(form):
                return before, position - len(form)
    return None


def _without(
    turns: list[Turn], untrained: Sequence[int], rendering: Unmarked, owners: Sequence[int]
) -> list[Turn]:
    """The turns of {% generation %} blocks that hold no text of an untrained message.

    Raises RenderError where it cannot be told which block such a message has.
    """
    kept, excluded = [], set()
    for turn in turns:
        inside = {owners[text] for _, text in rendering.marks[turn.first[0] : turn.last[0]]}
        excluded |= inside & set(untrained)
        if not inside & set(untrained):
            kept.append(turn)
        elif inside - set(untrained):
            raise RenderError(
                f"a block of the template has message {min(inside & set(untrained))}, which the "
                f"row takes out of what is trained, together with others; {ADVICE}"
            )
    if hidden := set(untrained) - excluded:
        raise RenderError(
            f"cannot find the block of message {min(hidden)}, which the row takes out of what is "
            f"trained; {ADVICE}"
        )
    return kept


def _end_in(rendering: Unmarked, beginning: Unmarked, bound: str) -> tuple[int, int]:
    """Place in `rendering` where `beginning` ends: (marks before, position).

    bound: the place in words, for the RenderError raised unless there is exactly one such place.
    """
    start, number = beginning.marks[-1]
    tail = beginning.text[start:]
    places = []
    for before, ((position, owner), (stop, _)) in enumerate(
        zip(rendering.marks, rendering.ends(), strict=True), 1
    ):
        end = position + len(tail)
        if owner == number and end <= stop and rendering.text.startswith(tail, position):
            places.append((before, end))
    if len(places) != 1:
        raise RenderError(
            f"cannot find {bound}: the template renders the first messages differently without the "
            f"later ones; {ADVICE}"
        )
    return places[0]
