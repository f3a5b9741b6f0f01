"""Pieces of text to ids and a mask by the reference tokenizer, where the engine is not enough.

The engine encodes text with all special tokens parsed, and where tokens are the bytes of the text
their sizes give the mask (`encoding.py`). Elsewhere the reference says which characters each
token covers; a token with a trained character is trained. Where messages spell special tokens, it
encodes the text between the template's own special tokens without parsing any; the row is refused
if these cuts would change any other id.
"""

import json
import threading
import unicodedata
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from ..schemas.arrays import Int32
from .types import Piece, RenderError, Span

_Covered = tuple[list[int], list[Span]]  # ids, and the characters that each covers


class ExactEncoder:
    """The reference tokenizer of a tokenizer.json, loaded when it is first needed.

    specials: id of each special token. sizes: bytes of each token, None if the tokens of a text are
    not its bytes.
    """

    def __init__(self, tokenizer_json: bytes) -> None:
        self._json, self._parsed = tokenizer_json, json.loads(tokenizer_json)
        self._lock = threading.Lock()
        self._loaded: dict[tuple[bool, bytes], Any] = {}
        added = self._parsed.get("added_tokens", [])
        self.specials = {each["content"]: each["id"] for each in added if each.get("special")}

    @cached_property
    def sizes(self) -> Int32 | None:
        """Bytes of each token of a byte-level BPE that takes every text as it is."""
        return token_sizes(self._parsed)

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Number of tokens of each text, special tokens parsed."""
        if not texts:
            return []
        encodings = self._tokenizer(True, "").encode_batch_fast(
            list(texts), add_special_tokens=False
        )
        return [len(each) for each in encodings]

    def resolved(self, piece: Piece, follows: bool = False) -> Piece:
        """The piece as ids where the engine would not give them, or no mask; else as it is.

        follows: it is encoded as text inside of a document. Raises RenderError where its special
        tokens cannot be told apart.
        """
        if piece.ids is not None:
            return piece
        if piece.trained == [(0, len(piece.text))]:
            piece = piece._replace(trained=None)
        inside = follows and self._settings["inside"] is not self._json
        partial = bool(piece.trained)
        if piece.specials is None and not inside and not (partial and self._changes(piece.text)):
            return piece
        if piece.specials is None:
            encoding = self._tokenizer(not follows, "inside" if inside else "").encode(
                piece.text, add_special_tokens=False
            )
            covered = encoding.ids, encoding.offsets
        else:
            covered = self._between(piece.text, piece.specials, inside)
        return Piece("", covered[0], _spans(covered[1], piece), None)

    def _changes(self, text: str) -> bool:
        """True if the tokens of a text may have other bytes than it."""
        if self.sizes is None:
            return True
        return bool(self._parsed.get("normalizer")) and not unicodedata.is_normalized("NFC", text)

    def _between(self, text: str, specials: Sequence[Span], inside: bool) -> _Covered:
        """Ids of a text in which only the special tokens at these positions are special."""
        bounds = [0, *(place for span in specials for place in span), len(text)]
        begin = "inside" if inside else ""
        uncut = self._tokenizer(True, begin).encode(text, add_special_tokens=False).ids
        parsed: list[int] = []
        plain: _Covered = ([], [])
        for number, (start, stop) in enumerate(pairwise(bounds)):
            if number % 2:
                parsed.append(self.specials[text[start:stop]])
                plain[0].append(parsed[-1])
                plain[1].append((start, stop))
            elif start < stop:
                place = "later" if start and not inside else begin
                part = text[start:stop]
                parsed += self._tokenizer(True, place).encode(part, add_special_tokens=False).ids
                encoding = self._tokenizer(False, place).encode(part, add_special_tokens=False)
                plain[0].extend(encoding.ids)
                plain[1].extend((start + first, start + last) for first, last in encoding.offsets)
        if parsed != uncut:
            raise RenderError(
                "its text has special tokens, and this tokenizer encodes the text around them "
                "differently on its own; remove them from the text",
                "special_tokens",
            )
        ids = {*self.specials.values()}
        if sum(id_ in ids for id_ in plain[0]) != len(specials):
            raise RenderError(
                "its text has a special token that this tokenizer makes even of plain text; remove "
                "it from the text",
                "special_tokens",
            )
        return plain

    @cached_property
    def _settings(self) -> dict[str, bytes]:
        """The tokenizer.json by place of a text: at the beginning, later, and inside of another."""
        later, inside = (
            self._parsed
            | {
                key: _without_space(self._parsed.get(key), always)
                for key in ("normalizer", "pre_tokenizer")
            }
            for always in (False, True)
        )
        return {
            place: self._json if each == self._parsed else json.dumps(each).encode()
            for place, each in (("", self._parsed), ("later", later), ("inside", inside))
        }

    def _tokenizer(self, parses: bool, place: str) -> Any:
        """The tokenizer for text at a place. parses: special tokens."""
        import tokenizers

        key = parses, self._settings[place]
        with self._lock:
            if key not in self._loaded:
                made = self._loaded[key] = tokenizers.Tokenizer.from_buffer(key[1])
                made.no_truncation()
                made.no_padding()
                made.encode_special_tokens = not parses
            return self._loaded[key]


@lru_cache(maxsize=2)
def exact_encoder(tokenizer_json: bytes) -> ExactEncoder:
    """The encoder of a process, because loading a tokenizer takes up to a second."""
    return ExactEncoder(tokenizer_json)


def _spans(covered: Sequence[Span], piece: Piece) -> list[Span] | None:
    """Trained spans of ids, from those of characters."""
    if piece.trained is None:
        return None
    spans, bounds = list[Span](), np.array(covered, np.int64).reshape(-1, 2)
    for start, stop in piece.trained:
        inside = np.flatnonzero((bounds[:, 1] > start) & (bounds[:, 0] < stop))
        if len(inside):
            first = max(int(inside[0]), spans[-1][1] if spans else 0)
            spans.append((first, int(inside[-1]) + 1))
    return spans


def _without_space(part: Any, always: bool) -> Any:
    """A normalizer or pre-tokenizer that puts no space before a text; None for nothing else.

    always: also where it puts one before each text, and not before the first alone.
    """
    if part is None or (always and part["type"] == "Prepend"):
        return None
    if part["type"] == "Sequence":
        key = "normalizers" if "normalizers" in part else "pretokenizers"
        return part | {key: [kept for each in part[key] if (kept := _without_space(each, always))]}
    if part.get("prepend_scheme") == "first" or (always and part["type"] == "Metaspace"):
        others = {name: value for name, value in part.items() if name != "add_prefix_space"}
        return others | {"prepend_scheme": "never"}
    return part | {"add_prefix_space": False} if always and part.get("add_prefix_space") else part


def token_sizes(parsed: dict[str, Any]) -> Int32 | None:
    """Bytes of each token of a byte-level BPE that takes every text as it is; None for others."""
    model, normalizer = parsed["model"], parsed.get("normalizer")
    splitter = parsed.get("pre_tokenizer") or {}
    steps = splitter.get("pretokenizers", [splitter])
    added = parsed.get("added_tokens", [])
    if (
        model.get("type") != "BPE"
        or model.get("dropout")
        or normalizer not in (None, {"type": "NFC"})
        or [step for step in steps if step.get("type") not in ("ByteLevel", "Split", "Digits")]
        or [step for step in steps if step.get("behavior") == "Removed"]
        or [step for step in steps if step.get("add_prefix_space")]
        or not [step for step in steps if step.get("type") == "ByteLevel"]
        or [token for token in added if token.get("lstrip") or token.get("rstrip")]
    ):
        return None
    sizes = {id_: len(token) for token, id_ in model["vocab"].items()}
    sizes |= {token["id"]: len(token["content"].encode()) for token in added}
    table = np.zeros(max(sizes, default=0) + 1, np.int32)
    table[[*sizes]] = [*sizes.values()]
    return table
