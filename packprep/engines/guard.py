"""Characters on which a fast engine differs from the reference, and the engine that routes by them.

A `Guard` is a set of code points. A text that holds one of them is encoded by the reference, whole;
every other text by the fast engine. `packprep.engines.sweep` finds the set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.engines.backends import Engine, Ids, Offsets, text_characters, text_starts

# Lead bytes that are compared one by one. Past that many, one table of all bytes is faster.
_COMPARED = 6


@dataclass(frozen=True)
class Guard:
    """A set of code points from U+0080 on, as ranges: first and last, ascending."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_points(cls, points: Iterable[int]) -> Guard:
        """The guard of these code points. Example: {5, 6, 9} -> ((5, 6), (9, 9))."""
        ranges: list[list[int]] = []
        for point in sorted(set(points)):
            if ranges and point == ranges[-1][1] + 1:
                ranges[-1][1] = point
            else:
                ranges.append([point, point])
        return cls(tuple((first, last) for first, last in ranges))

    @classmethod
    def from_text(cls, text: str) -> Guard:
        """The guard that `str` wrote."""
        ends = [item.split("-") for item in text.split()]
        return cls(tuple((int(end[0], 16), int(end[-1], 16)) for end in ends))

    def __str__(self) -> str:
        """Code points in hexadecimal. Example: "17F 1E4D0-1E4F9"."""
        return " ".join(
            f"{first:X}" if first == last else f"{first:X}-{last:X}" for first, last in self.ranges
        )

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)

    def characters(self) -> str:
        """The number of characters, for people. Example: "one of 34 certain characters"."""
        return (
            "1 certain character" if len(self) == 1 else f"one of {len(self):,} certain characters"
        )

    def with_(self, other: Guard) -> Guard:
        """Both sets together; they have no code point in common."""
        return Guard(tuple(sorted(self.ranges + other.ranges)))

    def rows(self, texts: pa.Array[Any]) -> NDArray[np.int64]:
        """Texts that hold one of the characters, ascending.

        texts: as in `Engine.encode`. The bytes are scanned once: ASCII at 20 GB a second, other
        text at 1 to 5.
        """
        starts = text_starts(texts)
        none = np.empty(0, np.int64)
        if not self.ranges or starts[0] == starts[-1]:
            return none
        scanned = np.frombuffer(text_characters(texts), np.uint8)[starts[0] : starts[-1]]
        if scanned.max() < self._leads[0]:
            return none
        places = np.flatnonzero(self._may_begin(scanned))
        if len(places):
            # A lead byte is never the last of a text.
            keys = scanned[places].astype(np.uint16) << 8 | scanned[places + 1]
            places = places[self._pairs[keys]]
        if len(places):
            places = places[self._holds(_code_points(scanned, places))]
        return np.unique(np.searchsorted(starts, places + starts[0], side="right") - 1)

    def _may_begin(self, scanned: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """True for bytes that begin one of the characters, and maybe for others like them."""
        leads = [lead for lead in self._leads if lead < 0xF0]
        if len(leads) > _COMPARED:
            return np.frombuffer(scanned.tobytes().translate(self._table), np.bool_)
        mask = scanned >= 0xF0
        for lead in leads:
            mask |= scanned == lead
        return mask

    def _holds(self, points: NDArray[np.int64]) -> NDArray[np.bool_]:
        firsts, lasts = np.array(self.ranges, np.int64).T
        places = np.searchsorted(firsts, points, side="right") - 1
        held: NDArray[np.bool_] = (places >= 0) & (points <= lasts[places])
        return held

    @cached_property
    def _pairs(self) -> NDArray[np.bool_]:
        """True for the first two bytes of the characters: [65536], by their value as uint16."""
        pairs = np.zeros(1 << 16, np.bool_)
        for first, last in self.ranges:
            # Code points of one length whose first two bytes are the same follow each other.
            for low, high, step in (
                (0x80, 0x800, 1),
                (0x800, 1 << 16, 64),
                (1 << 16, 1 << 21, 4096),
            ):
                for point in range(max(first, low) // step * step, min(last + 1, high), step):
                    lead, second = _two_bytes(point)
                    pairs[lead << 8 | second] = True
        return pairs

    @cached_property
    def _leads(self) -> list[int]:
        return sorted({int(key) >> 8 for key in np.flatnonzero(self._pairs)})

    @cached_property
    def _table(self) -> bytes:
        return bytes(byte in self._leads for byte in range(256))


def _two_bytes(point: int) -> tuple[int, int]:
    """First two bytes of a code point in UTF-8; also of a surrogate."""
    if point < 0x800:
        return 0xC0 | point >> 6, 0x80 | point & 63
    if point < 1 << 16:
        return 0xE0 | point >> 12, 0x80 | point >> 6 & 63
    return 0xF0 | point >> 18, 0x80 | point >> 12 & 63


def _code_points(scanned: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Code points that begin at places; their bytes are 2, 3 or 4."""
    lead = scanned[places].astype(np.int64)
    size = 2 + (lead >= 0xE0) + (lead >= 0xF0)
    points = lead & (0x7F >> size)
    for place in range(1, 4):
        longer = size > place
        more = scanned[np.where(longer, places + place, places)] & np.uint8(63)
        points = np.where(longer, points << 6 | more, points)
    return points


class GuardedEngine:
    """A fast engine for texts without characters of a guard, and the reference for the others."""

    def __init__(self, fast: Engine, reference: Callable[[], Engine], guard: Guard) -> None:
        self.name, self.version = fast.name, fast.version
        self.fast, self.guard = fast, guard
        self.notes = fast.notes
        self._reference = reference

    def encode(self, texts: pa.Array[Any]) -> tuple[Ids, Offsets]:
        """See `Engine.encode`."""
        rows = self.guard.rows(texts)
        if not len(rows):
            return self.fast.encode(texts)
        others = np.setdiff1d(np.arange(len(texts)), rows, assume_unique=True)
        reference = self._reference()
        merged = _merged(
            [
                (part, engine.encode(texts.take(pa.array(part, pa.int64()))))
                for part, engine in ((rows, reference), (others, self.fast))
            ]
        )
        self.notes += [note for note in reference.notes if note not in self.notes]
        return merged


def _merged(parts: Sequence[tuple[NDArray[np.int64], tuple[Ids, Offsets]]]) -> tuple[Ids, Offsets]:
    """Ids of texts that were encoded in parts; each part has the rows of its texts."""
    lengths = np.zeros(sum(len(rows) for rows, _ in parts), np.int64)
    for rows, (_, offsets) in parts:
        lengths[rows] = np.diff(offsets)
    merged = np.empty(lengths.sum(), np.int32)
    for rows, (ids, _) in parts:
        chosen = np.zeros(len(lengths), np.bool_)
        chosen[rows] = True
        merged[np.repeat(chosen, lengths)] = ids
    return merged, np.append(0, np.cumsum(lengths))
