"""Rows of pieces: each piece is text or token ids, and is trained or not.

    [{"text": "<|user|>Hi<|end|>", "train": false}, {"token_ids": [7, 8], "train": true}]

A renderer writes them: another program before the build (segments_column), or a function of the
user (see finder.py). It wrote BOS, EOS and all special tokens: those in the text of a piece become
their ids.

Each piece is encoded by itself, as trainers do that take pieces (input_output of Axolotl, the
renderers of tinker-cookbook; the loss masks of slime and verl are made of messages in this way). No
token is of two pieces, so the pieces are the mask. With join_pieces, pieces of text that follow
each other are encoded as one text, and the mask follows from their characters, as it does for chat
templates: a token with a trained character is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from packprep.chat.conversations import BadRowError
from packprep.chat.special_tokens import Span, flat_spans
from packprep.chat.turns import Rendered, RowPart
from packprep.support.errors import brief
from packprep.support.json_words import json_kind
from packprep.support.problems import BadRow

_KEYS = ({"text", "train"}, {"token_ids", "train"})


@dataclass(frozen=True)
class Piece:
    """A piece of a row. text: "" for token ids. ids: None for text."""

    text: str
    ids: list[int] | None
    train: bool


def read_pieces(value: Any, where: str, vocab_size: int) -> list[Piece]:
    """The pieces of a list of objects. Raises BadRowError. where: the list, for messages."""
    if not isinstance(value, list):
        reason = BadRow.NULL if value is None else BadRow.BAD_PIECES
        raise BadRowError(reason, f"{where} is {json_kind(value)}, expected a list of pieces")
    return [_piece(piece, number, vocab_size) for number, piece in enumerate(value)]


def _piece(value: Any, number: int, vocab_size: int) -> Piece:
    """A piece. A key that is null is missing, as it is in Arrow."""

    def refused(found: str, expected: str) -> BadRowError:
        return BadRowError(BadRow.BAD_PIECES, f"piece {number} {found}, expected {expected}")

    if not isinstance(value, dict):
        raise refused(f"is {json_kind(value)}", "an object with train, and text or token_ids")
    piece = {key: item for key, item in value.items() if item is not None}
    if piece.keys() not in _KEYS:
        keys = ", ".join(map(repr, piece)) or "nothing"
        raise refused(f"has {keys}", "train, and one of text and token_ids")
    train, text, ids = piece["train"], piece.get("text", ""), piece.get("token_ids")
    if type(train) is not bool:
        raise refused(f"has {brief(train)} as train", "true or false")
    if not isinstance(text, str):
        raise refused(f"has {json_kind(text)} as text", "text")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            detail = f"the text of piece {number} has a lone surrogate"
            raise BadRowError(BadRow.BAD_UTF8, detail) from None
    if ids is not None:
        if not isinstance(ids, list) or not {*map(type, ids)} <= {int}:
            raise refused(f"has {brief(ids)} as token_ids", "a list of whole numbers")
        if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
            wrong = next(id_ for id_ in ids if not 0 <= id_ < vocab_size)
            raise refused(f"has {brief(wrong)} in token_ids", f"ids from 0 to {vocab_size - 1:,}")
    return Piece(text, ids, train)


def runs_of(pieces: Sequence[Piece], *, joined: bool) -> list[list[Piece]]:
    """Pieces that are encoded together: one, or joined pieces of text that follow each other."""
    if not joined:
        return [[piece] for piece in pieces]
    runs = []
    for is_text, group in groupby(pieces, lambda piece: piece.ids is None):
        run = [*group]
        runs += [run] if is_text else [[piece] for piece in run]
    return runs


def as_rendered(
    runs: Sequence[Sequence[Piece]], specials: Callable[[int], list[Span] | None]
) -> Rendered:
    """The row of these runs. specials: of the text of a run, see `Rendered`."""
    text = "".join(piece.text for run in runs for piece in run)
    parts = [_part(run, specials(number)) for number, run in enumerate(runs)]
    if len(parts) > 1 or any(part["ids"] is not None for part in parts):
        return Rendered(text, None, None, parts=parts)
    trained = _spans(runs[0]) if runs else []
    return Rendered(text, trained, specials(0) if runs else None)


def _part(run: Sequence[Piece], specials: list[Span] | None) -> RowPart:
    return {
        "size": sum(len(piece.text) for piece in run),
        "trained": flat_spans(_spans(run)),
        "specials": flat_spans(specials),
        "ids": run[0].ids,
    }


def _spans(run: Sequence[Piece]) -> list[Span]:
    """Trained spans of a run: of its characters, or of its ids."""
    spans: list[Span] = []
    end = 0
    for piece in run:
        start, end = end, end + len(piece.text if piece.ids is None else piece.ids)
        if piece.train and spans and spans[-1][1] == start:
            spans[-1] = spans[-1][0], end
        elif piece.train and start < end:
            spans.append((start, end))
    return spans
