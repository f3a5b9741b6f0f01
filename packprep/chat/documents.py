"""Rows to documents: tables of conversations, or of pieces, to tables of text to be encoded."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from ..config.checks import FUNCTION
from ..config.options import BuildConfig
from .conversations import Row, conversation_of, rows_of
from .exact import ExactEncoder
from .function_template import FunctionTemplate, PieceFinder, load_function
from .marks import UNTOUCHED
from .pieces import read_pieces
from .rendering import Finder
from .template import ChatTemplate, load_template
from .types import (
    PIECES,
    THOUGHT_KEYS,
    BadRowError,
    Conversation,
    Document,
    Piece,
    RenderError,
    Span,
    TrainOn,
)

if TYPE_CHECKING:
    from .turns import Splitter

NO_END = (
    "the chat template ends a turn of the assistant without a special token: turns are trained to "
    "their last token, and a model may not learn to stop"
)
_KNOWN = {"role", "content", "tool_calls", "name", *UNTOUCHED, *THOUGHT_KEYS}
_Made = tuple[list[Document], Counter[str], set[str]]
"""Documents of a row, counts of its turns, and keys of its messages that nothing reads."""


class Rendered(NamedTuple):
    """Documents of a table of rows.

    table: row, part and `pieces`; a row with a problem has one document without pieces. problems:
    by row, the word to count them by and a sentence. turns: see `Splitter.documents`. left_out:
    `documents` with text that the template leaves out, and its "characters" and "tokens" by field.
    unread: keys of messages that nothing reads.
    """

    table: pa.Table
    problems: dict[int, tuple[str, str]]
    turns: Counter[str]
    left_out: Counter[str]
    unread: list[str]


@dataclass(frozen=True, kw_only=True)
class Renderer:
    """Makes documents of rows. template: None joins a prompt and its response as they are.

    tokenizer_json, vocab_size: of the tokenizer. by_bytes: its tokens are the bytes of the text.
    """

    template: ChatTemplate | FunctionTemplate | None
    tokenizer_json: bytes = field(repr=False)
    vocab_size: int
    by_bytes: bool
    train_on: TrainOn = "assistant"
    turns: str = "row"

    def __getstate__(self) -> dict[str, Any]:
        """For another process: the fields, and nothing that was loaded."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def facts(self) -> dict[str, Any]:
        """All that decides the documents besides the tokenizer and the columns, as JSON."""
        template = None if self.template is None else self.template.facts()
        return {"template": template, "train_on": self.train_on, "turns": self.turns}

    def documents(self, table: pa.Table, names: Sequence[str], pieces: bool = False) -> Rendered:
        """Documents of conversations, or of rows of pieces or rendered text.

        names: columns that hold them. Other columns of a conversation are found by their names.
        """
        problems: dict[int, tuple[str, str]] = {}
        turns, unread = Counter[str](), set[str]()
        made = list[tuple[int, Document, list[Any]]]()
        make = self._of_pieces if pieces else self._of_chat
        for number, row in enumerate(rows_of(table)):
            try:
                documents, counts, ignored = make(row, names)
                made += [(number, document, self._stored(document)) for document in documents]
                turns += counts
                unread |= ignored
            except BadRowError as error:
                problems[number] = error.reason, str(error)
                made.append((number, Document([]), []))
        if self._splitter is not None:
            turns["documents"] = len(made)
        gone = [(number, each) for number, document, _ in made for each in document.left_out]
        left_out = Counter(documents=len({number for number, _ in gone}))
        sizes = self._exact.counts([each.text for _, each in gone])
        for (_, each), size in zip(gone, sizes, strict=True):
            left_out[f"characters {each.field}"] += len(each.text)
            left_out[f"tokens {each.field}"] += size
        kind = PIECES
        if self.train_on == "all":
            kind = pa.list_(pa.struct([*PIECES.value_type][:2]))
        columns = {
            "row": pa.array([number for number, _, _ in made], pa.int32()),
            "part": pa.array([document.part for _, document, _ in made], pa.int32()),
            "pieces": pa.array([stored for _, _, stored in made], PIECES).cast(kind),
        }
        return Rendered(pa.table(columns), problems, turns, left_out, sorted(unread))

    def notes(self) -> list[str]:
        """Notes about the template for the user."""
        finder = self._finder
        if self.train_on == "all" or isinstance(finder, PieceFinder):
            return []
        asked, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
        with suppress(RenderError):  # said with the row that it concerns
            [piece] = finder.render(Conversation([asked, answer])).pieces
            ends = [piece.text[first:last] for first, last in piece.trained or []]
            return [NO_END] if ends and not finder.tokens.closing_spans(ends[-1]) else []
        return []

    @cached_property
    def _exact(self) -> ExactEncoder:
        return ExactEncoder(self.tokenizer_json, by_bytes=self.by_bytes)

    @cached_property
    def _finder(self) -> Finder | PieceFinder:
        specials, template = self._exact.specials, self.template
        if isinstance(template, ChatTemplate):
            return Finder(template, specials, self.train_on)
        if template is not None:
            return PieceFinder(specials, partial(template.pieces, vocab_size=self.vocab_size))
        prompt = None if self.train_on == "all" else list[Span]()
        return PieceFinder(specials, partial(_joined, prompt=prompt))

    @cached_property
    def _splitter(self) -> "Splitter | None":
        if self.turns == "row" or not isinstance(self._finder, Finder):
            return None
        from .turns import Splitter

        return Splitter(self._finder, self.turns)

    def _of_pieces(self, row: Row, names: Sequence[str]) -> _Made:
        [name] = names
        pieces = read_pieces(row[name], repr(name), self.vocab_size)
        return [Document(pieces)], Counter(), set()

    def _of_chat(self, row: Row, names: Sequence[str]) -> _Made:
        conversation = conversation_of(row, names)
        template, counts = self.template, Counter[str]()
        if isinstance(template, ChatTemplate):
            conversation = template.with_call_arguments(conversation)
        if self._splitter is not None:
            documents, counts = self._splitter.documents(conversation)
        else:
            documents = [self._finder.render(conversation)]
        if isinstance(template, FunctionTemplate):  # it gets all keys
            return documents, counts, set()
        keys = set[str]().union(*conversation.messages) - _KNOWN
        known = [key for key in keys if template and template.names(conversation, key)]
        text = documents[-1].text
        return documents, counts, {key for key in keys - {*known} if f'"{key}"' not in text}

    def _stored(self, document: Document) -> list[Any]:
        """The pieces of a document as values of PIECES."""
        pieces: list[Any] = []
        for number, piece in enumerate(document.pieces):
            follows = self.template is None and number and document.pieces[0].text
            piece = self._exact.resolved(piece, "inside" if follows else "first")
            spans = piece.trained
            if spans and piece.ids is None and not piece.text.isascii():
                spans = [(_bytes(piece.text, a), _bytes(piece.text, b)) for a, b in spans]
            flat = None if spans is None else [place for span in spans for place in span]
            pieces.append((piece.text, piece.ids, flat))
        return pieces


