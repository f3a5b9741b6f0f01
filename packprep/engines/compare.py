"""Texts on which the ids of two engines differ."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.engines.backends import Engine, Ids, Offsets


@dataclass
class Library:
    """Another library's tokenizer as an engine, to compare with. ids: of texts."""

    name: str
    version: str
    ids: Callable[[list[str]], list[list[int]]]
    notes: list[str] = field(default_factory=list)

    def encode(self, texts: pa.Array[Any]) -> tuple[Ids, Offsets]:
        """See `Engine.encode`."""
        encoded = self.ids([text for text in texts.to_pylist() if text is not None])
        offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        return np.fromiter(itertools.chain.from_iterable(encoded), np.int32), offsets


@dataclass(frozen=True)
class EngineDifference:
    """A text, as short as possible, on which two engines differ, and the ids of both."""

    text: str
    ids: list[int]
    expected: list[int]

    def __str__(self) -> str:
        return (
            f"on the text {_shown(self.text)} it gives {_shown(self.ids)} and the reference "
            f"{_shown(self.expected)}"
        )


def first_difference(
    engine: Engine, reference: Engine, texts: Sequence[str]
) -> EngineDifference | None:
    """First difference between two engines' ids, on a text as short as possible; None if equal."""
    array = pa.array(texts, pa.large_string())
    bad = unequal(*engine.encode(array), *reference.encode(array))
    return _narrowed(engine, reference, texts[bad[0]]) if len(bad) else None


def unequal(
    ids: Ids, offsets: Offsets, expected: Ids, expected_offsets: Offsets
) -> NDArray[np.int64]:
    """Documents that differ between two encodings of the same texts.

    int64, ascending; empty if all ids are equal.
    """
    documents = len(expected_offsets) - 1
    if len(offsets) != documents + 1 or offsets[0] != 0 or offsets[-1] != len(ids):
        return np.arange(max(documents, 1), dtype=np.int64)
    if np.array_equal(offsets, expected_offsets):
        if np.array_equal(ids, expected):
            return np.empty(0, np.int64)
        tokens = np.flatnonzero(ids != expected)
        return np.unique(np.searchsorted(offsets, tokens, side="right") - 1)
    bad = np.diff(offsets) != np.diff(expected_offsets)
    for document in np.flatnonzero(~bad):
        ours = ids[offsets[document] : offsets[document + 1]]
        theirs = expected[expected_offsets[document] : expected_offsets[document + 1]]
        bad[document] = not np.array_equal(ours, theirs)
    return np.flatnonzero(bad)


def _narrowed(engine: Engine, reference: Engine, text: str) -> EngineDifference:
    """Halve the text while one of its halves, or its middle, still differs."""
    while True:
        middle, quarter = len(text) // 2, len(text) // 4
        parts = [
            text[:middle],
            text[middle:],
            text[quarter : quarter + middle],
            text[1:],
            text[:-1],
        ]
        parts = [part for part in parts if len(part) < len(text)]
        array = pa.array(parts, pa.large_string())
        bad = unequal(*engine.encode(array), *reference.encode(array))
        if len(bad) == 0 or not text:
            break
        text = parts[bad[0]]
    batch = pa.array([text], pa.large_string())
    return EngineDifference(
        text, engine.encode(batch)[0].tolist(), reference.encode(batch)[0].tolist()
    )


def _shown(value: object) -> str:
    """One short line, ASCII only: `'\\u088f'`."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:60]}...{text[-16:]}"
