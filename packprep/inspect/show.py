"""Text of a segment, in lines that start with the position of their first token.

Tokens are decoded one by one. A token that is only part of a character is shown with the tokens
that complete it. A line ends at a line feed (shown as ⏎) or at the width of the terminal.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.schemas.columns import NO_LOSS

# Symbols for control characters: text from data must not control the terminal.
_VISIBLE = {code: chr(0x2400 + code) for code in range(32)} | dict.fromkeys(range(128, 160), "␦")
_VISIBLE |= {ord("\n"): "⏎", ord("\t"): "→", 0x7F: "␡"}


@dataclass(frozen=True)
class TextPiece:
    """Consecutive tokens that form complete characters. position: of the first, in its segment."""

    position: int
    text: str
    trained: bool
    special: bool
    ends_line: bool


def pieces_as_text(
    ids: NDArray[np.int32],
    tokenizer: Any,
    special: frozenset[int],
    labels: NDArray[np.int32] | None,
) -> Iterator[TextPiece]:
    """Decode the tokens of a segment.

    special: ids of special tokens. labels: of these tokens, or None.
    """
    from tokenizers.decoders import DecodeStream

    stream, begin = DecodeStream(skip_special_tokens=False), 0
    trained = np.ones(len(ids), np.bool_) if labels is None else labels != NO_LOSS
    for position, token in enumerate(ids.tolist()):
        text = stream.step(tokenizer, token)
        last = position == len(ids) - 1
        # Wait for the rest of the character, unless the next token differs in its label.
        if text is None and not last and trained[position + 1] == trained[position]:
            continue
        decoded = (
            text
            if text is not None
            else tokenizer.decode(ids[begin : position + 1].tolist(), False)
        )
        for part in re.findall(r"[^\n]*\n|[^\n]+", decoded):
            yield TextPiece(
                begin,
                part.translate(_VISIBLE),
                bool(trained[begin]),
                token in special,
                part.endswith("\n"),
            )
        if text is None and not last:
            stream = DecodeStream(skip_special_tokens=False)
        begin = position + 1


def pieces_as_ids(
    ids: NDArray[np.int32], special: frozenset[int], labels: NDArray[np.int32] | None
) -> Iterator[TextPiece]:
    """Show the tokens of a segment as ids."""
    for position, token in enumerate(ids.tolist()):
        trained = labels is None or int(labels[position]) != NO_LOSS
        yield TextPiece(position, f" {token}", trained, token in special, False)


def lines(pieces: Iterator[TextPiece], width: int) -> Iterator[list[TextPiece]]:
    """Arrange pieces in lines of at most `width` columns, unless a single piece is wider."""
    from rich.cells import cell_len

    line: list[TextPiece] = []
    used = 0
    for piece in pieces:
        if line and used + cell_len(piece.text) > width:
            yield line
            line, used = [], 0
        line.append(piece)
        used += cell_len(piece.text)
        if piece.ends_line:
            yield line
            line, used = [], 0
    if line:
        yield line
