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

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from os.path import commonprefix

from .marks import Marked, Unmarked, numbered, unmark, with_texts
from .special_tokens import Specials
from .template import ChatTemplate
from .turn_bounds import (
    ADVICE,
    EndFinder,
    Place,
    Turn,
    end_in,
    ending,
    generated_blocks,
    without,
)
from .types import (
    ASSISTANT_ROLES,
    THOUGHT_KEYS,
    TOOL_ROLES,
    Conversation,
    Message,
    RenderError,
    TrainOn,
    without_keys,
)

_SHOWN = 80  # characters of a prompt in an error


class TurnLocator:
    """Finds the trained turns of marked conversations."""

    def __init__(self, template: ChatTemplate, specials: Specials, train_on: TrainOn) -> None:
        self.template = template
        self.train_on = train_on
        self._ends = EndFinder(specials, template.eos)

    def locate(self, marked: Marked) -> list[Turn]:
        """The trained turns of a marked conversation.

        Raises RenderError where a turn has no clear bounds.
        """
        conversation = marked.conversation
        roles = [message["role"] for message in conversation.messages]
        trained, _ = trained_messages(roles, self.train_on)
        trained = [index for index in trained if index not in conversation.untrained]
        if conversation.is_turn:
            return self._last_turn(marked)
        if not trained:
            return []
        if self.template.has_generation_blocks(conversation):
            return self._generated(marked)
        turns: list[Turn] = []
        for index in trained:
            first = self._beginning(marked, index)
            turn = Turn(first, self._end(marked, index, first))
            before, last = first[0], turn.last[0]
            if (
                marked.owners(before, last) - {index}
                or index in marked.owners(0, before) | marked.owners(last)
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
        size = self._excluded(conversation)
        if any(number >= size for number in conversation.untrained):
            raise unknown_block('"train": false in a message')
        is_last = self.train_on == "last-turn"
        asks = "--train-on last-turn" if is_last else "a prompt with answers"
        if conversation.is_turn:
            size, asks = len(conversation.messages) - 1, "--turns"
        if not size:
            return generated_blocks(rendering)
        for prompt in (False, True):
            with suppress(RenderError):
                text = unmark(self._render(conversation.until(size), prompt)).text
                if rendering.text.startswith(text):
                    blocks = generated_blocks(rendering)
                    return [block for block in blocks if block.last[1] > len(text)]
        raise unknown_block(asks)

    def _last_turn(self, marked: Marked) -> list[Turn]:
        """The turn of the last message, in a document that has only that one.

        Its {% generation %} blocks, where it has some.
        """
        rendering, index = marked.rendering, len(marked.conversation.messages) - 1
        earlier = [
            number
            for number, (_, text) in enumerate(rendering.marks)
            if text >= 0 and marked.texts[text].message < index
        ]
        if self.template.has_generation_blocks(marked.conversation):
            behind = 1 + max(earlier, default=0)
            same = self._same_beginning(marked)
            return [
                block
                for block in generated_blocks(rendering)
                if block.first[0] >= behind and block.last > same
            ]
        first = self._behind_prompt(marked, index)
        at_text = first is None
        if first is None:
            try:
                first = self._beginning(marked, index)
            except RenderError:
                first = _first_text(marked, index)
        if first is None or any(number >= first[0] for number in earlier):
            raise RenderError(f"cannot find where message {index} begins; {ADVICE}")
        last = self._end(marked, index, first)
        return [Turn(first, last, at_text)] if first < last else []

    def _end(self, marked: Marked, index: int, first: Place) -> Place:
        """End of the turn of message `index`. first: its beginning."""
        rendering, messages = marked.rendering, marked.conversation.messages
        part = marked.conversation.until(index + 1)
        later = messages[index + 1 :]
        until = marked.read(self._render(part)) if later else rendering
        ends = [ending(rendering, until, rendering)] if later else []
        is_last = not ends or (ends[0] is not None and ends[0].place[0] == len(rendering.marks))
        # What begins a message of the assistant may be a prompt that is always written.
        if is_last or later[0]["role"] in ASSISTANT_ROLES:
            ends.append(ending(until, until, self._followed(part, marked)))
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

    def _followed(self, part: Conversation, marked: Marked) -> Unmarked | None:
        """The rendering of a part of a conversation that another message follows.

        None if the template does not write that message, whose mark is the first free one.
        """
        mark = numbered(len(marked.texts))
        follower: Message = {"role": "user", "content": mark}
        result: Message = {"role": "tool", "content": mark, "tool_call_id": "callprobe"}
        is_call = bool(part.messages[-1].get("tool_calls"))
        for message in (result, follower) if is_call else (follower, result):
            with suppress(RenderError):
                text = self._render(replace(part, messages=[*part.messages, message]))
                if mark in text:
                    return marked.read(text)
        return None

    def _same_beginning(self, marked: Marked) -> Place:
        """Place up to which the rendering of the earlier messages is the same.

        The blocks of earlier turns end before it, unless the template writes earlier turns again.
        """
        try:
            earlier = unmark(self._render(marked.conversation.until(-1)))
        except RenderError:
            return 0, 0
        rendering = marked.rendering
        characters = len(commonprefix([rendering.text, earlier.text]))  # noqa: RUF071
        marks = sum(
            one == other and one[0] <= characters
            for one, other in zip(rendering.marks, earlier.marks, strict=False)
        )
        return marks, characters

    def _behind_prompt(self, marked: Marked, index: int) -> Place | None:
        """The end of the generation prompt of message `index`; None if another text is there.

        A prompt that ends with an empty thought is not the beginning of a thought with text: the
        literals around it are the same, but its mark lies inside.
        """
        try:
            prompt = marked.read(self._render(marked.conversation.until(index), prompt=True))
        except RenderError:
            return None
        rendering = marked.rendering
        before, size = len(prompt.marks), len(prompt.text)
        same = rendering.text.startswith(prompt.text) and rendering.marks[:before] == prompt.marks
        inside = any(position < size for position, _ in rendering.marks[before:])
        return (before, size) if same and not inside else None

    def _render(self, conversation: Conversation, prompt: bool = False) -> str:
        return self.template.render(conversation, add_generation_prompt=prompt, marked=True)

    def _beginning(self, marked: Marked, index: int) -> Place:
        """Beginning of a turn: after all earlier messages and the generation prompt."""
        bound = f"where message {index} begins"
        rendering, earlier = marked.rendering, marked.conversation.until(index)
        try:
            prompted = self._render(earlier, prompt=True)
        except RenderError as error:
            if index > 0:
                raise RenderError(f"cannot find {bound}: {error}; {ADVICE}") from None
            return self._first_beginning(marked, bound)
        try:
            return end_in(rendering, marked.read(prompted), bound)
        except RenderError as error:
            written = [marked.texts[number] for _, number in rendering.marks if number >= 0]
            thinks = any((text.message, text.field) == (index, "reasoning") for text in written)
            if not thinks and (opening := self._opening(marked.conversation, index)) is not None:
                return end_in(rendering, marked.read(self._render(earlier) + opening), bound)
            raise (self._other_opening(marked, index, prompted) or error) from None

    def _opening(self, marked: Conversation, index: int) -> str | None:
        """The part of the generation prompt that begins message `index` in the conversation.

        None unless the template's own text there is exactly that. With enable_thinking false,
        Qwen3's prompt ends with an empty thought, which only the last turn has: the others open
        with "<|im_start|>assistant" alone.
        """
        bare = [without_keys(message, THOUGHT_KEYS) for message in marked.messages]
        blank, texts = with_texts(
            replace(marked, messages=bare), lambda number, _: numbered(number)
        )
        earlier = blank.until(index)
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

    def _other_opening(self, marked: Marked, index: int, prompted: str) -> RenderError | None:
        """The error for a message that does not begin as the generation prompt ends.

        None if the end of the earlier messages cannot be found either.
        """
        without = self._render(marked.conversation.until(index))
        prompt = unmark(prompted).text.removeprefix(unmark(without).text)
        try:
            _, start = end_in(marked.rendering, marked.read(without), "")
        except RenderError:
            return None
        opening = marked.rendering.text[start : start + len(prompt)]
        if not prompt or opening == prompt:
            return None
        message = marked.conversation.messages[index]
        advice = ADVICE
        if "reasoning_content" in message or "</think>" in str(message.get("content")):
            advice = (
                "remove the reasoning from the row, or set enable_thinking to true, or " + ADVICE
            )
        return RenderError(
            f"message {index} does not begin with the template's generation prompt: the prompt is "
            f"{prompt[-_SHOWN:]!r}, the template renders {opening[-_SHOWN:]!r} there; {advice}"
        )

    def _first_beginning(self, marked: Marked, bound: str) -> Place:
        """Beginning of message 0, for a template that cannot render zero messages.

        It is after the generation prompt, which must occur before the message's own text.
        """
        first, rendering = marked.conversation.until(1), marked.rendering
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

    def _generated(self, marked: Marked) -> list[Turn]:
        """Spans of the trained {% generation %} blocks."""
        size, least = self._excluded(marked.conversation), 0
        if size:
            marks_of_last = [
                number
                for number, (_, text) in enumerate(marked.rendering.marks)
                if text >= 0 and marked.texts[text].message == size - 1
            ]
            if not marks_of_last:
                raise RenderError(
                    "cannot find where the trained messages begin: the template leaves out message "
                    f"{size - 1}; choose --train-on all, or another template (--chat-template)"
                )
            least = marks_of_last[-1] + 1
        return without(generated_blocks(marked.rendering), marked, size, least)

    def _excluded(self, conversation: Conversation) -> int:
        """Number of the first messages of which none is trained.

        They are those before the last turn, if only that is trained, and a prompt with answers.
        """
        size = 0
        if self.train_on == "last-turn":
            roles = [message["role"] for message in conversation.messages]
            size = trained_messages(roles, self.train_on)[1] + 1
        return max(size, conversation.prompt)


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


def _first_text(marked: Marked, index: int) -> Place | None:
    """Beginning of the first text of message `index` that the template writes."""
    for before, (position, number) in enumerate(marked.at_ends.marks):
        if number < 0 or marked.texts[number].message != index:
            continue
        text = marked.texts[number].text
        for form in (text, text.strip(), text.lstrip(), text.rstrip()):
            if marked.at_ends.text[:position].endswith(form):
                return before, position - len(form)
    return None
