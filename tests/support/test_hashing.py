import ast
import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.support import hashing
from packprep.support.hashing import Purpose, drawn, mix, stream, stream_samples

PACKAGE = Path(hashing.__file__).parents[1]

KEYS = st.integers(0, 2**64 - 1).map(np.uint64)
GENERATORS = {"default_rng", "Generator", "SeedSequence", "BitGenerator", "RandomState", "Random"}
GENERATORS |= {"PCG64", "PCG64DXSM", "Philox", "SFC64", "MT19937", "SystemRandom"}
GENERATORS |= {"seed", "manual_seed"}
# Place of the key among the arguments.
KEYED = {"mix": 0, "drawn": 0, "hash64": 0, "shuffle": 3, "shuffle_queues": 2}


@given(KEYS)
def test_mixing_is_one_to_one_for_a_key(key: np.uint64) -> None:
    assert len(set(mix(key, np.arange(1000)).tolist())) == 1000


def test_mixing_gives_the_same_bits_on_every_machine() -> None:
    bits = mix(np.uint64(0), np.arange(2)).tolist()
    assert bits == [0xA706DD2F4D197E6F, 0x46B73E79F0C37C00]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_a_drawn_share_is_as_large_as_asked_and_a_smaller_one_lies_within_it(share: float) -> None:
    key, values = np.uint64(7), np.arange(100_000)
    assert abs(drawn(key, values, share).mean() - share) < 0.01
    assert not (drawn(key, values, share / 2) & ~drawn(key, values, share)).any()


def test_each_value_is_drawn_by_itself() -> None:
    key, values = np.uint64(3), np.arange(1000)
    assert (drawn(key, values[::-1], 0.3)[::-1] == drawn(key, values, 0.3)).all()


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


def test_what_one_purpose_draws_says_nothing_of_what_another_does() -> None:
    values = np.arange(100_000)
    keys = [stream(0, purpose) for purpose in Purpose] + [
        stream(0, Purpose.PLAN_LENGTHS, window) for window in (0, 1)
    ]
    for first, second in itertools.combinations([drawn(key, values, 0.1) for key in keys], 2):
        assert abs((first & second).mean() - 0.01) < 0.0016  # 5 standard deviations


def nodes(*, but: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Every node of the source of packprep, with the name of its file."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.stem != but:
            yield from ((path.name, node) for node in ast.walk(ast.parse(path.read_text())))


def name_of(node: ast.AST) -> str:
    """The last part of a name: seed of self.config.seed."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def is_stream(node: ast.AST) -> bool:
    """True if this is a call of `stream`, as an int or as it is."""
    if isinstance(node, ast.Call) and name_of(node.func) == "int":
        return is_stream(node.args[0])
    return isinstance(node, ast.Call) and name_of(node.func) == "stream"


def has_a_stream(call: ast.Call) -> bool:
    """False for a call that makes random numbers of anything but a stream.

    A constant makes the same numbers for every seed, as probes of an engine are.
    """
    name = name_of(call.func)
    if name in GENERATORS:
        return len(call.args) == 1 and (
            is_stream(call.args[0]) or isinstance(call.args[0], ast.Constant)
        )
    if name in KEYED:
        key = call.args[KEYED[name]]
        return is_stream(key) or name_of(key) in ("key", "_key")
    return not ast.unparse(call.func).startswith(("np.random.", "numpy.random."))


def test_whatever_is_random_has_a_stream_and_no_seed_is_reckoned_with() -> None:
    wrong = [
        f"{file}:{node.lineno}: {ast.unparse(node)}"
        for file, node in nodes(but="hashing")
        if (isinstance(node, ast.Call) and not has_a_stream(node))
        or (
            isinstance(node, ast.BinOp)
            and any(name_of(side).strip("_").endswith("seed") for side in (node.left, node.right))
        )
    ]
    assert wrong == []


def test_each_purpose_has_one_place() -> None:
    used = Counter(
        node.attr
        for _, node in nodes()
        if isinstance(node, ast.Attribute) and name_of(node.value) == "Purpose"
    )
    assert used == Counter(purpose.name for purpose in Purpose)


def test_the_samples_of_all_streams_differ_and_stay_the_same() -> None:
    samples = stream_samples()
    assert len({*samples.values()}) == len(Purpose)
    expected = mix(stream(0, Purpose.HOLDOUT), np.array([0, 1]))
    assert samples["holdout"] == "".join(f"{int(bits):016x}" for bits in expected)
