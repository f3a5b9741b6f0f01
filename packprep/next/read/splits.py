"""Splits: ranges of files, decided by sizes alone.

Any process can begin with any split. All splits in order are all rows, once, in input order,
whatever the number of workers.
"""

from collections.abc import Sequence

from .formats.registry import FORMATS
from .types import Piece, Source, Split

SPLIT_BYTES = 16_000_000


def splits(sources: Sequence[Source], size: int = SPLIT_BYTES) -> list[Split]:
    """Splits of about `size` bytes; a file that cannot be cut is one piece."""
    made: list[Split] = []
    pending: list[Piece] = []
    filled = 0
    for source in sources:
        pieces = pieces_of(source, size)
        for number, piece in enumerate(pieces):
            share = source.bytes // len(pieces)
            if pending and filled + share > size:
                made.append(tuple(pending))
                pending, filled = [], 0
            pending.append(piece)
            filled += share
            if number < len(pieces) - 1 and filled >= size:
                made.append(tuple(pending))
                pending, filled = [], 0
    return [*made, tuple(pending)] if pending else made


def pieces_of(source: Source, size: int) -> list[Piece]:
    """Pieces of a source, in order."""
    cut = FORMATS[source.format].cut
    places = [0] if cut is None or source.compression else cut(source, size)
    ends = [*places[1:], -1]
    return [Piece(source.number, *place) for place in zip(places, ends, strict=True)]
