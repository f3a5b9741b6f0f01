"""Which characters of a rendered conversation are trained, and which special tokens in it the template wrote.

A turn is trained from the end of everything before it rendered with add_generation_prompt=True up to its end-of-turn
token, that token included. Templates with {% generation %} say it themselves. For the others a second rendering has
marks behind the texts of the messages: what follows the last mark of the conversation up to a turn, generation prompt
included, must follow the same mark in the whole conversation, and there the turn begins. It is exact or it is refused:
a marked rendering counts only if it is the plain one without its marks. (Growing prefixes as such are not exact:
Qwen3's template drops earlier thinking, Mistral's moves the system message.)

Most rows need one rendering. The conversation with each text replaced by a mark, its form, is rendered once for all
rows that share it; filled with the texts of a row it must give the plain rendering of the row, or that row is marked.

Message text has no special tokens, whatever it spells: only those in the template's own text count. Where a row spells
one, or tools or calls hold a part of one, a rendering in which it is broken by marks tells whose each one is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import accumulate
from typing import Literal

from packprep.chat import ChatTemplate, RenderError
from packprep.conversations import ASSISTANT_ROLES, TOOL_ROLES, Conversation
from packprep.marks import MARKS, Unmarked, numbered, unmark, with_texts
from packprep.specials import Span, Specials, everywhere, strings_beside

TrainOn = Literal["all", "assistant", "last-turn"]

_FORMS = 1024  # forms remembered; a corpus of plain chats has one for each number of messages
_ADVICE = "give a template with {% generation %} by --chat-template, or --train-on all"


@dataclass(frozen=True)
class Rendered:
    """Text of a conversation. trained: character spans, rising; None when everything is.

    specials: spans of the special tokens that the template wrote, where the text spells others too; None where every
    one that it spells is the template's.
    """

    text: str
    trained: list[Span] | None
    specials: list[Span] | None


@dataclass(frozen=True)
class _Turn:
    """Positions in the text of an unmarked rendering, each with the number of marks before it."""

    first: tuple[int, int]
    last: tuple[int, int]


@dataclass(frozen=True)
class _Form:
    """A rendering of a conversation whose texts are marks: the template's own text, and the order of the others.

    specials: where the template's special tokens are, with the number of marks before each.
    """

    unmarked: Unmarked
    turns: list[_Turn]
    specials: list[tuple[int, Span]]

    @property
    def names(self) -> list[str]:
        """The special tokens in order."""
        return [self.unmarked.text[a:b] for _, (a, b) in self.specials]

    def place(self, text: str, texts: Sequence[str]) -> tuple[list[Span], list[Span]] | None:
        """Trained spans and the template's special tokens in a rendering; None if it is not this form, filled."""
        order = [number for _, number in self.unmarked.marks[1:]]
        literals = [
            self.unmarked.text[a:b] for (a, _), (b, _) in zip(self.unmarked.marks, _ends(self.unmarked), strict=True)
        ]
        for values in (texts, [value.strip() for value in texts]):
            filled = [values[number] for number in order]
            if "".join(part for pair in zip(literals, [*filled, ""], strict=True) for part in pair) != text:
                continue
            before = [0, 0, *accumulate(map(len, filled))]
            turns = [
                (turn.first[1] + before[turn.first[0]], turn.last[1] + before[turn.last[0]]) for turn in self.turns
            ]
            return turns, [(a + before[marks], b + before[marks]) for marks, (a, b) in self.specials]
        return None


@dataclass(frozen=True)
class _Key:
    """A conversation whose texts are marks, equal to all of the same form. owners: the message of each text."""

    form: str
    conversation: Conversation = field(compare=False)
    owners: list[int] = field(compare=False)


