"""Renders conversations, and finds what is trained and which special tokens the template wrote.

`turn_locator` says where a turn begins and ends. Its result is exact, or the row is refused: a
marked rendering counts only if it equals the plain rendering once its marks are removed.

Most rows need one rendering. Their form, the conversation with a mark in place of each text, is
rendered once for all rows that share it; a row that does not fit its form is marked by itself.

Text of a message has no special tokens, whatever it spells: only those in the template's own text
count. Where a row spells one, or tools or calls contain part of one, a rendering with marks inside
these strings shows which tokens are the template's.

Many templates leave out text, such as the reasoning of earlier turns. The rows are then trained
without it. Nothing is lost from the rendering, so the account of tokens cannot show it; it is
counted apart, under the key of the message. White space does not count: templates strip it, and put
their own between reasoning and answer.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, product
from typing import NamedTuple

from .marks import (
    GENERATED,
    MARKS,
    NUMBERED,
    UNTOUCHED,
    Marked,
    Specials,
    Unmarked,
    numbered,
    strings,
    thought_keys,
    unmark,
    with_strings,
    with_texts,
)
from .template import ChatTemplate
from .turn_bounds import ADVICE, Place, Turn
from .turn_locator import TurnLocator
from .types import (
    ASSISTANT_ROLES,
    TOOL_ROLES,
    Conversation,
    Document,
    MessageText,
    Piece,
    RenderError,
    Span,
    TrainOn,
)

_NO_CHARACTER = re.compile("[\ufdd0-\ufddd\ud800-\udfff]")
_SHAPES = json.JSONEncoder(default=repr)
_FORMS = 1024  # cached forms; a corpus of plain chats has one for each number of messages
_Bounds = list[int] | None


@dataclass(frozen=True, eq=False)
class Form:
    """The shape of conversations that differ in texts that are not blank, rendered once for all.

    blank: a conversation with a mark in place of each text. specials: spans of the template's
    special tokens, each with the number of marks before it. left_out: numbers of the texts that it
    does not write; others: texts of other keys of messages.
    """

    blank: Conversation
    rendering: Unmarked
    turns: list[Turn]
    specials: list[tuple[int, Span]]
    left_out: list[int]
    others: list[MessageText]

    def fill(self, text: str, texts: Sequence[MessageText]) -> "Filled | None":
        """The form with the texts of a row.

        Returns None if `text` is not this form with these texts, whole or stripped by the template,
        or white space could be of a text or of the template.
        """
        literals = self.rendering.literals
        values = [texts[number].text for _, number in self.rendering.marks[1:]]
        pairs = zip(literals, [*values, ""], strict=True)
        if "".join(chain.from_iterable(pairs)) != text:
            if not text.startswith(literals[0]):
                return None
            position, whole, values = len(literals[0]), values, []
            for value, literal in zip(whole, literals[1:], strict=True):
                forms = _stripped(value)
                fitting = {each for each in forms if text.startswith(each + literal, position)}
                if len(fitting) != 1:
                    return None
                values.append(fitting.pop())
                position += len(values[-1]) + len(literal)
            if position != len(text):
                return None
        return Filled(self, texts, [0, 0, *accumulate(map(len, values))])


class Filled(NamedTuple):
    """A form with the texts of a row.

    before: characters of texts in the row's rendering before each mark, and after the last one.
    """

    form: Form
    texts: Sequence[MessageText]
    before: list[int]

    @property
    def bounds(self) -> list[int]:
        """Places in the row's rendering of the bounds of {% generation %} blocks."""
        return [place + self.before[marks] for marks, place in self.form.rendering.generated]


def _stripped(value: str) -> set[str]:
    """A text as templates write it."""
    both, line = value.strip(), value.strip("\n")
    return {value, both, value.lstrip(), value.rstrip(), value.lstrip("\n"), line}


