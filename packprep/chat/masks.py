"""Token ids and the loss mask of conversations, a batch at a time.

    render_chats   rows -> `text`, `trained`, `specials`, `left_out`, `problem`; a row: 40-250 us
    encode_chats   those -> flat ids, offsets and a bool mask              the engine's speed

Ids are those of the text with its special tokens parsed, as `apply_chat_template(tokenize=True)`
gives them. Nothing is added: the template wrote BOS and EOS. Where tokens are the bytes of the
text, their sizes give the mask (see `engines.byte_masks`).

Elsewhere the text is encoded once more, cut where trained spans begin and end. If the pieces give
the same ids, their lengths are the mask. If not, because a token crosses a cut, the reference
tokenizer says which characters each token covers, and a token with a trained character is trained.

Rows are rendered where they are read (sources/row_text.py) and encoded where text is
(tokens/encode.py). Those whose parts are encoded by themselves are divided before, see
pieces/parts.py. For `problem` see support/problems.py.

Where the messages of a row spell special tokens, the reference tokenizer encodes the text between
the template's own special tokens without parsing any. The row is refused if these cuts would change
any other id.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.chat.conversations import (
    BadRowError,
    ChatRow,
    Conversation,
    ConversationColumns,
    read_chat_rows,
)
from packprep.chat.forms import plain_chat
from packprep.chat.left_out import LEFT_OUT
from packprep.chat.special_tokens import flat_spans
from packprep.chat.template import RenderError
from packprep.chat.turn_documents import TURNS
from packprep.chat.turns import Finder, Rendered, TurnFinder
from packprep.config.grammar.known_columns import UNREAD
from packprep.engines.backends import Engine, Ids, Offsets, added_tokens, reference_tokenizer
from packprep.engines.byte_masks import TokenBytes, token_bytes
from packprep.engines.compare import unequal
from packprep.support.problems import PROBLEM, BadRow, Problem

ROW_PARTS = pa.list_(
    pa.struct(
        [
            ("size", pa.int32()),
            ("trained", pa.list_(pa.int32())),
            ("specials", pa.list_(pa.int32())),
            ("ids", pa.list_(pa.int32())),
        ]
    )
)
"""Type of the column `parts`, see `turns.RowPart`."""
RENDERED = pa.schema(
    [
        ("text", pa.large_string()),
        ("trained", pa.list_(pa.int32())),
        ("specials", pa.list_(pa.int32())),
        ("left_out", LEFT_OUT),
        ("turns", TURNS),
        ("parts", ROW_PARTS),
        ("problem", PROBLEM),
    ]
)


@dataclass(frozen=True)
class ChatTokens:
    """Ids of a batch of conversations.

    ids: int32 [tokens].
    offsets: int64 [rows + 1].
    trained: bool [tokens].
    problems: by row, of rows that cannot be encoded; these have no tokens.
    """

    ids: Ids
    offsets: Offsets
    trained: NDArray[np.bool_]
    problems: dict[int, Problem] = field(default_factory=dict)


def render_chats(
    table: pa.Table, columns: ConversationColumns, finder: Finder, *, again: bool = False
) -> pa.Table:
    """Rows as text: a table of schema RENDERED and UNREAD, [rows].

    trained: character positions start, stop, start, stop, ... of the trained spans; null where
    everything is trained. specials: the same for the template's own special tokens, where messages
    spell others; null elsewhere. left_out: text of the messages that the template does not write;
    null where it writes all. turns: the documents of a row that `text` holds, see
    turn_documents.py; null where every row is one. parts: the parts of a row that are encoded by
    themselves; null where `text` is one. problem: set only where there is no text. UNREAD: columns
    and keys that nothing reads, see reading.py. again: the prompts of these rows were rendered with
    another response, which has counted what is unread there.
    """
    rows, unread = [], []
    for chat in read_chat_rows(table, columns):
        row, conversation = _row(chat, finder)
        rows.append(row)
        unread.append(_unread(conversation, finder, again=again) if conversation else [])
    return rendered_table(rows).append_column(UNREAD, pa.array(unread, pa.list_(pa.string())))


def rendered_table(rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    """The table of these rows of RENDERED."""
    values = map(list, zip(*rows, strict=True)) if rows else [[] for _ in RENDERED]
    return pa.table([*values], schema=RENDERED)


def _unread(conversation: Conversation, finder: Finder, *, again: bool) -> list[str]:
    """Columns of a row, and keys of each of its messages, that nothing reads."""
    messages = conversation.messages[conversation.before if again else 0 :]
    keys = [key for each in messages if len(each) > 2 for key, value in each.items() if value]
    unread = finder.unread(conversation, frozenset(keys) - {"role", "content"}) if keys else ()
    columns = [] if again else [f"column {name}" for name in conversation.columns]
    return columns + [f"key {key}" for key in keys if key in unread]


def _row(row: ChatRow, finder: Finder) -> tuple[tuple[Any, ...], Conversation | None]:
    """A row of RENDERED, and its conversation, if there was need to read it and it has text."""
    if isinstance(finder, TurnFinder) and row.cell is not None:
        plain = plain_chat(row.cell)
        composed = finder.compose(*plain) if plain is not None else None
        if composed is not None:
            return (*composed, *[None] * 5), None
    conversation = row.conversation()
    rendered = _rendered(conversation, finder)
    if isinstance(conversation, BadRowError) or isinstance(rendered, Problem):
        return as_row(rendered), None
    return as_row(rendered), conversation


def _rendered(conversation: Conversation | BadRowError, finder: Finder) -> Rendered | Problem:
    if isinstance(conversation, BadRowError):
        return Problem(conversation.reason, str(conversation))
    try:
        return finder.render(conversation)
    except RenderError as error:
        return Problem(BadRow.TEMPLATE, str(error))


def as_row(rendered: Rendered | Problem) -> tuple[Any, ...]:
    """A row of RENDERED."""
    if isinstance(rendered, Problem):
        return (*[None] * 6, rendered)
    return (
        rendered.text,
        flat_spans(rendered.trained),
        flat_spans(rendered.specials),
        [part._asdict() for part in rendered.left_out] or None,
        rendered.turns,
        rendered.parts,
        None,
    )


def encode_chats(rendered: pa.Table, engine: Engine, exact: ExactEncoder) -> ChatTokens:
    """Ids and mask of rendered rows; a row without text has no tokens.

    engine: parses special tokens. exact: the same tokenizer, for rows that need the reference.
    """
    # One array always: the offsets of large_string do not overflow.
    texts = cast("pa.LargeStringArray", rendered["text"].combine_chunks()).fill_null("")
    ids, offsets = engine.encode(texts)
    has_spans = rendered["trained"].null_count < len(rendered)
    has_others = rendered["specials"].null_count < len(rendered)
    mask: NDArray[np.bool_] | None = None
    if not has_spans:
        mask = np.ones(len(ids), np.bool_)
    elif exact.token_bytes is not None:
        mask = exact.token_bytes.mask(ids, offsets, texts, rendered["trained"])
    if mask is not None and not has_others:
        return ChatTokens(ids, offsets, mask)
    strings: list[Any] = texts.to_pylist()
    trained, specials = rendered["trained"].to_pylist(), rendered["specials"].to_pylist()
    crossing: list[int] = []  # rows in which a token crosses a cut
    offsets_of_mask = offsets
    if mask is None:
        pieces, turns, first = _cut(strings, trained)
        cut_ids, cut_offsets = engine.encode(pa.array(pieces, pa.large_string()))
        mask = np.repeat(turns, np.diff(cut_offsets))
        crossing = unequal(cut_ids, cut_offsets[first], ids, offsets).tolist()
        offsets_of_mask = cut_offsets[first]
    special = {row: spans for row, spans in enumerate(specials) if spans is not None}
    crossing = sorted({*crossing} - {*special})
    if not crossing and not special:
        return ChatTokens(ids, offsets, mask)
    replaced: dict[int, tuple[Ids, NDArray[np.bool_]]] = dict(
        zip(
            crossing,
            exact.masks([strings[row] for row in crossing], [trained[row] for row in crossing]),
            strict=True,
        )
    )
    problems = {}
    for row, spans in special.items():
        try:
            replaced[row] = exact.between(strings[row], spans, trained[row])
        except RenderError as error:
            replaced[row] = np.empty(0, np.int32), np.empty(0, np.bool_)
            problems[row] = Problem(BadRow.SPECIAL_TOKENS, str(error))
    rows = [
        replaced.get(row)
        or (
            ids[offsets[row] : offsets[row + 1]],
            mask[offsets_of_mask[row] : offsets_of_mask[row + 1]],
        )
        for row in range(len(texts))
    ]
    counts = np.array([0, *(len(row_ids) for row_ids, _ in rows)], np.int64)
    return ChatTokens(
        np.concatenate([row_ids for row_ids, _ in rows]),
        np.cumsum(counts),
        np.concatenate([row_mask for _, row_mask in rows]),
        problems,
    )


def _cut(
    texts: Sequence[str], trained: Sequence[list[int] | None]
) -> tuple[list[str], NDArray[np.bool_], NDArray[np.int64]]:
    """Cut texts where trained spans begin and end.

    Returns the pieces, a bool for each (True: trained), and the first piece of each text with the
    number of pieces at the end.
    """
    pieces: list[str] = []
    turns: list[bool] = []
    first = [0]
    for text, spans in zip(texts, trained, strict=True):
        if spans is None:
            spans = [0, len(text)]
        stops = [*spans, len(text)]
        for number, (start, stop) in enumerate(zip([0, *spans], stops, strict=True)):
            if start < stop:
                pieces.append(text[start:stop])
                turns.append(number % 2 == 1)
        first.append(len(pieces))
    return pieces, np.array(turns, np.bool_), np.array(first, np.int64)


class ExactEncoder:
    """The reference tokenizer, which knows the characters that each token covers.

    It is loaded when first used.
    """

    def __init__(self, tokenizer_json: bytes) -> None:
        self._json = tokenizer_json
        self._lock = threading.Lock()
        self._loaded: dict[tuple[bool, bool], Any] = {}

    @cached_property
    def token_bytes(self) -> TokenBytes | None:
        """Bytes of each token; None if tokens are not the bytes of the text."""
        return token_bytes(self._json)

    @cached_property
    def specials(self) -> dict[str, int]:
        """Id of each special token."""
        return {
            token["content"]: token["id"]
            for token in added_tokens(self._json)
            if token.get("special")
        }

    def masks(
        self, texts: Sequence[str], trained: Sequence[list[int] | None]
    ) -> list[tuple[Ids, NDArray[np.bool_]]]:
        """Ids and mask of each text, special tokens parsed."""
        encodings = self._parsing.encode_batch(list(texts), add_special_tokens=False)
        return [
            (
                np.array(encoding.ids, np.int32),
                _mask(np.array(encoding.offsets, np.int64).reshape(-1, 2), spans),
            )
            for encoding, spans in zip(encodings, trained, strict=True)
        ]

    def between(
        self, text: str, specials: Sequence[int], trained: Sequence[int] | None
    ) -> tuple[Ids, NDArray[np.bool_]]:
        """Ids and mask of a text in which only the special tokens at these positions are special.

        Raises RenderError where cutting the text there changes its other ids.
        """
        stops = [*specials, len(text)]
        cuts = list(enumerate(zip([0, *specials], stops, strict=True)))
        uncut = self._parsing.encode(text, add_special_tokens=False).ids
        parts: dict[bool, list[tuple[list[int], list[tuple[int, int]]]]] = {True: [], False: []}
        for number, (start, stop) in cuts:
            if number % 2:
                token = self.specials[text[start:stop]], (start, stop)
                for part in parts.values():
                    part.append(([token[0]], [token[1]]))
                continue
            for parsed, part in parts.items():
                if start < stop:
                    encoding = self._tokenizer(parsed, start == 0).encode(
                        text[start:stop], add_special_tokens=False
                    )
                    part.append(
                        (encoding.ids, [(start + a, start + b) for a, b in encoding.offsets])
                    )
        if [id_ for ids, _ in parts[True] for id_ in ids] != uncut:
            raise RenderError(
                "its text has special tokens, and this tokenizer encodes the text around them "
                "differently on its own; remove them from the text"
            )
        if (
            sum(id_ in self._special_ids for ids, _ in parts[False] for id_ in ids)
            != len(specials) // 2
        ):
            raise RenderError(
                "its text has a special token that this tokenizer makes even of plain text; remove "
                "it from the text"
            )
        ids = np.array([id_ for ids, _ in parts[False] for id_ in ids], np.int32)
        return ids, _mask(
            np.array([span for _, spans in parts[False] for span in spans]).reshape(-1, 2), trained
        )

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(self.specials.values())

    @cached_property
    def _parsing(self) -> Any:
        return self._tokenizer(True, True)

    def _tokenizer(self, parsed: bool, first: bool) -> Any:
        """The tokenizer with two settings.

        parsed: special tokens are parsed. first: for text that begins a document, else for text
        inside one.
        """
        with self._lock:
            if (parsed, first) not in self._loaded:
                raw = self._json if first else _without_first(self._json)
                self._loaded[parsed, first] = reference_tokenizer(raw, parsed)
            return self._loaded[parsed, first]


@lru_cache(maxsize=4)
def exact_encoder(tokenizer_json: bytes) -> ExactEncoder:
    """Encoder shared by all threads, because loading a tokenizer takes up to a second."""
    return ExactEncoder(tokenizer_json)


def _without_first(tokenizer_json: bytes) -> bytes:
    """The same tokenizer for text inside a document: it adds no space in front."""
    return re.sub(rb'("prepend_scheme"\s*:\s*)"first"', rb'\1"never"', tokenizer_json)


def _mask(covered: NDArray[np.int64], trained: Sequence[int] | None) -> NDArray[np.bool_]:
    """Mask of the tokens from the first to the last that cover a character of a trained span.

    covered: characters of each token, [tokens, 2].
    """
    if trained is None:
        return np.ones(len(covered), np.bool_)
    mask = np.zeros(len(covered), np.bool_)
    for start, stop in zip(trained[::2], trained[1::2], strict=True):
        inside = np.flatnonzero((covered[:, 1] > start) & (covered[:, 0] < stop))
        if len(inside):
            mask[inside[0] : inside[-1] + 1] = True
    return mask
