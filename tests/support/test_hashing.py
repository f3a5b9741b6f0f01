import itertools
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.support import hashing
from packprep.support.hashing import Purpose, drawn, mix, stream

PACKAGE = Path(hashing.__file__).parents[1]

KEYS = st.integers(0, 2**64 - 1).map(np.uint64)
GENERATORS = r"\b(?:default_rng|Generator|SeedSequence|RandomState|Random|PCG64|manual_seed)"
# A constant makes the same numbers for every seed, as probes of an engine are.
WITHOUT_STREAM = rf"{GENERATORS}\((?!int\(stream\(|\d)|np\.random\.(?!{GENERATORS})"
RECKONED = r"seed\b *[-+*^%/] |[-+*^%/] (\w+\.)*\w*seed\b"


@given(KEYS)
def test_mixing_is_one_to_one_for_a_key(key: np.uint64) -> None:
    assert len(set(mix(key, np.arange(1000)).tolist())) == 1000


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_a_drawn_share_is_as_large_as_asked_and_a_smaller_one_lies_within_it(share: float) -> None:
    key, values = np.uint64(7), np.arange(100_000)
    assert abs(drawn(key, values, share).mean() - share) < 0.01
    assert not (drawn(key, values, share / 2) & ~drawn(key, values, share)).any()


def test_streams_have_the_same_keys_on_every_machine_and_in_every_version() -> None:
    assert [purpose.value for purpose in Purpose] == list(range(1, 21))
    assert stream(0, Purpose.UNIT_ORDER) == 0x84188AFFA97DB446
    assert stream(2**64, Purpose.UNIT_ORDER) == 0x84188AFFA97DB446
    assert stream(-1, Purpose.EPOCH, 3) == 0x24AD85C6C0494970


@given(st.lists(st.integers(-(2**70), 2**70), max_size=4), st.integers(0, 2**40))
def test_no_two_streams_collide(seeds: list[int], number: int) -> None:
    different = {seed % 2**64 for seed in (*seeds, 0, -1, 2**32, 2**63)}
    numbers = {(), (0,), (1,), (number,), (0, 0), (0, 1), (1, 0), (number, 1)}
    keys = [
        stream(seed, purpose, *some)
        for seed, purpose, some in itertools.product(different, Purpose, numbers)
    ]
    assert len(set(keys)) == len(keys)
    of_numpy: Any = np.int64(number)
    assert stream(-1, Purpose.EPOCH, of_numpy) == stream(2**64 - 1, Purpose.EPOCH, number)


def test_whatever_is_random_has_a_stream_of_its_own_and_no_seed_is_reckoned_with() -> None:
    used: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        if PACKAGE / "next" in path.parents:
            continue
        text = path.read_text()
        used.update(re.findall(r"Purpose\.([A-Z_]+)", text))
        if path.name != "hashing.py":
            code = re.sub(r'"{3}[^"]*"{3}|"[^"\n]*"|#.*', "", text)
            wrong = re.search(f"{WITHOUT_STREAM}|{RECKONED}", code)
            assert wrong is None, (path, wrong)
    assert used == Counter(purpose.name for purpose in Purpose)