class Finder:
    """Renders conversations by a template and finds what is trained in them.

    specials: every special token of the tokenizer. Several threads may use it at once.
    """

    def __init__(self, template: ChatTemplate, specials: Iterable[str], train_on: TrainOn) -> None:
        self.template = template
        self.train_on = train_on
        self.tokens = Specials(specials, template.eos)
        self._locator = TurnLocator(template, self.tokens, train_on)
        self._forms: dict[str, Form | None] = {}

    def render(self, conversation: Conversation, text: str | None = None) -> Document:
        """The text of a conversation as a document of one piece.

        conversation: with arguments of calls as the template takes them. text: its rendering, if it
        is known. Raises RenderError where the template fails, or where trained text or the
        template's own special tokens cannot be found.
        """
        off = [number for number in conversation.untrained if number >= conversation.prompt]
        if self.train_on == "all" and off:
            raise RenderError(
                f"the row takes message {off[0]} out of what is trained, but --train-on all trains "
                "everything; choose --train-on assistant"
            )
        text = self.template.render(conversation) if text is None else text
        if not text.isascii() and (mark := _NO_CHARACTER.search(text)):
            what = f"its text has U+{ord(mark[0]):04X}"
            raise RenderError(f"{what}, which is not a character; remove it")
        bounds, filled = self._bounds(conversation), self.filled(conversation, text)
        if filled is None or bounds not in (None, filled.bounds):
            return self._by_itself(conversation, text, bounds)
        form, texts, before = filled
        own = [(a + before[marks], b + before[marks]) for marks, (a, b) in form.specials]
        specials = None if own == self.tokens.spans(text) else own
        gone = [texts[number] for number in form.left_out if texts[number].text.strip()]
        return self._document(text, form.turns, specials, sorted(gone + form.others), before)

    def _bounds(self, conversation: Conversation) -> _Bounds:
        """Bounds of {% generation %} blocks in the rendering without marks in texts.

        A template may ask what a text says, and choose a block or none by it. None where a template
        has no blocks, or nothing depends on them.
        """
        if self.train_on == "all" or not self.template.has_generation_blocks(conversation):
            return None
        return unmark(self.template.render(conversation, marked=True)).bounds

    def filled(self, conversation: Conversation, text: str) -> Filled | None:
        """The form that a rendering fills.

        None if every such row has its own form, or where something beside the texts could take
        part in a special token.
        """
        if any("tool_calls" in message for message in conversation.messages):
            return None
        blank, texts = with_texts(conversation, as_mark)
        beside = [*blank.untrained], blank.is_turn, blank.prompt, dict(blank.variables)
        shape = _SHAPES.encode([blank.messages, blank.tools, beside])
        try:
            form = self._forms[shape]
        except KeyError:
            if len(self._forms) >= _FORMS:
                self._forms.clear()
            form = self._forms[shape] = self._make_form(blank, texts)
        return None if form is None else form.fill(text, texts)

    def _document(
        self,
        text: str,
        turns: Sequence[Turn],
        specials: list[Span] | None,
        gone: list[MessageText],
        before: Sequence[int] | None = None,
    ) -> Document:
        """before: characters to add to each place by the number of marks before it."""

        def position(place: Place) -> int:
            return place[1] + (before[place[0]] if before else 0)

        spans = [(position(turn.first), position(turn.last)) for turn in turns]
        trained = None if self.train_on == "all" else spans
        at_text = any(turn.at_text for turn in turns)
        return Document([Piece(text, None, trained, specials)], gone, at_text)

    def _make_form(self, blank: Conversation, texts: Sequence[MessageText]) -> Form | None:
        """The form of a conversation; None if it is risky, fails, or its turns are not found."""
        if any(map(self.tokens.is_risky, strings(blank))):
            return None
        empty = [text._replace(text="") for text in texts]
        try:
            marked = Marked(blank, empty, self.template.render(blank, marked=True))
            turns = self._locator.locate(marked)
        except RenderError:
            return None
        rendering = marked.rendering
        places = enumerate(zip(rendering.marks, rendering.literals, strict=True), 1)
        specials = [
            (before, (start + a, start + b))
            for before, ((start, _), literal) in places
            for a, b in self.tokens.spans(literal)
        ]
        written = {number for _, number in rendering.marks}
        gone = [number for number in range(len(texts)) if number not in written]
        others = left_out(blank, rendering.text)
        return Form(blank, rendering, turns, specials, gone, others)

    def _by_itself(self, conversation: Conversation, text: str, bounds: _Bounds) -> Document:
        """A document by marks in the texts of this conversation. bounds: see `_bounds`."""
        marked = self.marked(conversation, text, bounds)
        turns = self._turns(conversation, text, marked) if self.train_on != "all" else []
        [own] = own_specials(self.tokens, conversation, [text], lambda c: [self.template.render(c)])
        shown = (conversation, text) if marked is None else (marked.conversation, marked.written)
        return self._document(text, turns, own, left_out(*shown))

    def marked(
        self, conversation: Conversation, text: str, bounds: _Bounds = None
    ) -> Marked | None:
        """The conversation with marks in its texts; None if marks change its rendering.

        bounds: of blocks, which marks must not change; None if they do not matter.

        Marks go after each text; then into its middle, because a template may inspect how a text
        begins or ends; then into no text of the user, because a template may compare those.
        """
        own = ASSISTANT_ROLES | TOOL_ROLES
        for roles, place in product((None, own), (_behind_text, _inside_text)):
            changed, texts = with_texts(conversation, partial(_with_mark, place), roles)
            with suppress(RenderError):
                written = self.template.render(changed, marked=True)
                rests = [each.text[place(each.text) :] for each in texts]
                marked = Marked(changed, texts, written, rests)
                same = bounds in (None, marked.rendering.bounds)
                if same and marked.rendering.text == text:
                    return marked
        return None

    def _turns(self, conversation: Conversation, text: str, marked: Marked | None) -> list[Turn]:
        """Trained turns of a conversation. marked: the conversation with marks."""
        if marked is not None:
            return self._locator.locate(marked)
        if self.template.has_generation_blocks(conversation):
            rendering = unmark(self.template.render(conversation, marked=True))
            if rendering.text == text:
                return self._locator.blocks_alone(conversation, rendering)
        raise RenderError(
            f"cannot find the trained text: the template changes the texts of messages; {ADVICE}"
        )


