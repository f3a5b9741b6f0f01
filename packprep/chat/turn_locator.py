"""Turns of a marked conversation: where each trained message begins and ends in its rendering.

A turn is trained from the end of everything before it rendered with add_generation_prompt=True up
to its end-of-turn token, that token included. Templates with {% generation %} say it themselves.
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
_THOUGHT = ("reasoning_content", "thinking")


@dataclass(frozen=True)
class Turn:
    """Positions in the text of an unmarked rendering, each with the number of marks before it."""

    first: tuple[int, int]
    last: tuple[int, int]


class TurnLocator:
    """Finds the trained turns of marked conversations."""

    def __init__(self, template: ChatTemplate, specials: Specials, train_on: TrainOn) -> None:
        self.template = template
        self.train_on = train_on
        self._tokens = specials

    def _render(self, conversation: Conversation, prompt: bool = False) -> str:
        return self.template.render(conversation, add_generation_prompt=prompt, marked=True)

    def locate(
        self,
        marked: Conversation,
        whole: Unmarked,
        owners: Sequence[int],
        moved: Callable[[Unmarked], Unmarked],
    ) -> list[Turn]:
        """The trained turns of a marked conversation, whole its rendering."""
        messages = marked.messages
        trained, after = trained_messages([message["role"] for message in messages], self.train_on)
        if not trained:
            return []
        if self.template.has_generation_blocks(marked):
            return self._generated(whole, owners, after)
        turns: list[Turn] = []
        for index in trained:
            upto = whole
            if index < len(messages) - 1:
                upto = moved(unmark(self._render(replace(marked, messages=messages[: index + 1]))))
            first = self._beginning(marked, whole, owners, index, moved)
            last = _behind(whole, upto, f"where message {index} ends")
            turn = Turn(first, self._end_of_turn(whole, first, last, index))
            inside = {
                owners[number] for _, number in whole.marks[first[0] : last[0]] if number >= 0
            }
            beside = whole.marks[: first[0]] + whole.marks[last[0] :]
            if (
                inside - {index}
                or index in {owners[number] for _, number in beside if number >= 0}
                or (turns and turns[-1].last[1] > first[1])
            ):
                raise RenderError(f"the template mixes message {index} with others; {ADVICE}")
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
                raise RenderError(f"{what} cannot be told: {error}; {ADVICE}") from None
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
            history.marks, history.ends(), strict=True
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
                f"{ADVICE}"
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
                f"learns to stop; {ADVICE}"
            )
        return last[0], start + ends[-1][1]

    def _generated(self, whole: Unmarked, owners: Sequence[int], after: int) -> list[Turn]:
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
                    f"{ADVICE}"
                )
            least = own[-1] + 1
        starts, stops = whole.generated[::2], whole.generated[1::2]
        turns = [
            Turn(start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop
        ]
        return [turn for turn in turns if turn.first[0] >= least]


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


def _behind(whole: Unmarked, part: Unmarked, what: str) -> tuple[int, int]:
    """Place in `whole` of the end of `part`: (marks before, position)."""
    start, number = part.marks[-1]
    tail = part.text[start:]
    found = []
    for before, ((position, owner), (stop, _)) in enumerate(
        zip(whole.marks, whole.ends(), strict=True), 1
    ):
        end = position + len(tail)
        if owner == number and end <= stop and whole.text.startswith(tail, position):
            found.append((before, end))
    if len(found) != 1:
        raise RenderError(
            f"{what} cannot be told: the template renders a part of the conversation otherwise; "
            f"{ADVICE}"
        )
    return found[0]
