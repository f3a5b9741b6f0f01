"""A segment as lines of text, so that a person can see what is trained.

Each line has the position of its first token.

Tokens are decoded one by one. Some tokens are only part of a character; they are shown together
with those that complete it. A line ends where the text has a line feed (shown as ⏎) or where the
terminal ends.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.schemas.columns import NO_LOSS

# Pictures of control characters: text from data must not steer the terminal.
_VISIBLE = {code: chr(0x2400 + code) for code in range(32)} | dict.fromkeys(range(128, 160), "␦")
_VISIBLE |= {ord("\n"): "⏎", ord("\t"): "→", 0x7F: "␡"}


@dataclass(frozen=True)
class TextPiece:
    """Neighbouring tokens that make whole characters. position: of the first, in its segment."""

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
    """The tokens of a segment as text.

    special: ids shown as what they are. labels: of these tokens, None for none.
    """
    from tokenizers.decoders import DecodeStream

    stream, begin = DecodeStream(skip_special_tokens=False), 0
    trained = np.ones(len(ids), np.bool_) if labels is None else labels != NO_LOSS
    for position, token in enumerate(ids.tolist()):
        text = stream.step(tokenizer, token)
        last = position == len(ids) - 1
        # A character is whole, or what comes next is another kind of token.
        if text is None and not last and trained[position + 1] == trained[position]:
            continue
        whole = (
            text
            if text is not None
            else tokenizer.decode(ids[begin : position + 1].tolist(), False)
        )
        for part in re.findall(r"[^\n]*\n|[^\n]+", whole):
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
    """The tokens of a segment as their ids."""
    for position, token in enumerate(ids.tolist()):
        trained = labels is None or int(labels[position]) != NO_LOSS
        yield TextPiece(position, f" {token}", trained, token in special, False)


def lines(pieces: Iterator[TextPiece], width: int) -> Iterator[list[TextPiece]]:
    """Pieces line by line, each at most `width` columns where a piece allows it."""
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