def _bytes(text: str, characters: int) -> int:
    return len(text[:characters].encode())


def renderer_of(config: BuildConfig, tokenizer: Any) -> tuple[Renderer, list[str]]:
    """The renderer of a build of chats or pieces, and notes for the user.

    tokenizer: its json, vocab_size, chat_templates and named_tokens. Raises ConfigError for a
    template that cannot be used, and where there is none but for two texts.
    """
    file, variables = config.chat_template, dict(config.template_variables or {})
    template: ChatTemplate | FunctionTemplate | None = None
    notes: list[str] = []
    prompts = config.pairs or "," in (config.messages or "")
    asked = file or variables or "default" in tokenizer.chat_templates
    if file and FUNCTION.search(file):
        template = load_function(file, variables)
    elif config.pieces is None and (asked or not prompts or config.turns != "row"):
        named = tokenizer.named_tokens.items()
        template, notes = load_template(file, tokenizer.chat_templates, variables, named)
    elif config.pieces is None:
        notes = ["the tokenizer has no chat template: prompt and response are joined as they are"]
    renderer = Renderer(
        template=template,
        tokenizer_json=tokenizer.json,
        vocab_size=tokenizer.vocab_size,
        by_bytes=tokenizer.token_sizes is not None,
        train_on=config.train_on,
        turns=config.turns,
    )
    return renderer, [*notes, *renderer.notes()]


def _joined(conversation: Conversation, prompt: list[Span] | None) -> list[Piece]:
    """Prompt and response, for a tokenizer without a template.

    Both texts are encoded separately, so no token covers part of each: a model sees the prompt's
    ids and has to continue with the response's. prompt: its trained spans.
    """
    texts = [message.get("content") for message in conversation.messages]
    roles = [message["role"] for message in conversation.messages]
    beside = conversation.tools or conversation.variables or conversation.untrained
    if beside or roles != ["user", "assistant"] or not all(isinstance(t, str) for t in texts):
        raise RenderError(
            "without a chat template a row must be two texts, prompt and response; give a template "
            "with --chat-template"
        )
    both = zip(texts, (prompt, None), strict=True)
    return [Piece(str(text), None, trained, None) for text, trained in both]
