"""Pieces of text to ids and a mask by the reference tokenizer, where the engine is not enough.

The engine encodes text with all special tokens parsed, and where tokens are the bytes of the text
their sizes give the mask (`tokens/encode.py`). Elsewhere the reference says which characters each
token covers; a token with a trained character is trained. Where messages spell special tokens, it
encodes the text between the template's own special tokens without parsing any; the row is refused
if these cuts would change any other id.
"""

import json
import unicodedata
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from .types import Piece, RenderError, Span

_Covered = tuple[list[int], list[Span]]  # ids, and the characters that each covers


class ExactEncoder:
    """The reference tokenizer of a tokenizer.json, loaded when it is first needed.

    specials: id of each special token. by_bytes: tokens are the bytes of the text. A place of a
    text is "first", at the beginning of a text, "later" in it, or "inside" of a document.
    """

    def __init__(self, tokenizer_json: bytes, *, by_bytes: bool) -> None:
        self._json, self._parsed = tokenizer_json, json.loads(tokenizer_json)
        self._by_bytes = by_bytes
        added = self._parsed.get("added_tokens", [])
        self.specials = {each["content"]: each["id"] for each in added if each.get("special")}

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Number of tokens of each text, special tokens parsed."""
        return [len(self._covered(text, "first")[0]) for text in texts]

    def resolved(self, piece: Piece, place: str = "first") -> Piece:
        """The piece as ids where the engine would not give them, or no mask; else as it is.

        Raises RenderError where its special tokens cannot be told apart.
        """
        if piece.trained == [(0, len(piece.text))]:
            piece = piece._replace(trained=None)
        moved = self._settings[place] is not self._json
        is_nfc = not self._parsed.get("normalizer") or unicodedata.is_normalized("NFC", piece.text)
        changed = bool(piece.trained) and not (self._by_bytes and is_nfc)
        if piece.ids is not None or not (piece.specials is not None or moved or changed):
            return piece
        if piece.specials is None:
            ids, covered = self._covered(piece.text, place)
        else:
            ids, covered = self._between(piece.text, piece.specials, place)
        return Piece("", ids, _spans(covered, piece), None)

    def _between(self, text: str, specials: Sequence[Span], place: str) -> _Covered:
        """Ids of a text in which only the special tokens at these positions are special."""
        parsed, ids, covered = list[int](), list[int](), list[Span]()
        bounds = [0, *(bound for span in specials for bound in span), len(text)]
        for number, (start, stop) in enumerate(pairwise(bounds)):
            part = text[start:stop]
            at = "later" if start and place == "first" else place
            if number % 2:
                parsed.append(self.specials[part])
                ids.append(parsed[-1])
                covered.append((start, stop))
            elif part:
                parsed += self._covered(part, at)[0]
                plain, places = self._covered(part, at, parses=False)
                ids += plain
                covered += [(start + first, start + last) for first, last in places]
        known = {*self.specials.values()}
        count = sum(id_ in known for id_ in ids)
        if parsed != self._covered(text, place)[0] or count != len(specials):
            raise RenderError(
                "its text has special tokens, and this tokenizer encodes the text around them "
                "differently on its own, or makes them even of plain text; remove them from the "
                "text",
                "special_tokens",
            )
        return ids, covered

    @cached_property
    def _settings(self) -> dict[str, bytes]:
        """The tokenizer.json for a text at each place."""
        settings = {"first": self._json}
        for place, always in (("later", False), ("inside", True)):
            keys = ("normalizer", "pre_tokenizer")
            other = {key: _without_space(self._parsed.get(key), always) for key in keys}
            made = self._parsed | other
            settings[place] = self._json if made == self._parsed else json.dumps(made).encode()
        return settings

    def _covered(self, text: str, place: str, *, parses: bool = True) -> _Covered:
        """Ids of a text at a place. parses: special tokens."""
        tokenizer = _loaded(self._settings[place], parses)
        encoding = tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets


@lru_cache(maxsize=6)
def _loaded(tokenizer_json: bytes, parses: bool) -> Any:
    """A tokenizer, which takes up to a second to load. parses: special tokens."""
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_buffer(tokenizer_json)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = not parses
    return tokenizer


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
        if any(each["type"] == "WhitespaceSplit" for each in part[key]):
            always = False  # the space before each word is of the words
        return part | {key: [kept for each in part[key] if (kept := _without_space(each, always))]}
    if part.get("prepend_scheme") == "first" or (always and part["type"] == "Metaspace"):
        others = {name: value for name, value in part.items() if name != "add_prefix_space"}
        return others | {"prepend_scheme": "never"}
    return part | {"add_prefix_space": False} if always and part.get("add_prefix_space") else part