class TurnFinder:
    """Renders conversations and finds what is trained in them. May be used by several threads at once.

    specials: every special token of the tokenizer.
    """

    def __init__(self, template: ChatTemplate, specials: Iterable[str], train_on: TrainOn = "assistant") -> None:
        self.template = template
        self.train_on = train_on
        self._tokens = Specials(specials, template.variables.get("eos_token"))
        self._form = lru_cache(_FORMS)(self._make_form)

    def render(self, conversation: Conversation) -> Rendered:
        """Raises RenderError where the template fails, or what is trained or whose token it is cannot be told."""
        text = self.template.render(conversation)
        if found := MARKS.search(text):
            raise RenderError(f"its text has U+{ord(found[0]):04X}, which is no character; take it out")
        blank, texts = with_texts(conversation, lambda number, _: numbered(number))
        beside = json.dumps([blank.messages, blank.tools, dict(blank.variables)], ensure_ascii=False, default=repr)
        form = self._form(_Key(beside, blank, [message for message, _ in texts]))
        suspicious = any(map(self._tokens.may_take_part, strings_beside(blank)))
        placed = form.place(text, [value for _, value in texts]) if form and not suspicious else None
        if placed is not None:
            trained, own = placed
        else:
            own = self._own_specials(conversation, text, form if not suspicious else None)
            trained = self._spans(conversation, text) if self.train_on != "all" else []
        spelled = [found.span() for found in self._tokens.pattern.finditer(text)]
        return Rendered(text, trained if self.train_on != "all" else None, None if spelled == own else own)

    def _make_form(self, key: _Key) -> _Form | None:
        """The form of a conversation, or None where the template does not take it or its turns cannot be told."""
        try:
            whole = unmark(self._render(key.conversation))
            turns = self._turns(key.conversation, whole, key.owners, lambda part: part)
        except RenderError:
            return None
        specials = []
        for before, ((start, _), (stop, _)) in enumerate(zip(whole.marks, _ends(whole), strict=True), 1):
            specials += [(before, (start + a, start + b)) for a, b in self._tokens.spans(whole.text[start:stop])]
        return _Form(whole, turns, specials)

    def _render(self, conversation: Conversation, prompt: bool = False) -> str:
        return self.template.render(conversation, add_generation_prompt=prompt, marked=True)

    def _spans(self, conversation: Conversation, text: str) -> list[Span]:
        """The trained spans of one conversation, by marks in its own texts: behind each, or else in its middle.

        In the middle because a template may look at how a text begins or ends.
        """
        for at in (_behind_text, _inside_text):
            changed, texts = with_texts(conversation, partial(_marked, at))
            moved = partial(_moved, rests=[value[at(value) :] for _, value in texts])
            whole = unmark(self._render(changed))
            if whole.text == text:
                turns = self._turns(changed, moved(whole), [message for message, _ in texts], moved)
                return [(turn.first[1], turn.last[1]) for turn in turns]
        raise RenderError(f"what is trained cannot be told: the template changes what it is given; {_ADVICE}")

    def _turns(
        self, marked: Conversation, whole: Unmarked, owners: Sequence[int], moved: Callable[[Unmarked], Unmarked]
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
            try:
                before = moved(unmark(self._render(replace(marked, messages=messages[:index]), prompt=True)))
            except RenderError as error:
                raise RenderError(f"where message {index} begins cannot be told: {error}; {_ADVICE}") from None
            upto = whole
            if index < len(messages) - 1:
                upto = moved(unmark(self._render(replace(marked, messages=messages[: index + 1]))))
            first = _behind(whole, before, f"where message {index} begins")
            last = _behind(whole, upto, f"where message {index} ends")
            turn = _Turn(first, self._end_of_turn(whole, first, last, index))
            inside = {owners[number] for position, number in whole.marks[first[0] : last[0]]}
            outside = {
                owners[number]
                for at, (_, number) in enumerate(whole.marks)
                if not first[0] <= at < last[0] and number >= 0
            }
            if inside - {index} or index in outside or (turns and turns[-1].last[1] > first[1]):
                raise RenderError(f"the template mixes message {index} with others; {_ADVICE}")
            turns.append(turn)
        return turns

    def _end_of_turn(
        self, whole: Unmarked, first: tuple[int, int], last: tuple[int, int], index: int
    ) -> tuple[int, int]:
        """Behind the token that closes a turn: the last special one in it, in the template's own text."""
        start = max(first[1], whole.marks[last[0] - 1][0])
        ends = self._tokens.ends(whole.text[start : last[1]])
        if not ends:
            raise RenderError(
                f"the template closes message {index} with no special token, so a model never learns to stop; {_ADVICE}"
            )
        return last[0], start + ends[-1][1]

    def _generated(self, whole: Unmarked, owners: Sequence[int], after: int) -> list[_Turn]:
        """What stands in {% generation %}, from behind the message `after` on."""
        least = 0
        if after >= 0 and self.train_on == "last-turn":
            own = [at for at, (_, number) in enumerate(whole.marks) if number >= 0 and owners[number] == after]
            if not own:
                raise RenderError(
                    f"the template leaves message {after} out, so the last turn cannot be told; {_ADVICE}"
                )
            least = own[-1] + 1
        starts, stops = whole.generated[::2], whole.generated[1::2]
        turns = [
            _Turn(start, stop)
            for start, stop in zip(starts, stops, strict=True)
            if start[1] < stop[1] or start[0] < stop[0]
        ]
        return [turn for turn in turns if turn.first[0] >= least]

    def _own_specials(self, conversation: Conversation, text: str, form: _Form | None) -> list[Span]:
        """Where the template's own special tokens are in a rendering that is not just its form filled."""
        strings = [
            *strings_beside(conversation),
            *(value for _, value in with_texts(conversation, lambda _, value: value)[1]),
        ]
        if not any(map(self._tokens.may_take_part, strings)):
            return self._tokens.spans(text)
        broken = with_texts(conversation, lambda _, value: self._tokens.broken(value))[0]
        for attempt in (
            broken if form else None,
            everywhere(conversation, self._tokens.broken_up, self._tokens.may_take_part),
        ):
            if attempt is None:
                continue
            try:
                marked = unmark(self.template.render(attempt))
            except RenderError:
                continue
            if marked.text != text:
                continue
            spans = self._tokens.spans_of_pieces(marked.pieces)
            if form is None or attempt is not broken or [text[a:b] for a, b in spans] == form.names:
                return spans
        raise RenderError(
            "it spells special tokens that cannot be told from the template's own; take them out of its text"
        )


def trained_messages(roles: Sequence[str], train_on: TrainOn) -> tuple[list[int], int]:
    """Which messages are trained, and the last one before them: -1 where they begin the conversation.

    The last turn is all that the assistant says after the last message that is not its own or a tool's.
    Example: ["user", "assistant", "user", "assistant", "tool", "assistant"], "last-turn" -> [3, 5], 2
    """
    own = [index for index, role in enumerate(roles) if role in ASSISTANT_ROLES]
    if not own or train_on == "all":
        return [], -1
    if train_on == "assistant":
        return own, own[0] - 1
    answered = [index for index in range(own[-1]) if roles[index] not in ASSISTANT_ROLES | TOOL_ROLES]
    after = answered[-1] if answered else -1
    return [index for index in own if index > after], after


def _behind_text(value: str) -> int:
    return len(value.rstrip())


def _inside_text(value: str) -> int:
    return len(value) // 2


def _marked(at: Callable[[str], int], number: int, value: str) -> str:
    return value[: at(value)] + numbered(number) + value[at(value) :]


def _ends(whole: Unmarked) -> list[tuple[int, int]]:
    """Where the text behind each mark ends: at the next mark."""
    return [*whole.marks[1:], (len(whole.text), -1)]


def _behind(whole: Unmarked, part: Unmarked, what: str) -> tuple[int, int]:
    """Where the end of `part` lies in `whole`: (marks before, position)."""
    start, number = part.marks[-1]
    tail = part.text[start:]
    found = []
    for before, ((position, owner), (stop, _)) in enumerate(zip(whole.marks, _ends(whole), strict=True), 1):
        end = position + len(tail)
        if owner == number and end <= stop and whole.text.startswith(tail, position):
            found.append((before, end))
    if len(found) != 1:
        raise RenderError(
            f"{what} cannot be told: the template renders a part of the conversation otherwise; {_ADVICE}"
        )
    return found[0]


def _moved(unmarked: Unmarked, rests: Sequence[str]) -> Unmarked:
    """Marks moved over the rest of their texts, to the end; one behind which its text goes on otherwise is left out."""
    marks = []
    for position, number in unmarked.marks:
        rest = rests[number] if number >= 0 else ""
        for ending in (rest, rest.rstrip()):
            if unmarked.text.startswith(ending, position):
                marks.append((position + len(ending), number))
                break
    return replace(unmarked, marks=marks)
