"""The sweep finds each character on which an engine differs, and no other."""

from __future__ import annotations

import unicodedata
from typing import Any

import pyarrow as pa
import pytest

from packprep.engines import sweep
from packprep.engines.backends import Engine, HfEngine, Ids, Offsets, load_engine
from packprep.engines.compare import unequal
from packprep.engines.guard import Guard, GuardedEngine
from packprep.engines.known_guards import KnownGuard, known_guards
from packprep.support.errors import InputError
from tests.helpers.examples import long_but

ALPHABETS = ((0x80, 0x600), (0x1100, 0x1200), (0xAC00, 0xAD00))  # a quick sweep
ENTRIES = {entry["models"]: entry for entry in known_guards()}


class Substituting(HfEngine):
    """The reference for texts in which some characters are replaced by others.

    Stands for an engine with other tables.
    """

    def __init__(self, tokenizer_json: bytes, replaced: dict[str, str]) -> None:
        super().__init__(tokenizer_json)
        self.replaced = replaced

    def encode(self, texts: pa.Array[Any]) -> tuple[Ids, Offsets]:
        changed = [str(text) for text in texts.to_pylist()]
        for old, new in self.replaced.items():
            changed = [text.replace(old, new) for text in changed]
        return super().encode(pa.array(changed, pa.large_string()))


class Remembered(HfEngine):
    """The reference, which encodes the same texts once for all engines of a test."""

    def __init__(self, tokenizer_json: bytes) -> None:
        super().__init__(tokenizer_json)
        self.results: dict[tuple[str, ...], tuple[Ids, Offsets]] = {}

    def encode(self, texts: pa.Array[Any]) -> tuple[Ids, Offsets]:
        key = tuple(map(str, texts.to_pylist()))
        if key not in self.results:
            self.results[key] = super().encode(texts)
        return self.results[key]


@pytest.mark.parametrize(
    ("old", "new", "guard"),
    [
        ("'\u017f", "' \u017f", "17F"),  # not one word after an apostrophe
        ("A'\u017f", "A' \u017f", "17F"),  # only after a capital and an apostrophe
        ("\u0430", "b", "430"),
        ("1\u00bd", "1 \u00bd", "BD"),
        (".\u00bf", ". \u00bf", "BF"),
        ("\u00a0\n", "\n", "A0"),
        ("\u0301\u0323", "\u0323\u0301", "323"),  # another canonical order
        ("e\u0302", "\u00ea", "302"),  # composed
        ("\u1100\u1161\u11a8", "\uac01", "1161 11A8"),
        ("\uac07\uac08", "\uac07 \uac08", "AC08"),
        ("x", "x", ""),
    ],
)
def test_the_character_that_makes_a_text_differ_is_found(old: str, new: str, guard: str) -> None:
    tokenizer = sweep.swept_tokenizer(ENTRIES["gpt-oss (o200k)"]["splitting"])
    found = sweep.find_guard(Substituting(tokenizer, {old: new}), HfEngine(tokenizer), ALPHABETS)
    assert found is not None
    assert set(str(found).split()) <= set(guard.split())
    assert bool(found) == bool(guard)


def test_an_engine_that_differs_on_many_characters_has_no_guard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweep, "LIMIT", 20)
    tokenizer = sweep.swept_tokenizer(ENTRIES["GPT-2"]["splitting"])
    cyrillic = {chr(point): "b" for point in range(0x430, 0x450)}
    engine = Substituting(tokenizer, cyrillic)
    assert sweep.find_guard(engine, HfEngine(tokenizer), ALPHABETS) is None


def test_code_points_that_are_sampled_are_letters_in_every_table() -> None:
    sampled = sweep._points(sweep._UNIFORM)
    assert {unicodedata.category(chr(point)) for point in sampled} == {"Lo", "Co"}


def test_swept_and_unswept_code_points_are_all_beyond_ascii() -> None:
    swept = {point for first, end in sweep.SWEPT for point in range(first, end)}
    unswept = {x for first, last in sweep.unswept().ranges for x in range(first, last + 1)}
    assert not swept & unswept
    assert swept | unswept == {*range(0x80, 0xD800), *range(0xE000, 0x110000)}


@pytest.fixture(scope="module", params=long_but(["GPT-2"], ENTRIES))
def known(request: pytest.FixtureRequest) -> tuple[KnownGuard, bytes, Remembered]:
    entry = ENTRIES[request.param]
    tokenizer = sweep.swept_tokenizer(entry["splitting"])
    return entry, tokenizer, Remembered(tokenizer)


@pytest.mark.long
@pytest.mark.parametrize("name", ["fastokens", "gigatoken"])
def test_a_known_guard_is_the_one_that_a_sweep_finds(
    known: tuple[KnownGuard, bytes, Remembered], name: Any
) -> None:
    """And the guarded engine gives the reference's ids on texts full of these characters."""
    entry, tokenizer, reference = known
    pytest.importorskip(name, reason=f"{name} is not installed")
    try:
        fast = load_engine(name, tokenizer)
    except InputError:
        assert not any(engine.startswith(name) for engine in entry["guards"])
        return
    text = entry["guards"].get(f"{fast.name} {fast.version}")
    if text is None or entry["tokenizers"] != reference.version:
        pytest.skip("no guard is known for these versions")
    found = sweep.find_guard(fast, reference)
    assert str(found) == text
    assert found is not None
    assert_same_ids(GuardedEngine(fast, lambda: reference, found), reference, found)


def assert_same_ids(engine: Engine, reference: Engine, guard: Guard) -> None:
    points = [point for first, last in guard.ranges for point in (first, last)]
    contexts = ("X", "aX", "I'X", "I'Xa", "X's", "1X1", ".X.", " X ", "\nX\n", "AX\u0301", "XX")
    salted = [place.replace("X", chr(point)) for point in points for place in contexts]
    texts = pa.array([*salted, "".join(salted), "a text without them", ""], pa.large_string())
    assert unequal(*engine.encode(texts), *reference.encode(texts)).tolist() == []
