"""One document for each turn of the assistant, or one for the whole row.

The document of turn i is the rendering of the messages up to and including it; only that turn is
trained. A template that changes earlier turns then writes each turn once as a model will write it.

    row    every row is one document
    each   every row is one document per turn
    auto   a row is one document, unless a later rendering leaves out or changes text of an earlier
           turn: then one per turn
"""

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from os.path import commonprefix

from .marks import NUMBERED, unmark, with_texts
from .rendering import Finder, as_mark, pieces_of, solid, unwritten
from .template import ChatTemplate
from .types import ASSISTANT_ROLES, Conversation, Document, RenderError

_HISTORIES = 1024  # cached, of as many forms as a Finder caches
Turns = tuple[int, ...]  # numbers of their messages
# The whole rendering leaves out text of a turn; it does not begin with the one up to a turn.
History = tuple[bool, bool]


class Splitter:
    """Makes the documents of turns. turns: each or auto."""

    def __init__(self, finder: Finder, turns: str) -> None:
        self._finder = finder
        self._is_auto = turns == "auto"
        self._of_form = lru_cache(_HISTORIES)(
            lambda form, turns: history_of(finder.template, form.blank, turns)
        )

    def documents(self, conversation: Conversation) -> tuple[list[Document], Counter[str]]:
        """The documents of a row, and counts of it.

        split_rows: rows with a document per turn. same_text_rows: rows that stay whole although a
        later rendering differs, since it keeps the text of all messages. without_turn: rows without
        a turn of the assistant. at_text: turns that do not begin with their generation prompt.
        behind_rows, behind_characters: rows with text after their last turn, and that text. Raises
        RenderError where the template fails, or where trained text cannot be found.
        """
        turns = tuple(
            number
            for number, message in enumerate(conversation.messages)
            if message["role"] in ASSISTANT_ROLES and number not in conversation.untrained
        )
        if not turns:
            return [self._finder.render(conversation)], Counter(without_turn=1)
        if self._is_auto:
            text = self._finder.template.render(conversation)
            rewrites, differs = self._history(conversation, text, turns)
            if not rewrites:
                counts = Counter(same_text_rows=int(differs))
                return [self._finder.render(conversation, text)], counts
        documents = []
        for before, turn in zip((-1, *turns), turns, strict=False):
            part = replace(conversation.until(turn + 1), untrained=(), is_turn=True)
            document = self._finder.render(part)
            # Text of a message is left out unless the document of its own turn has it.
            own = [each for each in document.left_out if each.message > before]
            documents.append(replace(document, left_out=own, part=turn))
        _, texts = with_texts(conversation, lambda _, text: text)
        behind = sum(len(text.text.strip()) for text in texts if text.message > turns[-1])
        counts = Counter(split_rows=1, behind_rows=int(behind > 0), behind_characters=behind)
        counts["at_text"] = sum(document.at_text for document in documents)
        return documents, counts

    def _history(self, conversation: Conversation, text: str, turns: Turns) -> History:
        if (filled := self._finder.filled(conversation, text)) is not None:
            return self._of_form(filled.form, turns)
        marked = self._finder.marked(conversation, text)
        shown = conversation if marked is None else marked.conversation
        return history_of(self._finder.template, shown, turns)


def history_of(template: ChatTemplate, conversation: Conversation, turns: Turns) -> History:
    """History of a conversation, best one with marks. Raises RenderError if it is unstable."""
    whole, rewrites, differs = template.render(conversation), False, False
    _, texts = with_texts(conversation, lambda _, text: text)
    for turn in turns:
        until = _stable(template, conversation, turn)
        if not whole.startswith(until):
            own = [text.text for text in texts if text.message == turn]
            rewrites |= any(_is_lost(text, solid(until), solid(whole)) for text in own)
            differs = True
    return rewrites, differs


def _is_lost(text: str, until: str, whole: str) -> bool:
    """True if a part of a text is in the rendering up to its turn, and not in the whole one.

    until, whole: without white space. With a mark in the text, that part is of what only the first
    rendering has before the mark: a thought, which the template may write between other signs.
    """
    if (match := NUMBERED.search(text)) is None:
        return len(unwritten(text, until)) < len(unwritten(text, whole))
    before, mark, _ = until.partition(match[0])
    later, kept, _ = whole.partition(match[0])
    if not mark or not kept:
        return bool(mark)
    gone = _only_in(NUMBERED.split(before)[-1], NUMBERED.split(later)[-1])
    return any(piece in gone for piece in map(solid, pieces_of(text)) if piece)


def _only_in(text: str, other: str) -> str:
    """The text without the beginning and the end that the other has too."""
    rest = text[len(commonprefix([text, other])) :]  # noqa: RUF071 of characters, not of paths
    other = other[len(text) - len(rest) :]
    end = len(commonprefix([rest[::-1], other[::-1]]))  # noqa: RUF071
    return rest[: len(rest) - end]


def _stable(template: ChatTemplate, conversation: Conversation, turn: int) -> str:
    """The rendering up to a turn. Raises RenderError unless it continues the messages before it.

    A template may leave out or move a text of theirs, as Mistral's does with a system message: a
    turn whose own text is kept is not ambiguous by that. Its own text must not differ otherwise.
    """
    until = template.render(conversation.until(turn + 1))
    if turn == 0:
        return until
    for prompt in (True, False):
        with suppress(RenderError):
            before = template.render(conversation.until(turn), add_generation_prompt=prompt)
            if until.startswith(before):
                return until
    with suppress(RenderError):
        marked, _ = with_texts(conversation, as_mark)
        both = (unmark(template.render(marked.until(stop))) for stop in (turn, turn + 1))
        earlier, order = ([number for _, number in each.marks] for each in both)
        if order[: len(earlier)] != earlier:
            return until
    raise RenderError(
        f"the template renders the messages before message {turn} differently once it follows "
        "them, so no document shows what a model is prompted with; choose --turns row or each, or "
        "another template (--chat-template)"
    )
