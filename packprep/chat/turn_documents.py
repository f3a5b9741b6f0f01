"""One document for each turn of the assistant, or one for the whole row.

The document of turn i is the rendering of the messages up to and including it; only that turn is
trained. A template that changes earlier turns then writes each turn once as a model will write it.

    row    every row is one document
    each   every row is one document per turn
    auto   a row is one document, unless a later rendering leaves out or changes text of an earlier
           turn: then one per turn

The documents of a row travel as one row: `text` is their texts one after the other, and the column
`turns` says where each one ends. `split_turns` makes them rows of their own, right before they are
encoded, so only the stages after that have more documents than rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.chat.conversations import ASSISTANT_ROLES, Conversation
from packprep.chat.forms import FormKey
from packprep.chat.left_out import LeftOut
from packprep.chat.marks import unmark, with_texts
from packprep.chat.special_tokens import flat_spans
from packprep.chat.template import ChatTemplate, RenderError
from packprep.chat.turn_counts import TurnCounts, TurnDocument
from packprep.chat.turns import Rendered, TurnFinder, as_mark
from packprep.schemas.columns import WHOLE_ROW

Turns = Literal["row", "each", "auto"]

_HISTORIES = 1024  # cached, of as many forms as a TurnFinder caches

TURNS = pa.struct(
    [
        (
            "documents",
            pa.list_(
                pa.struct(
                    [
                        ("message", pa.int32()),
                        ("size", pa.int64()),
                        ("trained", pa.list_(pa.int32())),
                        ("specials", pa.list_(pa.int32())),
                    ]
                )
            ),
        ),
        ("counts", pa.list_(pa.int64())),
    ]
)
"""Type of the column `turns`: null documents are a whole row; counts: the fields of TurnCounts."""


class TurnSplitter:
    """Renders rows as the documents of their turns.

    max_turns: only the last turns of a row that is split get documents; None for all.
    """

    def __init__(self, finder: TurnFinder, turns: Turns, max_turns: int | None = None) -> None:
        self._finder = finder
        self._text_finder = finder.of_text()
        self._history = lru_cache(_HISTORIES)(partial(form_history, finder.template))
        self._turns = turns
        self._max_turns = max_turns

    def render(self, conversation: Conversation) -> Rendered:
        """The documents of a row, as one text with the column `turns`.

        Raises RenderError where the template fails, or where trained text cannot be found.
        """
        conversation = self._finder.template.with_call_arguments(conversation)
        turns = [
            number
            for number, message in enumerate(conversation.messages)
            if message["role"] in ASSISTANT_ROLES and number not in conversation.untrained
        ]
        if not turns:
            counts = TurnCounts(documents=1, without_turn=1)
            return _with_turns(self._finder.render(conversation), None, counts)
        documents: dict[int, Rendered] = {}
        whole = None
        if self._turns == "auto":
            whole = self._whole(conversation, turns, documents)
        return whole or self._each(conversation, turns, documents)

    def unread(self, conversation: Conversation, keys: Collection[str]) -> Collection[str]:
        """See `ChatTemplate.unread`."""
        return self._finder.unread(conversation, keys)

    def _whole(
        self, conversation: Conversation, turns: Sequence[int], documents: dict[int, Rendered]
    ) -> Rendered | None:
        """The row as one document; None if its turns must be documents.

        Puts documents of turns that it needs into `documents`.
        """
        failure = None
        try:
            whole = self._finder.render(conversation)
        except RenderError as error:  # the turns cannot be found in the whole rendering
            failure = error
            whole = self._text_finder.render(replace(conversation, untrained=()))
        if whole.form is not None:
            history = self._history(whole.form, tuple(turns))
            rewrites, differs = history.rewrites(whole), history.differs
        else:
            documents |= {turn: self._turn(conversation, turn) for turn in turns}
            rewrites, differs = row_history(self._finder.template, conversation, whole, documents)
        if rewrites:
            return None
        if failure is not None:
            raise failure
        return _with_turns(whole, None, TurnCounts(documents=1, same_text_rows=int(differs)))

    def _each(
        self, conversation: Conversation, turns: Sequence[int], ready: Mapping[int, Rendered]
    ) -> Rendered:
        """A document for each turn. ready: documents that are rendered already."""
        kept = turns[-self._max_turns :] if self._max_turns is not None else turns
        rendered = [ready.get(turn) or self._turn(conversation, turn) for turn in kept]
        # Text of a message is left out unless the document of its own turn has it.
        left_out = [
            part
            for before, document in zip([-1, *kept], rendered, strict=False)
            for part in document.left_out
            if part.message > before
        ]
        _, texts = with_texts(conversation, lambda _, value: value)
        behind = sum(len(text.text.strip()) for text in texts if text.message > turns[-1])
        counts = TurnCounts(
            documents=len(kept),
            split_rows=1,
            at_text=sum(document.at_text for document in rendered),
            earlier=len(turns) - len(kept),
            behind_rows=int(behind > 0),
            behind_characters=behind,
        )
        documents = [
            TurnDocument(
                message=turn,
                size=len(document.text),
                trained=flat_spans(document.trained),
                specials=flat_spans(document.specials),
            )
            for turn, document in zip(kept, rendered, strict=True)
        ]
        text = "".join(document.text for document in rendered)
        return _with_turns(Rendered(text, None, None, left_out), documents, counts)

    def _turn(self, conversation: Conversation, turn: int) -> Rendered:
        messages = conversation.messages[: turn + 1]
        return self._finder.render(
            replace(conversation, messages=messages, untrained=(), is_turn=True)
        )


def _with_turns(
    rendered: Rendered, documents: list[TurnDocument] | None, counts: TurnCounts
) -> Rendered:
    return replace(rendered, turns={"documents": documents, "counts": counts.values()})


@dataclass(frozen=True)
class FormHistory:
    """History of all rows of a form.

    rewritten: message and field of texts that the whole rendering lacks but that of their turn has.
    differs: True if the rendering up to a turn is not the beginning of the whole one.
    """

    rewritten: frozenset[tuple[int, str]]
    differs: bool

    def rewrites(self, whole: Rendered) -> bool:
        """True if a turn of a row of the form loses text."""
        return any((part.message, part.field) in self.rewritten for part in whole.left_out)


def form_history(template: ChatTemplate, key: FormKey, turns: Sequence[int]) -> FormHistory:
    """History of a form. turns: messages of the assistant. Raises RenderError if it is unstable."""
    blank, texts = with_texts(key.conversation, as_mark)
    rewritten, differs = set[tuple[int, str]](), False
    text = template.render(blank)
    written = {number for _, number in unmark(text).marks}
    for turn in turns:
        until = template.render(replace(blank, messages=blank.messages[: turn + 1]))
        check_stable(template, blank, turn, until)
        differs |= not text.startswith(until)
        rewritten |= {
            (turn, texts[number].field)
            for _, number in unmark(until).marks
            if number >= 0 and texts[number].message == turn and number not in written
        }
    return FormHistory(frozenset(rewritten), differs)


def row_history(
    template: ChatTemplate,
    conversation: Conversation,
    whole: Rendered,
    documents: Mapping[int, Rendered],
) -> tuple[bool, bool]:
    """History of a row that fills no form: True if it loses text, True if a rendering differs.

    whole: the rendering of all messages. documents: those up to each turn. Raises RenderError if it
    is unstable.
    """
    rewrites = differs = False
    for turn, document in documents.items():
        check_stable(template, conversation, turn, document.text)
        if not whole.text.startswith(document.text):
            differs = True
            later, then = (_missing(each.left_out, turn) for each in (whole, document))
            rewrites |= any(later[field] > then[field] for field in later)
    return rewrites, differs


def check_stable(template: ChatTemplate, conversation: Conversation, turn: int, until: str) -> None:
    """Raise RenderError unless the rendering `until` a turn continues the messages before it.

    A template may leave out or move a text of theirs, as Mistral's does with a system message: a
    turn whose own text is kept is not ambiguous by that. Its own text must not differ otherwise.
    """
    if turn == 0:
        return
    before = replace(conversation, messages=conversation.messages[:turn])
    for prompt in (True, False):
        with suppress(RenderError):
            if until.startswith(template.render(before, add_generation_prompt=prompt)):
                return
    with suppress(RenderError):
        marked, _ = with_texts(conversation, as_mark)
        order = _order(template, replace(marked, messages=marked.messages[: turn + 1]))
        earlier = _order(template, replace(marked, messages=marked.messages[:turn]))
        if order[: len(earlier)] != earlier:
            return
    raise RenderError(
        f"the template renders the messages before message {turn} differently once it follows "
        "them, so no document shows what a model is prompted with; choose --turns row or each, or "
        "another template (--chat-template)"
    )


def _order(template: ChatTemplate, marked: Conversation) -> list[int]:
    """Numbers of the texts of a marked conversation, in the order of its rendering."""
    return [number for _, number in unmark(template.render(marked)).marks]


def _missing(left_out: Sequence[LeftOut], turn: int) -> Counter[str]:
    """Characters of each field of a message that are left out, without white space."""
    missing: Counter[str] = Counter()
    for part in left_out:
        if part.message == turn:
            missing[part.field] += len("".join(part.text.split()))
    return missing


class SplitRows(NamedTuple):
    """Documents of rows. rows: int64 [documents], the row of each. turns: int32 [documents]."""

    table: pa.Table
    rows: NDArray[np.int64]
    turns: NDArray[np.int32]


def split_turns(table: pa.Table) -> SplitRows:
    """A row for each document of rows with the column `turns`, which the result does not have.

    What a row leaves out stays with its first document.
    """
    rows: list[int] = []
    turns: list[int] = []
    columns: dict[str, list[Any]] = {"text": [], "trained": [], "specials": [], "left_out": []}
    names = list(columns)
    cells = zip(table["turns"].to_pylist(), *(table[n].to_pylist() for n in names), strict=True)
    for row, (facts, text, trained, specials, left_out) in enumerate(cells):
        documents = facts["documents"] if facts is not None else None
        if documents is None or text is None:
            size = len(text or "")
            documents = [
                TurnDocument(message=WHOLE_ROW, size=size, trained=trained, specials=specials)
            ]
        first = 0
        for document in documents:
            rows.append(row)
            turns.append(document["message"])
            last = first + document["size"]
            part = text if text is None else text[first:last]
            values = (part, document["trained"], document["specials"], left_out)
            for name, value in zip(names, values, strict=True):
                columns[name].append(value)
            left_out, first = None, last
    taken = np.array(rows, np.int64)
    arrays = {
        name: table[name].take(pa.array(taken, pa.int64()))
        for name in table.column_names
        if name not in ("turns", *names)
    }
    arrays |= {name: pa.array(columns[name], table[name].type) for name in names}
    return SplitRows(pa.table(arrays), taken, np.array(turns, np.int32))
