"""Texts with characters of a guard are found, and encoded by the reference."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from packprep.engines.backends import Ids, Offsets
from packprep.engines.guard import Guard, GuardedEngine
from packprep.engines.sweep import unswept

GUARDS = {
    "one character": Guard.from_text("17F"),
    "every length of UTF-8": Guard.from_text("80 7FF-800 FFFF-10000 10FFFF"),
    "many lead bytes": Guard.from_points([*range(0x80, 0x10000, 997), *range(0x1F600, 0x1F640)]),
    "not swept": unswept(),
    "nothing": Guard(),
}

characters = st.one_of(
    st.sampled_from("as' \u017f\u017e\x80\x81\u07ff\u0800\uffff\U00010000\U0010ffff\U0001f600"),
    st.characters(exclude_categories=["Cs"]),
)


@pytest.mark.parametrize("guard", GUARDS.values(), ids=GUARDS)
@given(texts=st.lists(st.text(characters, max_size=6), max_size=8), start=st.integers(0, 3))
@example(texts=["", "\u017f"], start=1)
def test_rows_are_those_that_hold_a_guarded_character(
    guard: Guard, texts: list[str], start: int
) -> None:
    ranges = [range(first, last + 1) for first, last in guard.ranges]
    expected = [
        row
        for row, text in enumerate(texts[start:])
        if any(ord(character) in points for points in ranges for character in text)
    ]
    for kind in (pa.string(), pa.large_string()):
        assert guard.rows(pa.array(texts, kind).slice(start)).tolist() == expected


@given(st.sets(st.integers(0x80, 0x10FFFF)))
def test_a_guard_is_written_and_read_as_the_same_code_points(points: set[int]) -> None:
    guard = Guard.from_points(points)
    assert Guard.from_text(str(guard)) == guard
    assert len(guard) == len(points)
    assert {point for first, last in guard.ranges for point in range(first, last + 1)} == points


class Marked:
    """An engine whose ids are the characters of a text, plus a number of its own."""

    version = "0.0"

    def __init__(self, name: str, mark: int) -> None:
        self.name, self.mark = name, mark
        self.notes: list[str] = []

    def encode(self, texts: pa.Array[Any]) -> tuple[Ids, Offsets]:
        lists = [
            [ord(character) + self.mark for character in str(text)] for text in texts.to_pylist()
        ]
        self.notes = [f"{self.name} was called"]
        flat = [token for ids in lists for token in ids]
        return np.array(flat, np.int32), np.cumsum([0, *map(len, lists)])


@given(texts=st.lists(st.text("ab\u017f", max_size=4), max_size=6))
def test_each_text_is_encoded_by_the_engine_that_the_guard_says(texts: list[str]) -> None:
    reference = Marked("hf", 0)
    engine = GuardedEngine(Marked("fastokens", 1000), lambda: reference, GUARDS["one character"])
    ids, offsets = engine.encode(pa.array(texts, pa.string()))
    expected = [
        [ord(character) + (0 if "\u017f" in text else 1000) for character in text] for text in texts
    ]
    assert [ids[first:last].tolist() for first, last in pairwise(offsets)] == (expected)
    assert (engine.notes == ["hf was called"]) == any("\u017f" in text for text in texts)
