"""Tokens of a segment as text, in lines that say at which token they begin.

A token that is only a part of a character is shown with those that complete it. A line ends at a
line feed, shown as ⏎, or at the width of the terminal.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ..schemas.arrays import Bools

# Symbols for control characters: text from data must not control the terminal.
VISIBLE = {code: chr(0x2400 + code) for code in range(32)} | dict.fromkeys(range(128, 160), "␦")
VISIBLE |= {ord("\n"): "⏎", ord("\t"): "→", 0x7F: "␡"}
_INCOMPLETE = "\ufffd"  # what a decoder makes of a part of a character
_MOST = 16  # tokens of a character that is waited for


class Piece(NamedTuple):
    """Text of consecutive tokens, complete characters. position: of the first, in its segment."""

    position: int
    text: str
    trained: bool
    special: bool


def pieces_of(
    ids: NDArray[Any], trained: Bools, decoder: Any, special: frozenset[int]
) -> Iterator[Piece]:
    """Decode the tokens of a segment; together the texts are that of all tokens.

    decoder: a `tokenizers.Tokenizer`; None shows ids. special: ids of special tokens.
    """
    tokens, begin, before = ids.tolist(), 0, 0  # tokens before..begin are context
    # A piece ends where the next token has another mark.
    marks = [(bool(mark), token in special) for token, mark in zip(tokens, trained, strict=True)]
    for end, mark in enumerate(marks, 1):
        if decoder is None:
            text = f" {tokens[end - 1]}"
        else:
            context = decoder.decode(tokens[before:begin], skip_special_tokens=False)
            text = decoder.decode(tokens[before:end], skip_special_tokens=False)[len(context) :]
            waits = text.endswith(_INCOMPLETE) and end - begin < _MOST
            if waits and end < len(tokens) and marks[end] == mark:
                continue
        yield Piece(begin, text, *mark)
        before = end if text.endswith(_INCOMPLETE) else begin
        begin = end


def lines_of(pieces: Iterable[Piece], width: int) -> Iterator[list[Piece]]:
    """Arrange pieces in lines of at most `width` columns, unless one piece is wider."""
    from rich.cells import cell_len

    line, used = list[Piece](), 0
    for piece in pieces:
        for text in re.findall(r"[^\n]*\n|[^\n]+", piece.text):
            part = piece._replace(text=text.translate(VISIBLE))
            size = cell_len(part.text)
            if line and used + size > width:
                yield line
                line, used = [], 0
            line.append(part)
            used += size
            if text.endswith("\n"):
                yield line
                line, used = [], 0
    if line:
        yield line


def special_ids(facts: Mapping[str, Any], decoder: Any) -> frozenset[int]:
    """Ids of the special tokens that are known. facts: of the tokenizer, in a manifest."""
    ids = {facts[end][1] for end in ("bos", "eos") if facts.get(end)}
    if decoder is not None:
        ids |= {id_ for id_, token in decoder.get_added_tokens_decoder().items() if token.special}
    return frozenset(ids)
