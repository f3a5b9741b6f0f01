"""Fields of the assistant's messages inside trained turns, for `--train-fields`.

The text that the template itself writes belongs to a field too:

- What is around reasoning, such as `<think>` and `</think>`, belongs to it, as does an empty
  thought.
- What introduces tool calls, after the answer or the reasoning, belongs to the calls.
- The rest, the end-of-turn token included, belongs to the last field that the turn writes.

Between reasoning and tool calls without an answer, the text that the template also writes between
reasoning and an answer belongs to the reasoning.

All of it is found by marks (see `marks`). A row in which a bound cannot be found, and matters for
the chosen fields, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from packprep.chat.conversations import ASSISTANT_ROLES, Conversation, Message, without_keys
from packprep.chat.marks import Marked, numbered
from packprep.chat.special_tokens import Specials
from packprep.chat.template import ChatTemplate, RenderError
from packprep.chat.turn_bounds import Place, Turn
from packprep.config.grammar.option import TRAIN_FIELDS

_OPEN, _CLOSE = "<think>", "</think>"


class _Run(NamedTuple):
    """Neighbouring texts of one field. start: None if it is not known."""

    field: str
    start: Place | None
    end: Place


class FieldSelector:
    """Cuts trained turns down to the chosen fields of their messages."""

    def __init__(self, template: ChatTemplate, specials: Specials, fields: Collection[str]) -> None:
        self.template = template
        self.fields = frozenset(fields)
        self.takes_all = self.fields >= {*TRAIN_FIELDS}
        self._tokens = specials

    def select(self, turns: list[Turn], marked: Marked) -> list[Turn]:
        """The parts of the turns that belong to chosen fields.

        Raises RenderError where the bounds of a field cannot be found.
        """
        return (
            turns
            if self.takes_all
            else [part for turn in turns for part in self._parts(turn, marked)]
        )

    def _parts(self, turn: Turn, marked: Marked) -> Iterator[Turn]:
        places = [*self._bounds(turn, marked), (turn.last, "")]
        begin = None
        for place, field in places:
            if field in self.fields and begin is None:
                begin = place
            elif field not in self.fields and begin is not None:
                if begin[1] < place[1] or begin[0] < place[0]:
                    yield Turn(begin, place, turn.at_text)
                begin = None

    def _bounds(self, turn: Turn, marked: Marked) -> list[tuple[Place, str]]:
        """Places in a turn from which on its text belongs to a field."""
        index, runs = self._runs(turn, marked)
        bounds = [(turn.first, runs[0].field)]
        if not self._alike("reasoning", runs[0].field):
            thought = self._empty_thought(turn, index, runs[0], marked)
            if thought is not None:
                bounds = [(turn.first, "reasoning"), (thought, runs[0].field)]
        for before, after in pairwise(runs):
            place: Place | None = before.end
            if not self._alike(before.field, after.field):
                if after.field == "content":
                    place = after.start
                elif before.field != "content":
                    place = self._between(index, before, after, marked)
            if place is None:
                raise _no_bound(index, before.field, after.field)
            bounds.append((place, after.field))
        return bounds

    def _alike(self, *fields: str) -> bool:
        """True if all of the fields are chosen, or none."""
        return len({field in self.fields for field in fields}) == 1

    def _runs(self, turn: Turn, marked: Marked) -> tuple[int, list[_Run]]:
        """Number of the turn's message, and its fields in the order of the rendering."""
        runs: list[_Run] = []
        indexes = set()
        for before in range(turn.first[0], turn.last[0]):
            position, number = marked.at_ends.marks[before]
            if number < 0:
                raise RenderError(f"cannot find the fields of a turn; {_ADVICE}")
            text = marked.texts[number]
            indexes.add(text.message)
            role = marked.conversation.messages[text.message]["role"]
            field = role if role == "tool_calls" else text.field
            starts = marked.starts
            begin = position if starts is None else starts.get(number)
            end = before + 1, position
            if runs and runs[-1].field == field:
                runs[-1] = runs[-1]._replace(end=end)
            else:
                runs.append(_Run(field, None if begin is None else (before, begin), end))
        if len(indexes) > 1:
            raise RenderError(
                f"a turn of the template holds messages {' and '.join(map(str, sorted(indexes)))}, "
                f"whose fields cannot be told apart; {_ADVICE}"
            )
        index = indexes.pop() if indexes else _message_behind(turn, marked)
        message = marked.conversation.messages[index]
        runs = runs or [
            _Run(
                message["role"] if message["role"] == "tool_calls" else "content",
                turn.first,
                turn.first,
            )
        ]
        if (
            message.get("tool_calls")
            and "tool_calls" not in [run.field for run in runs]
            and not self._alike("tool_calls", runs[-1].field)
            and self._writes_calls(index, marked)
        ):
            raise _no_bound(index, runs[-1].field, "tool_calls")
        return index, runs

    def _writes_calls(self, index: int, marked: Marked) -> bool:
        """True if the rendering of a message differs without its tool calls."""
        *earlier, message = marked.conversation.messages[: index + 1]
        bare = without_keys(message, ("tool_calls",))
        try:
            return self._render(marked, [*earlier, message]) != self._render(
                marked, [*earlier, bare]
            )
        except RenderError:
            return True

    def _empty_thought(self, turn: Turn, index: int, run: _Run, marked: Marked) -> Place | None:
        """End of an empty thought at the beginning of a turn; None if the turn has none."""
        text, (_, begin) = marked.at_ends.text, turn.first
        stop = run.start if run.field == "content" else run.end
        if stop is not None and not text[begin : stop[1]].strip():
            return None
        around = self._around_thought(index, marked)
        if around is None:
            return None
        position, number = marked.at_ends.marks[turn.first[0] - 1]
        header = text[position:begin]
        if stop is None or around.number != number or not around.opening.startswith(header):
            raise _no_bound(index, "reasoning", run.field)
        lead, opening = text[begin : stop[1]], around.opening.removeprefix(header)
        if lead.startswith(opening):
            rest = lead.removeprefix(opening)
            closing = (
                around.closing if run.field == "content" else self._common(around.closing, rest)
            )
            if closing.strip() and rest.startswith(closing):
                size = len(opening) + len(closing)
                if run.field != "content" or not lead[size:].strip():
                    return turn.first[0], begin + size
            if opening.strip() or run.field == "content":
                raise _no_bound(index, "reasoning", run.field)
        return None

    def _between(self, index: int, before: _Run, after: _Run, marked: Marked) -> Place | None:
        """Place between reasoning and the tool calls after it; None if it is not known."""
        around = self._around_thought(index, marked)
        if around is None or before.field != "reasoning":
            return None
        marks, end = before.end
        closing = self._common(around.closing, marked.at_ends.text[end : after.end[1]])
        return (marks, end + len(closing)) if closing else None

    def _common(self, closing: str, text: str) -> str:
        """The longest beginning of `closing` that `text` begins with.

        It is made of whole special tokens and whole texts between them.
        """
        cuts = sorted(
            {cut for span in self._tokens.spans(closing) for cut in span} | {len(closing)}
        )
        return max(
            (closing[:cut] for cut in cuts if text.startswith(closing[:cut])), key=len, default=""
        )

    def _around_thought(self, index: int, marked: Marked) -> _Around | None:
        """The template's text around the reasoning of message `index`, with an answer after it.

        None if the template does not write reasoning right before an answer.
        """
        thought, answer = len(marked.texts), len(marked.texts) + 1
        *earlier, message = marked.conversation.messages[: index + 1]
        probe: Message = {
            "role": message["role"],
            "reasoning_content": numbered(thought),
            "thinking": numbered(thought),
            "content": numbered(answer),
        }
        try:
            rendering = marked.read(self._render(marked, [*earlier, probe])).at_text_ends()
        except RenderError:
            return None
        for (start, number), (position, first), (stop, second) in zip(
            rendering.marks, rendering.marks[1:], rendering.marks[2:], strict=False
        ):
            if (first, second) == (thought, answer):
                text = rendering.text
                return _Around(number, text[start:position], text[position:stop])
        return None

    def _render(self, marked: Marked, messages: list[Message]) -> str:
        return self.template.render(replace(marked.conversation, messages=messages), marked=True)


