"""Documents of the turns of a row, and counts of rows and of these documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TypedDict


@dataclass(frozen=True)
class TurnCounts:
    """Counts of rows and their turns.

    documents: made of all rows, skipped ones included.
    split_rows: rows with a document per turn.
    same_text_rows: rows that stay whole although a later rendering differs, since it keeps the text
    of all messages.
    without_turn: rows without a turn of the assistant; they stay whole.
    at_text: turns that do not begin with their generation prompt and are trained from their own
    text on.
    earlier: turns without a document, because of max_turns.
    behind_rows, behind_characters: rows with text after their last turn, which is in no document,
    and that text.
    """

    documents: int = 0
    split_rows: int = 0
    same_text_rows: int = 0
    without_turn: int = 0
    at_text: int = 0
    earlier: int = 0
    behind_rows: int = 0
    behind_characters: int = 0

    def __add__(self, other: TurnCounts) -> TurnCounts:
        return TurnCounts(*map(sum, zip(self.values(), other.values(), strict=True)))

    def values(self) -> list[int]:
        """The counts in the order of the fields."""
        return [getattr(self, spec.name) for spec in fields(self)]


class TurnDocument(TypedDict):
    """The document of a turn. message: of the turn. size: in characters.

    trained, specials: positions in it, see `masks.RENDERED`.
    """

    message: int
    size: int
    trained: list[int] | None
    specials: list[int] | None


class RowTurns(TypedDict):
    """The documents of a row, None for one of the whole row, and the fields of its TurnCounts."""

    documents: list[TurnDocument] | None
    counts: list[int]


def sum_counts(values: Iterable[Sequence[int] | None]) -> TurnCounts:
    """Sum of counts in the order of the fields; None, a row without text, is one document."""
    total = TurnCounts()
    for counts in values:
        total += TurnCounts(*counts) if counts is not None else TurnCounts(documents=1)
    return total
