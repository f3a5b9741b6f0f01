"""Rows to documents: tables of conversations, or of pieces, to tables of text to be encoded."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from ..config.checks import FUNCTION
from ..config.options import BuildConfig
from ..support.errors import ConfigError
from .conversations import cells, read_chats
from .exact import ExactEncoder, exact_encoder
from .function_template import FunctionFinder, FunctionTemplate, load_function
from .left_out import left_out
from .marks import UNTOUCHED
from .pieces import read_pieces
from .rendering import Finder
from .special_tokens import Specials
from .template import ChatTemplate, load_template
from .turns import Splitter
from .types import (
    PIECES,
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

    def facts(self) -> dict[str, Any]:
        """All that decides the documents besides the tokenizer and the columns, as JSON."""
        template = None if self.template is None else self.template.facts()
        return {"template": template, "train_on": self.train_on, "turns": self.turns}

    def documents(self, table: pa.Table, names: Sequence[str], pieces: bool = False) -> Rendered:
        """Documents of conversations, or of rows of pieces or rendered text.

        names: columns that hold them. Other columns of a conversation are found by their names.
        """
        if not pieces:
            return self._rendered(read_chats(table, names), self._of_chat)

        def document(value: Any) -> _Made:
            return [Document(read_pieces(value, repr(names[0]), self.vocab_size))], Counter()

        return self._rendered(cells(table[names[0]]), document)

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
        return exact_encoder(self.tokenizer_json)

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
        if self._splitter is not None:
            return self._splitter.documents(conversation)
        return [self._finder.render(conversation)], Counter()

    def _unread(self, conversation: Any, text: str) -> set[str]:
        """Keys of messages that the template does not know."""
        if not isinstance(conversation, Conversation):
            return set()
        keys = {key for each in conversation.messages if len(each) > 2 for key in each} - _KNOWN
        return {
            key
            for key in keys
            if f'"{key}"' not in text and not self._finder.reads(conversation, key)
        }

    def _rendered(self, rows: Iterable[Any], make: Callable[[Any], _Made]) -> Rendered:
        """rows: values for `make`, or what is wrong with them."""
        problems: dict[int, tuple[str, str]] = {}
        turns, left_out = Counter[str](), Counter(documents=0)
        gone, unread = list[LeftOut](), set[str]()
        numbers, parts, stored = list[int](), list[int](), list[list[Any]]()
        for number, row in enumerate(rows):
            try:
                if isinstance(row, BadRowError):
                    raise row
                documents, counts = make(row)
                pieces = [self._stored(document) for document in documents]
            except BadRowError as error:
                problems[number] = error.reason, str(error)
                documents, counts, pieces = [Document([])], Counter(), [[]]
            else:
                unread |= self._unread(row, documents[-1].text)
            numbers += [number] * len(documents)
            parts += [document.part for document in documents]
            stored += pieces
            turns += counts
            before = len(gone)
            gone += [each for document in documents for each in document.left_out]
            left_out["documents"] += before < len(gone)
        if self._splitter is not None:
            turns["documents"] = len(numbers)
        sizes = self._exact.counts([each.text for each in gone])
        for each, size in zip(gone, sizes, strict=True):
            left_out[f"characters {each.field}"] += len(each.text)
            left_out[f"tokens {each.field}"] += size
        made = pa.array(stored, PIECES)
        if self.train_on == "all":
            made = made.cast(pa.list_(pa.struct([*PIECES.value_type][:2])))
        columns = {"row": pa.array(numbers, pa.int32()), "part": pa.array(parts, pa.int32())}
        table = pa.table({**columns, "pieces": made})
        return Rendered(table, problems, turns, left_out, sorted(unread))

    def _stored(self, document: Document) -> list[Any]:
        """The pieces of a document as values of PIECES."""
        pieces: list[Any] = []
        joined = isinstance(self._finder, JoiningFinder)
        for number, piece in enumerate(document.pieces):
            piece = self._exact.resolved(
                piece, follows=joined and bool(number and document.pieces[0].text)
            )
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
    elif config.pieces is None and (asked or not prompts):
        named = tokenizer.named_tokens.items()
        template, notes = load_template(file, tokenizer.chat_templates, variables, named)
    elif config.pieces is None and config.turns != "row":
        raise ConfigError(
            f"--turns {config.turns} needs a chat template, and the tokenizer has none; give one "
            "with --chat-template FILE, or leave --turns out"
        )
    elif config.pieces is None:
        joined = "prompt and response are joined as they are"
        notes.append(f"the tokenizer has no chat template: {joined}")
    renderer = Renderer(
        template=template,
        tokenizer_json=tokenizer.json,
        vocab_size=tokenizer.vocab_size,
        train_on=config.train_on,
        turns=config.turns,
    )
    return renderer, [*notes, *renderer.notes()]


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