class _Around(NamedTuple):
    """The template's text around a thought. number: of the text before it."""

    number: int
    opening: str
    closing: str


_ADVICE = "leave out --train-fields, or skip such rows"


def _no_bound(index: int, before: str, after: str) -> RenderError:
    return RenderError(
        f"cannot find where the {before} of message {index} ends and its {after} begins in the "
        f"template's text, but --train-fields has only one of them; name both or neither"
    )


def _message_behind(turn: Turn, marked: Marked) -> int:
    """Number of the message of a turn without texts."""
    _, number = marked.at_ends.marks[turn.first[0] - 1]
    before = marked.texts[number].message if number >= 0 else -1
    return min(before + 1, len(marked.conversation.messages) - 1)


def with_thoughts_apart(
    conversation: Conversation, is_same: Callable[[Conversation], bool]
) -> Conversation:
    """The conversation with reasoning that begins a content in a field of its own.

    Only where `is_same`: the template writes the same text then. Elsewhere reasoning is content.

    Example: content "<think>a</think>b" -> reasoning_content "a", content "b"
    """
    thinking = {
        number: apart
        for number, message in enumerate(conversation.messages)
        if (apart := _apart(message)) is not None
    }
    groups = [[*thinking], *([number] for number in thinking if len(thinking) > 1)]
    for numbers in groups if thinking else ():
        messages = [
            thinking[number] if number in numbers else message
            for number, message in enumerate(conversation.messages)
        ]
        changed = replace(conversation, messages=messages)
        if is_same(changed):
            conversation = changed
            if len(numbers) == len(thinking):
                break
    return conversation


def _apart(message: Message) -> Message | None:
    """The message with its thought apart; None if its content begins with none."""
    content = message.get("content")
    if (
        message["role"] not in ASSISTANT_ROLES
        or "reasoning_content" in message
        or not isinstance(content, str)
    ):
        return None
    opening, closed, answer = content.partition(_CLOSE)
    before, _, thought = opening.rpartition(_OPEN)
    if not closed or before.strip() or not thought.strip():
        return None
    thought = thought.strip("\n")
    return message | {
        "reasoning_content": thought,
        "thinking": thought,
        "content": answer.lstrip("\n"),
    }
