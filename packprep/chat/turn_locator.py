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

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from os.path import commonprefix

from .marks import Marked, Specials, Unmarked, numbered, unmark, with_texts
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
        conversation, owners = marked.conversation, marked.owners
        trained = {*self._trained(conversation)} - {*conversation.untrained}
        if conversation.is_turn:
            return self._last_turn(marked)
        if not trained:
            return []
        if self.template.has_generation_blocks(conversation):
            return self._generated(marked)
        turns: list[Turn] = []
        for index in sorted(trained):
            first = self._beginning(marked, index)
            turn = Turn(first, self._end(marked, index, first))
            before, last = first[0], turn.last[0]
            if (
                {*owners[before:last]} - {index}
                or index in owners[:before] + owners[last:]
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
        size = len(conversation.messages) - 1
        size = size if conversation.is_turn else self._excluded(conversation)
        blocks = generated_blocks(rendering)
        if max(conversation.untrained, default=-1) < size:
            with suppress(RenderError):
                text = unmark(self._render(conversation.until(size))).text if size else ""
                if rendering.text.startswith(text):
                    return [block for block in blocks if block.last[1] > len(text)]
        raise RenderError(
            "the template measures or changes the texts of messages, so it is not known which "
            "message each of its {% generation %} blocks is of; train them all, without --turns, "
            '--train-on last-turn and "train": false, or give another template by --chat-template'
        )

    def _last_turn(self, marked: Marked) -> list[Turn]:
        """The turn of the last message, in a document that has only that one.

        Its {% generation %} blocks, where it has some.
        """
        rendering, index = marked.rendering, len(marked.conversation.messages) - 1
        earlier = [mark for mark, owner in enumerate(marked.owners) if 0 <= owner < index]
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
        if at_text:
            first = _first_text(marked, index)
            with suppress(RenderError):
                first = self._beginning(marked, index)
        if first is None or any(mark >= first[0] for mark in earlier):
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
            else self._ends.size(end, skipped, rendering, first[1], is_last=not later)
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
        whole = marked.rendering
        with suppress(RenderError):
            earlier = unmark(self._render(marked.conversation.until(-1)))
            # Of marks and of characters, not of paths.
            marks = commonprefix([whole.marks, earlier.marks])  # noqa: RUF071
            return len(marks), len(commonprefix([whole.text, earlier.text]))  # noqa: RUF071
        return 0, 0

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
        rendering, earlier = marked.rendering, marked.conversation.until(index)
        message, advice = marked.conversation.messages[index], ADVICE
        try:
            prompted = marked.read(self._render(earlier, prompt=True))
        except RenderError as error:
            place, why = None if index else self._first_beginning(marked), str(error)
        else:
            place, tail = end_in(rendering, prompted), prompted.pieces[-1][-_SHOWN:]
            written = [marked.texts[number] for _, number in rendering.marks if number >= 0]
            thinks = any((text.message, text.field) == (index, "reasoning") for text in written)
            if place is None and not thinks and (opening := self._opening(marked, index)):
                place = end_in(rendering, marked.read(self._render(earlier) + opening))
            why = f"the template does not write the end of its generation prompt there, {tail!r}"
            if "reasoning_content" in message or "</think>" in str(message.get("content")):
                advice = (
                    f"remove the reasoning from the row, set enable_thinking to true, or {ADVICE}"
                )
        if place is None:
            raise RenderError(f"cannot find where message {index} begins: {why}; {advice}")
        return place

    def _opening(self, marked: Marked, index: int) -> str | None:
        """The part of the generation prompt that begins message `index` in the conversation.

        None unless the template's own text there is exactly that. With enable_thinking false,
        Qwen3's prompt ends with an empty thought, which only the last turn has: the others open
        with "<|im_start|>assistant" alone.
        """
        bare = [
            {key: item for key, item in message.items() if key not in THOUGHT_KEYS}
            for message in marked.conversation.messages
        ]
        conversation = replace(marked.conversation, messages=bare)
        blank, texts = with_texts(conversation, lambda number, _: numbered(number))
        earlier = blank.until(index)
        with suppress(RenderError):
            whole, end = unmark(self._render(blank)), unmark(self._render(earlier))
            prompt, closing = unmark(self._render(earlier, True)).pieces[-1], end.pieces[-1]
            pairs = pairwise(number for _, number in whole.marks)
            for (before, number), literal in zip(pairs, whole.pieces, strict=False):
                is_there = before == end.marks[-1][1] and texts[number].message == index
                is_part = literal.startswith(closing) and prompt.startswith(literal)
                if is_there and is_part and closing != literal != prompt:
                    return literal.removeprefix(closing)
        return None

    def _first_beginning(self, marked: Marked) -> Place | None:
        """Beginning of message 0, for a template that cannot render zero messages.

        It is after the generation prompt, which must occur before the message's own text.
        """
        first = marked.conversation.until(1)
        prompt = self._render(first, prompt=True).removeprefix(self._render(first))
        start = marked.rendering.pieces[0].find(prompt)
        return (1, start + len(prompt)) if prompt and start >= 0 else None

    def _generated(self, marked: Marked) -> list[Turn]:
        """Spans of the trained {% generation %} blocks."""
        size, least = self._excluded(marked.conversation), 0
        if size:
            before = [mark for mark, owner in enumerate(marked.owners) if owner == size - 1]
            if not before:
                raise RenderError(
                    "cannot find where the trained messages begin: the template leaves out message "
                    f"{size - 1}; choose --train-on all, or another template (--chat-template)"
                )
            least = before[-1] + 1
        return without(generated_blocks(marked.rendering), marked, size, least)

    def _excluded(self, conversation: Conversation) -> int:
        """Number of the first messages of which none is trained.

        They are those before the last turn, if only that is trained, and a prompt with answers.
        """
        is_last = self.train_on == "last-turn"
        return max([*self._trained(conversation)[:is_last], conversation.prompt])

    def _trained(self, conversation: Conversation) -> list[int]:
        """Numbers of the messages that the option trains.

        The last turn is everything that the assistant says after the last message that is neither
        its own nor a tool's.
        """
        roles = [message["role"] for message in conversation.messages]
        trained = [index for index, role in enumerate(roles) if role in ASSISTANT_ROLES]
        if self.train_on == "last-turn" and trained:
            answers = ASSISTANT_ROLES | TOOL_ROLES
            asked = [index for index in range(trained[-1]) if roles[index] not in answers]
            trained = [index for index in trained if index > max(asked, default=-1)]
        return [] if self.train_on == "all" else trained


def _first_text(marked: Marked, index: int) -> Place | None:
    """Beginning of the first text of message `index` that the template writes."""
    rendering = marked.rendering.at_ends
    for before, (position, number) in enumerate(rendering.marks):
        if number < 0 or marked.texts[number].message != index:
            continue
        text = marked.texts[number].text
        for form in (text, text.strip(), text.lstrip(), text.rstrip()):
            if rendering.text[:position].endswith(form):
                return before, position - len(form)
    return None
