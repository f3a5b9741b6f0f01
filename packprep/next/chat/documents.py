"""Rows to documents: tables of conversations, or of pieces, to tables of text to be encoded."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from .conversations import cells, read_chats
from .encoding import PIECES
from .exact import ExactEncoder
from .function_template import FunctionFinder, FunctionTemplate
from .left_out import left_out
from .marks import UNTOUCHED
from .pieces import read_pieces
from .rendering import Finder
from .special_tokens import Specials
from .template import ChatTemplate
from .turns import Splitter
from .types import (
    THOUGHT_KEYS,
    BadRowError,
    Conversation,
    Document,
    LeftOut,
    Piece,
    RenderError,
    TrainOn,
)

NO_END = (
    "the chat template ends a turn of the assistant without a special token: turns are trained to "
    "their last token, and a model may not learn to stop"
)
_KNOWN = {"role", "content", "tool_calls", "name", *UNTOUCHED, *THOUGHT_KEYS}
_Made = tuple[list[Document], Counter[str]]


class Rendered(NamedTuple):
    """Documents of a table of rows.

    table: row, part and `pieces`; a row with a problem has one document without pieces. problems:
    by row, the word to count them by and a sentence. left_out: row, text and its tokens. counts:
    see `Splitter.documents`; "key NAME" counts messages with a key that nothing reads.
    """

    table: pa.Table
    problems: dict[int, tuple[str, str]]
    left_out: list[tuple[int, LeftOut, int]]
    counts: Counter[str]


@dataclass(frozen=True, kw_only=True)
class Renderer:
    """Makes documents of rows. template: None joins a prompt and its response as they are.

    tokenizer_json, vocab_size: of the tokenizer. Another process can get it if it is `fresh`.
    """

    template: ChatTemplate | FunctionTemplate | None
    tokenizer_json: bytes = field(repr=False)
    vocab_size: int
    train_on: TrainOn = "assistant"
    turns: str = "row"

    def fresh(self) -> "Renderer":
        """The same, with nothing loaded."""
        template = self.template
        return replace(self, template=None if template is None else replace(template))

    def chats(self, table: pa.Table, names: Sequence[str]) -> Rendered:
        """Documents of conversations. names: their columns."""
        return self._rendered(read_chats(table, names), self._of_chat)

    def pieces(self, table: pa.Table, column: str) -> Rendered:
        """Documents of rows of pieces, or of rendered text."""

        def document(value: Any) -> _Made:
            return [Document(read_pieces(value, repr(column), self.vocab_size))], Counter()

        return self._rendered(cells(table[column]), document)

    def notes(self) -> list[str]:
        """Notes about the template for the user."""
        if self.train_on == "all" or not isinstance(self._finder, Finder):
            return []
        asked, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
        try:
            piece = self._finder.render(Conversation([asked, answer])).pieces[0]  # type: ignore
        except RenderError:
            return []  # said with the row that it concerns
        ends = [piece.text[first:last] for first, last in (piece.trained or [])[-1:]]
        closed = any(map(self._finder.tokens.closing_spans, ends))
        return [NO_END] if ends and not closed else []

    @cached_property
    def _exact(self) -> ExactEncoder:
        return ExactEncoder(self.tokenizer_json)

    @cached_property
    def _finder(self) -> "Finder | FunctionFinder | JoiningFinder":
        specials = self._exact.specials
        if self.template is None:
            return JoiningFinder(specials, self.train_on)
        if isinstance(self.template, FunctionTemplate):
            return FunctionFinder(self.template, specials, self.vocab_size)
        return Finder(self.template, specials, self.train_on)

    @cached_property
    def _splitter(self) -> Splitter | None:
        is_split = self.turns != "row" and isinstance(self._finder, Finder)
        return Splitter(self._finder, self.turns) if is_split else None  # type: ignore

    def _of_chat(self, conversation: Conversation) -> _Made:
        if isinstance(self.template, ChatTemplate):
            conversation = self.template.with_call_arguments(conversation)
        counts = Counter[str]()
        if self._splitter is not None:
            documents, counts = self._splitter.documents(conversation)
        else:
            documents = [self._finder.render(conversation)]
        keys = [key for each in conversation.messages if len(each) > 2 for key in each]
        for key in {*keys} - _KNOWN:
            written = f'"{key}"' in documents[-1].text
            if not (written or self._finder.reads(conversation, key)):
                counts[f"key {key}"] = keys.count(key)
        return documents, counts

    def _rendered(self, rows: Iterable[Any], make: Callable[[Any], _Made]) -> Rendered:
        """rows: values for `make`, or what is wrong with them."""
        problems: dict[int, tuple[str, str]] = {}
        counts, gone = Counter[str](), list[tuple[int, LeftOut]]()
        numbers, parts, stored = list[int](), list[int](), list[list[Any]]()
        for number, row in enumerate(rows):
            try:
                if isinstance(row, BadRowError):
                    raise row
                documents, of_row = make(row)
                pieces = [self._stored(document) for document in documents]
            except BadRowError as error:
                problems[number] = error.reason, str(error)
                documents, of_row, pieces = [Document([])], Counter(), [[]]
            numbers += [number] * len(documents)
            parts += [document.part for document in documents]
            stored += pieces
            counts += of_row
            gone += [(number, each) for document in documents for each in document.left_out]
        columns = {"row": pa.array(numbers, pa.int32()), "part": pa.array(parts, pa.int32())}
        table = pa.table({**columns, "pieces": pa.array(stored, PIECES)})
        sizes = self._exact.counts([each.text for _, each in gone])
        left = [(*each, size) for each, size in zip(gone, sizes, strict=True)]
        return Rendered(table, problems, left, counts)

    def _stored(self, document: Document) -> list[Any]:
        """The pieces of a document as values of PIECES."""
        pieces: list[Any] = []
        joined = isinstance(self._finder, JoiningFinder)
        for number, piece in enumerate(document.pieces):
            piece = self._exact.resolved(piece, follows=joined and bool(number and pieces[0][0]))
            spans = piece.trained
            if spans and piece.ids is None and not piece.text.isascii():
                spans = [(_bytes(piece.text, a), _bytes(piece.text, b)) for a, b in spans]
            flat = None if spans is None else [place for span in spans for place in span]
            pieces.append((piece.text, piece.ids, flat))
        return pieces


def _bytes(text: str, characters: int) -> int:
    return len(text[:characters].encode())


class JoiningFinder:
    """Joins prompt and response, for a tokenizer without a template; stands in for a `Finder`.

    Both texts are encoded separately, so no token covers part of each: a model sees the prompt's
    ids and has to continue with the response's. Text that spells a special token stays text.
    """

    def __init__(self, specials: Iterable[str], train_on: TrainOn) -> None:
        self._tokens = Specials(specials)
        self._prompt: list[Any] | None = None if train_on == "all" else []

    def render(self, conversation: Conversation) -> Document:
        """The two texts as pieces. Raises RenderError where a row is not exactly two texts."""
        texts = [message.get("content") for message in conversation.messages]
        roles = [message["role"] for message in conversation.messages]
        beside = conversation.tools or conversation.variables or conversation.untrained
        if beside or roles != ["user", "assistant"] or not all(isinstance(t, str) for t in texts):
            raise RenderError(
                "without a chat template a row must be two texts, prompt and response; give a "
                "template with --chat-template"
            )
        pieces = [
            Piece(str(text), None, trained, [] if self._tokens.spans(str(text)) else None)
            for text, trained in zip(texts, (self._prompt, None), strict=True)
        ]
        text = "".join(piece.text for piece in pieces)
        return Document(pieces, left_out(conversation, text))

    def reads(self, conversation: Conversation, key: str) -> bool:
        """False: texts alone are read."""
        return False