def own_specials(
    tokens: Specials,
    conversation: Conversation,
    texts: Sequence[str],
    render: Callable[[Conversation], list[str]],
) -> list[list[Span] | None]:
    """Spans of the special tokens that a template wrote, in each of its texts.

    None where it wrote all of the text's. texts: those that `render` gives. Raises RenderError
    where they cannot be told apart from those that messages spell.
    """
    if not any(map(tokens.is_risky, strings(conversation))):
        return [None] * len(texts)
    for broken in tokens.broken(conversation):
        with suppress(RenderError):
            rendered = [unmark(text) for text in render(broken)]
            if [each.text for each in rendered] == list(texts):
                own = [tokens.spans_within(each.pieces) for each in rendered]
                return [
                    None if spans == tokens.spans(text) else spans
                    for spans, text in zip(own, texts, strict=True)
                ]
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


_LEAST = 12  # fewer equal characters are chance, not a part that the template has written
# What encloses a thought inside of a content: <think>, [/THINK], <|END_THINKING|>.
_SIGN = re.compile(r"<[^<>\s]{1,40}>|\[[^\[\]\s]{1,40}\]")


def left_out(conversation: Conversation, rendering: str) -> list[MessageText]:
    """Parts of the texts of a conversation that its rendering does not have.

    Where both have marks, a short text is not found in the text of another.
    """
    whole = solid(rendering.replace(GENERATED, ""))
    _, texts = with_texts(conversation, lambda _, text: text)
    parts = [each._replace(text=unwritten(each.text, _around(each.text, whole))) for each in texts]
    return sorted(part for part in [*parts, *_under_other_keys(conversation, whole)] if part.text)


def _under_other_keys(conversation: Conversation, whole: str) -> Iterator[MessageText]:
    """Texts under other keys of messages than those of `with_texts`."""
    for number, message in enumerate(conversation.messages):
        for key in {*message} - {"content", "tool_calls", *UNTOUCHED, *thought_keys(message)}:
            # Most templates write the name of a tool in its call alone.
            of_tool = key == "name" and message["role"] in TOOL_ROLES
            texts: list[str] = []
            with_strings(message.get(key), texts.append)
            for text in texts:
                field = "tool_name" if of_tool else key
                yield MessageText(number, field, unwritten(text, whole))


def _around(text: str, whole: str) -> str:
    """The part of a rendering between the marks beside that of a text; all of it without one."""
    match = NUMBERED.search(text)
    before, mark, behind = whole.partition(match[0]) if match else ("", "", "")
    if not mark:
        return whole
    return NUMBERED.split(before)[-1] + mark + NUMBERED.split(behind, maxsplit=1)[0]


def is_written(text: str, whole: str) -> bool:
    """True if a rendering has the text, or its form in JSON. whole: it without white space."""
    return any(solid(each) in whole for each in (text, json.dumps(text, ensure_ascii=False)[1:-1]))


def unwritten(text: str, whole: str) -> str:
    """The part of a text that a rendering, given without white space, does not have.

    The pieces between signs such as <think> are looked for one by one, and the beginning of a piece
    that is cut.
    """
    if is_written(text, whole):
        return ""
    rest, gone = text, False
    for piece in pieces_of(text):
        written = piece.strip()
        if not is_written(piece, whole):
            gone, written = True, _written_beginning(written, whole)
        rest = rest.replace(written, "", 1)
    return MARKS.sub("", rest).strip() if gone else ""


def pieces_of(text: str) -> list[str]:
    """The text between signs such as <think>."""
    return [piece for part in _SIGN.split(text) for piece in NUMBERED.split(part)]


def _written_beginning(piece: str, whole: str) -> str:
    low, high = 0, len(piece)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_written(piece[:middle], whole) else (low, middle - 1)
    return piece[:low] if low >= _LEAST else ""


def solid(text: str) -> str:
    """The text without white space."""
    return "".join(text.split())
