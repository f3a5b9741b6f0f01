"""Text full of guarded characters: the ids and the bytes of every engine are the reference's.

The corpus holds the characters of every guard, alone and in every place in which engines are
compared, and code points that no sweep tries. Of ideographs it holds every 17th.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import pyarrow as pa
import pytest

from packprep.engines import sweep
from packprep.engines.backends import HfEngine, load_engine
from packprep.engines.compare import unequal
from packprep.engines.guard import Guard
from packprep.engines.known_guards import guard_for, known_guards
from packprep.engines.parity import choose_engine
from tests.helpers import stand_ins
from tests.helpers.corpus import SHARED

pytestmark = pytest.mark.long
FAST: tuple[Any, ...] = ("fastokens", "gigatoken")
TOKENIZERS = ("gpt2", "llama3_2", "qwen3", "mistral_nemo", "gemma2", "o200k", "deepseek")
PLACES = (
    *(*sweep._PLACES, *sweep._CONTRACTIONS),
    *("X", "XX", "I'X", "X'X", "1 a'X's", " X ", "\nX\n", "\r\nX", "1X1", "e\u0301X"),
    *("X\u0323\u0301", "\u1100X", "\u1100\u1161X", "<X>", "\u4e2dX\u4e2d", "\u0430X\u0430"),
    "X\U0001f600",
)
UNSWEPT = (0x14680, 0x1B400, 0x33480, 0xE0200, 0xF1234, 0x10FFFF)


def salted_texts(points: list[int]) -> list[str]:
    """Each code point in each place, one text each; all as one long text; text without any."""
    texts = [place.replace("X", chr(point)) for point in points for place in PLACES]
    pairs = [f"a{chr(one)}{chr(other)}a" for one, other in pairwise(points)]
    return [*texts, *pairs, "".join(texts), "the quick brown fox isn't here", ""]


def guarded_points(tokenizer: bytes) -> list[int]:
    """Code points of all guards that are known for this tokenizer, and some that no sweep tries."""
    parts = sweep.splitting(tokenizer)
    known = [entry["guards"] for entry in known_guards() if entry["splitting"] == parts]
    guards = [Guard.from_text(text) for texts in known for text in texts.values()]
    assert guards or parts is None  # or its guard is found by a sweep, as for Gemma
    ranges = [each for guard in guards for each in guard.ranges]
    points = {point for first, last in ranges for point in range(first, last + 1)}
    alike = sorted(points.intersection(range(0x20000, 0x33480)))  # thousands of ideographs
    return sorted({*points.difference(alike), *alike[::17], 0x17F, 0x301, 0x1161, *UNSWEPT})


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_ids_of_text_full_of_guarded_characters_are_those_of_the_reference(tokenizer: str) -> None:
    folders = (data / "tokenizers" / tokenizer for data in (SHARED, stand_ins.data()))
    folder = next(path for path in folders if path.exists())
    content = (folder / "tokenizer.json").read_bytes()
    texts = pa.array(salted_texts(guarded_points(content)), pa.large_string())
    expected = HfEngine(content).encode(texts)
    for name in FAST:
        pytest.importorskip(name, reason=f"{name} is not installed")
        choice = choose_engine(name, content)
        assert choice.engine.name == name
        bad = unequal(*choice.engine.encode(texts), *expected)
        assert [texts[row].as_py() for row in bad[:3]] == []


@pytest.mark.parametrize("name", FAST)
def test_without_its_guard_an_engine_gives_other_ids_for_this_text(name: Any) -> None:
    """So the texts above do try what the guard is for."""
    pytest.importorskip(name, reason=f"{name} is not installed")
    (o200k,) = (each["splitting"] for each in known_guards() if "o200k" in each["models"])
    tokenizer = sweep.swept_tokenizer(o200k)
    fast, reference = load_engine(name, tokenizer), HfEngine(tokenizer)
    texts = pa.array(salted_texts(guarded_points(tokenizer)), pa.large_string())
    bad = unequal(*fast.encode(texts), *reference.encode(texts))
    guard = guard_for(fast, tokenizer, lambda name, swept: load_engine(cast(Any, name), swept))
    assert guard is not None
    assert bool(len(bad)) == bool(guard)
    assert set(bad) <= set(guard.with_(sweep.unswept()).rows(texts))
