"""Trained turns of a marked conversation: where each begins and ends in the rendering.

A turn begins where the earlier messages, rendered with add_generation_prompt=True, end. It ends
after its end-of-turn token. Templates with {% generation %} blocks mark their turns themselves.

Elsewhere marks in the texts of the messages locate the turns, see `turn_bounds`.

A document of one turn (`Conversation.is_turn`) begins with the rendering of the earlier messages
and the generation prompt, and its turn is the rest. Where it begins with something else, its turn
begins after the prompt that the marks show, or else at its own text.

A template may leave the end of the generation prompt, such as an empty thought, out of earlier
turns. Then the turn begins where the prompt breaks off, if the message's own text begins there.

Comparing prefixes alone would be wrong: Qwen3's template drops earlier reasoning, and Mistral's
moves the system message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from os.path import commonprefix
from typing import Literal

from packprep.chat.conversations import ASSISTANT_ROLES, TOOL_ROLES, Conversation
from packprep.chat.marks import Unmarked, numbered, unmark, with_texts
from packprep.chat.special_tokens import Specials
from packprep.chat.template import ChatTemplate, RenderError
from packprep.chat.turn_bounds import (
    ADVICE,
    EndFinder,
    Place,
    Turn,
    end_in,
    ending,
    generated_blocks,
    without,
)

TrainOn = Literal["all", "assistant", "last-turn"]

_REASONING_KEYS = ("reasoning_content", "thinking")
_SHOWN = 80  # characters of a prompt in an error


Read = Callable[[str], Unmarked]
"""A marked rendering without its marks, and the text after each."""


class TurnLocator:
    """Finds the trained turns of marked conversations."""

    def __init__(self, template: ChatTemplate, specials: Specials, train_on: TrainOn) -> None:
        self.template = template
        self.train_on = train_on
        self._ends = EndFinder(specials, template.variables.get("eos_token"))

    def locate(
        self,
        marked: Conversation,
        rendering: Unmarked,
        owners: Sequence[int],
        read: Read,
    ) -> list[Turn]:
        """The trained turns of a marked conversation.

        rendering: of that conversation. owners: message number of each text. read: reads other
        renderings of it. Raises RenderError where a turn has no clear bounds.
        """
        messages = marked.messages
        trained, after = trained_messages([message["role"] for message in messages], self.train_on)
        trained = [index for index in trained if index not in marked.untrained]
        if marked.is_turn:
            return self._last_turn(marked, rendering, owners, read)
        if not trained:
            return []
        if self.template.has_generation_blocks(marked):
            blocks = self._generated(rendering, owners, after)
            return without(blocks, marked.untrained, rendering, owners)
        turns: list[Turn] = []
        for index in trained:
            first = self._beginning(marked, rendering, owners, index, read)
            turn = Turn(first, self._end(marked, rendering, len(owners), index, first, read))
            inside = {
                owners[number]
                for _, number in rendering.marks[first[0] : turn.last[0]]
                if number >= 0
            }
            beside = rendering.marks[: first[0]] + rendering.marks[turn.last[0] :]
            if (
                inside - {index}
                or index in {owners[number] for _, number in beside if number >= 0}
                or (turns and turns[-1].last[1] > first[1])
            ):
                raise RenderError(
                    f"the template mixes message {index} with other messages; {ADVICE}"
                )
            turns.append(turn)
        return [turn for turn in turns if turn.first < turn.last]

    def blocks_alone(self, conversation: Conversation, rendering: Unmarked) -> list[Turn]:
        """The trained {% generation %} blocks of a conversation whose texts have no marks.

        rendering: of that conversation. Raises RenderError where it is not known which message a
        block is of, and that matters.
        """
        roles = [message["role"] for message in conversation.messages]
        _, after = trained_messages(roles, self.train_on)
        earlier, asks = [], "--turns"
        if conversation.untrained:
            asks = '"train": false in a message'
        elif conversation.is_turn:
            earlier = conversation.messages[:-1]
        elif self.train_on == "last-turn":
            earlier, asks = conversation.messages[: after + 1], "--train-on last-turn"
        if not earlier and not conversation.untrained:
            return generated_blocks(rendering)
        for prompt in (False, True) if earlier else ():
            with suppress(RenderError):
                text = unmark(self._render(replace(conversation, messages=earlier), prompt)).text
                if rendering.text.startswith(text):
                    blocks = generated_blocks(rendering)
                    return [block for block in blocks if block.last[1] > len(text)]
        raise unknown_block(asks)

    def _last_turn(
        self,
        marked: Conversation,
        rendering: Unmarked,
        owners: Sequence[int],
        read: Read,
    ) -> list[Turn]:
        """The turn of the last message, in a document that has only that one.

        Its {% generation %} blocks, where it has some.
        """
        index = len(marked.messages) - 1
        earlier = [
            number
            for number, (_, text) in enumerate(rendering.marks)
            if text >= 0 and owners[text] < index
        ]
        if self.template.has_generation_blocks(marked):
            behind = 1 + max(earlier, default=0)
            same = self._same_beginning(marked, rendering)
            return [
                block
                for block in generated_blocks(rendering)
                if block.first[0] >= behind and block.last > same
            ]
        first = self._behind_prompt(marked, rendering, index, read)
        at_text = first is None
        if first is None:
            try:
                first = self._beginning(marked, rendering, owners, index, read)
            except RenderError:
                first = _first_text(marked, rendering.at_text_ends(), index)
        if first is None or any(number >= first[0] for number in earlier):
            raise RenderError(f"cannot find where message {index} begins; {ADVICE}")
        last = self._end(marked, rendering, len(owners), index, first, read)
        return [Turn(first, last, at_text)] if first < last else []

    def _end(
        self,
        marked: Conversation,
        rendering: Unmarked,
        texts: int,
        index: int,
        first: Place,
        read: Read,
    ) -> Place:
        """End of the turn of message `index`. texts: the number of texts. first: its beginning."""
        part = replace(marked, messages=marked.messages[: index + 1])
        later = marked.messages[index + 1 :]
        until = read(self._render(part)) if later else rendering
        ends = [ending(rendering, until, rendering)] if later else []
        is_last = not ends or (ends[0] is not None and ends[0].place[0] == len(rendering.marks))
        # What begins a message of the assistant may be a prompt that is always written.
        if is_last or later[0]["role"] in ASSISTANT_ROLES:
            is_plain = bool(self._plain_end) and until.text.endswith(self._plain_end)
            followed = None if is_plain else self._followed(part, texts, read)
            ends.append(ending(until, until, followed))
        before, position = ends[0].place if ends[0] is not None else (0, 0)
        skipped = max(0, first[1] - position)
        sizes = [
            None
            if end is None
            else self._ends.size(end.behind(skipped), rendering, first[1], is_last=not later)
            for end in ends
        ]
        if sizes[0] is None:
            raise RenderError(
                f"cannot find where message {index} ends: the template renders the first messages "
                f"differently without the later ones; {ADVICE}"
            )
        return before, position + skipped + min(size for size in sizes if size is not None)

    @cached_property
    def _plain_end(self) -> str:
        """The text after an answer that ends a conversation.

        Empty unless it has a special token and is also there when a question follows. A rendering
        that ends with it need not be compared with one in which another message follows.
        """
        chat = Conversation(
            [
                {"role": "user", "content": numbered(0)},
                {"role": "assistant", "content": numbered(1)},
            ]
        )
        try:
            until = unmark(self._render(chat))
            end = ending(until, until, self._followed(chat, 2, unmark))
        except RenderError:
            return ""
        if end is None or end.followed is None or not end.followed.startswith(end.last):
            return ""
        return end.last if self._ends.is_closed(end.last) else ""

    def _followed(self, marked: Conversation, texts: int, read: Read) -> Unmarked | None:
        """The rendering in which another message follows; None if the template writes none.

        texts: the number of texts, which is the number of the mark of that message.
        """
        follower = {"role": "user", "content": numbered(texts)}
        result = {"role": "tool", "content": numbered(texts), "tool_call_id": "callprobe"}
        is_call = bool(marked.messages[-1].get("tool_calls"))
        for message in (result, follower) if is_call else (follower, result):
            with suppress(RenderError):
                text = self._render(replace(marked, messages=[*marked.messages, message]))
                if message["content"] in text:
                    return read(text)
        return None

    def _same_beginning(self, marked: Conversation, rendering: Unmarked) -> Place:
        """Place up to which the rendering of the earlier messages is the same.

        The blocks of earlier turns end before it, unless the template writes earlier turns again.
        """
        try:
            earlier = unmark(self._render(replace(marked, messages=marked.messages[:-1])))
        except RenderError:
            return 0, 0
        characters = len(commonprefix([rendering.text, earlier.text]))  # noqa: RUF071
        marks = sum(
            one == other and one[0] <= characters
            for one, other in zip(rendering.marks, earlier.marks, strict=False)
        )
        return marks, characters

    def _behind_prompt(
        self,
        marked: Conversation,
        rendering: Unmarked,
        index: int,
        read: Read,
    ) -> Place | None:
        """The end of the generation prompt of message `index`; None if another text is there."""
        earlier = replace(marked, messages=marked.messages[:index])
        try:
            prompt = read(self._render(earlier, prompt=True))
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
        read: Read,
    ) -> Place:
        """Beginning of a turn: after all earlier messages and the generation prompt."""
        bound = f"where message {index} begins"
        earlier = replace(marked, messages=marked.messages[:index])
        try:
            prompted = self._render(earlier, prompt=True)
        except RenderError as error:
            if index > 0:
                raise RenderError(f"cannot find {bound}: {error}; {ADVICE}") from None
            return self._first_beginning(marked, rendering, bound)
        try:
            return end_in(rendering, read(prompted), bound)
        except RenderError as error:
            thinks = (
                "reasoning_content" in marked.messages[index]
                and owners.index(index) in dict(rendering.marks).values()
            )
            if not thinks and (opening := self._opening(marked, index)) is not None:
                return end_in(rendering, read(self._render(earlier) + opening), bound)
            raise (self._other_opening(marked, rendering, index, read, prompted) or error) from None

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
        read: Read,
        prompted: str,
    ) -> RenderError | None:
        """The error for a message that does not begin as the generation prompt ends.

        None if the end of the earlier messages cannot be found either.
        """
        without = self._render(replace(marked, messages=marked.messages[:index]))
        prompt = unmark(prompted).text.removeprefix(unmark(without).text)
        try:
            _, start = end_in(rendering, read(without), "")
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

    def _first_beginning(self, marked: Conversation, rendering: Unmarked, bound: str) -> Place:
        """Beginning of message 0, for a template that cannot render zero messages.

        It is after the generation prompt, which must occur before the message's own text.
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

    def _generated(self, rendering: Unmarked, owners: Sequence[int], after: int) -> list[Turn]:
        """Spans of {% generation %} blocks, from after message `after`."""
        least = 0
        if after >= 0 and self.train_on == "last-turn":
            marks_of_it = [
                number
                for number, (_, text) in enumerate(rendering.marks)
                if text >= 0 and owners[text] == after
            ]
            if not marks_of_it:
                raise RenderError(
                    f"cannot find the last turn: the template leaves out message {after}; choose "
                    "--train-on assistant or all, or another template (--chat-template)"
                )
            least = marks_of_it[-1] + 1
        return [block for block in generated_blocks(rendering) if block.first[0] >= least]


def unknown_block(asks: str) -> RenderError:
    """The error where blocks cannot be told apart by message. asks: the option that asks for it."""
    return RenderError(
        "the template measures or changes the texts of messages, so it is not known which message "
        f"each of its {{% generation %}} blocks is of, which {asks} needs; leave that out, or give "
        "another template by --chat-template"
    )


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


def _first_text(marked: Conversation, rendering: Unmarked, index: int) -> Place | None:
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
