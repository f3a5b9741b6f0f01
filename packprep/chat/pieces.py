"""Rows of pieces: each piece is text or token ids, and is trained or not.

    [{"text": "<|user|>Hi<|end|>", "train": false}, {"token_ids": [7, 8], "train": true}]

Another program wrote them, with BOS, EOS and all special tokens: those in the text of a piece
become their ids. Each piece is encoded by itself, as trainers do that take pieces. No token is of
two pieces, so the pieces are the mask. One rendered text in place of a list is a piece that is
trained.
"""

import json
from contextlib import suppress
from typing import Any

from ..support.errors import brief
from .types import BadRowError, Piece, Span, json_kind

_KEYS = ({"text", "train"}, {"token_ids", "train"})


def read_pieces(value: Any, where: str, vocab_size: int) -> list[Piece]:
    """The pieces of a list of objects, or of a text. Raises BadRowError. where: for messages."""
    if isinstance(value, str) and not _is_json(value):
        return [Piece(_utf8(value, where), None, None, None)]
    if not isinstance(value, list):
        reason, found = ("null" if value is None else "bad_pieces"), json_kind(value)
        found = "JSON in a text" if isinstance(value, str) else found
        raise BadRowError(reason, f"{where} is {found}, expected a list of pieces, or one text")
    return [_piece(piece, number, vocab_size) for number, piece in enumerate(value)]


def _is_json(text: str) -> bool:
    """True for JSON text of a list or an object, which is no rendered text."""
    if text.lstrip()[:1] in ("[", "{"):
        with suppress(ValueError, RecursionError):
            return isinstance(json.loads(text), list | dict)
    return False


def _piece(value: Any, number: int, vocab_size: int) -> Piece:
    """A piece. A key that is null is missing, as it is in Arrow."""

    def refused(found: str, expected: str) -> BadRowError:
        return BadRowError("bad_pieces", f"piece {number} {found}, expected {expected}")

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
    if ids is not None:
        if not isinstance(ids, list) or not {*map(type, ids)} <= {int}:
            raise refused(f"has {brief(ids)} as token_ids", "a list of whole numbers")
        wrong = next((id_ for id_ in ids if not 0 <= id_ < vocab_size), None)
        if wrong is not None:
            raise refused(f"has {brief(wrong)} in token_ids", f"ids from 0 to {vocab_size - 1:,}")
    trained: list[Span] | None = None if train else []
    return Piece(_utf8(text, f"the text of piece {number}"), ids, trained, None)


def _utf8(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRowError("bad_utf8", f"{where} has a lone surrogate") from None
    return text
