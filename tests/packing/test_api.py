"""Plans of pack_lengths.

Every strategy against its reference, every constraint, every order, every wrong argument.
"""

import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packprep.packing import strategies
from packprep.packing.api import STRATEGIES, pack_lengths
from packprep.packing.kernels.balanced import longest_first
from packprep.packing.plan import PackPlan
from packprep.support.errors import ConfigError
from tests.helpers import reference
from tests.helpers.reference import Pack, contents, fill

ORDERS = ("shuffle", "input", "length", "balanced")


def packs_of(plan: PackPlan) -> list[Pack]:
    return [
        plan.order[a:b].tolist() for a, b in zip(plan.offsets[:-1], plan.offsets[1:], strict=True)
    ]


@st.composite
def instances(draw: st.DrawFn, most: int = 40, capacity: int = 40) -> tuple[list[int], int]:
    """Lengths and a capacity.

    Few distinct lengths as often as many, documents of the full length, no documents.
    """
    size = draw(st.integers(1, capacity))
    pool = draw(st.lists(st.integers(1, size), min_size=1, max_size=8))
    lengths = st.sampled_from(pool) if draw(st.booleans()) else st.integers(1, size)
    return draw(st.lists(lengths, max_size=most)), size


@settings(max_examples=1000)
@given(instances(), st.integers(0, 3))
def test_best_fit_equals_best_fit_decreasing_document_by_document(
    instance: tuple[list[int], int], seed: int
) -> None:
    lengths, capacity = instance
    plan = pack_lengths(lengths, capacity, "best_fit", seed)
    plan.check()
    assert sorted(plan.fills.tolist()) == sorted(
        fill(p, lengths) for p in reference.best_fit(lengths, capacity)
    )


@settings(max_examples=1000)
@given(instances(), st.sampled_from(["first_fit", "knapsack"]))
def test_first_fit_and_knapsack_have_the_contents_of_both_reference_packers(
    instance: tuple[list[int], int], strategy: str
) -> None:
    lengths, capacity = instance
    plan = pack_lengths(lengths, capacity, strategy)
    plan.check()
    packed = contents(packs_of(plan), lengths)
    assert packed == contents(reference.first_fit(lengths, capacity), lengths)
    assert packed == contents(reference.knapsack(lengths, capacity), lengths)


@settings(max_examples=1000)
@given(instances(), st.integers(1, 6))
def test_strategies_in_input_order_make_the_packs_of_their_references(
    instance: tuple[list[int], int], slots: int
) -> None:
    lengths, capacity = instance
    greedy = pack_lengths(lengths, capacity, "greedy", order="input", max_segments_per_pack=slots)
    assert packs_of(greedy) == reference.greedy(lengths, capacity, slots)
    first = pack_lengths(
        lengths, capacity, "first_fit_input", order="input", max_segments_per_pack=slots
    )
    assert packs_of(first) == reference.first_fit(lengths, capacity, slots, decreasing=False)
    stream = pack_lengths(lengths, capacity, "stream", order="input", max_segments_per_pack=slots)
    assert packs_of(stream) == sorted(reference.stream(lengths, capacity, slots))


@settings(max_examples=300)
@given(instances(), st.integers(2, 6), st.lists(st.integers(1, 3), min_size=40, max_size=40))
def test_first_fit_in_input_order_takes_atoms_where_tokens_and_segments_fit(
    instance: tuple[list[int], int], slots: int, sizes: list[int]
) -> None:
    """Each atom is `sizes` documents of 1 token, the last with the rest of its tokens."""
    totals, capacity = instance
    sizes = [min(total, size, slots) for total, size in zip(totals, sizes, strict=False)]
    lengths = [
        n
        for total, size in zip(totals, sizes, strict=True)
        for n in [1] * (size - 1) + [total - size + 1]
    ]
    atoms = np.repeat(np.arange(len(totals)), sizes)
    plan = pack_lengths(
        lengths,
        capacity,
        "first_fit_input",
        order="input",
        atoms=atoms,
        max_segments_per_pack=slots,
    )
    packs: list[list[int]] = []
    for atom, (total, size) in enumerate(zip(totals, sizes, strict=True)):
        for pack in packs:
            tokens, segments = sum(totals[a] for a in pack), sum(sizes[a] for a in pack)
            if tokens + total <= capacity and segments + size <= slots:
                pack.append(atom)
                break
        else:
            packs.append([atom])
    assert [list(dict.fromkeys(atoms[pack].tolist())) for pack in packs_of(plan)] == packs


@settings(max_examples=300)
@given(instances())
def test_stream_is_never_worse_than_best_fit_in_input_order(
    instance: tuple[list[int], int],
) -> None:
    lengths, capacity = instance
    plan = pack_lengths(lengths, capacity, "stream")
    plan.check()
    online = reference.best_fit(lengths, capacity, decreasing=False)
    assert plan.num_packs <= min(len(online), len(reference.stream(lengths, capacity)))


@settings(max_examples=1000)
@given(instances())
def test_optimal_never_needs_more_packs_than_best_fit(instance: tuple[list[int], int]) -> None:
    lengths, capacity = instance
    plan = pack_lengths(lengths, capacity, "optimal")
    plan.check()
    assert plan.num_packs <= len(reference.best_fit(lengths, capacity))


def test_optimal_solves_nearly_every_small_instance_that_best_fit_does_not() -> None:
    random = np.random.default_rng(0)
    missed = {"best_fit": 0, "optimal": 0}
    for _ in range(300):
        lengths = random.integers(5, 31, 10).tolist()
        fewest = reference.fewest_packs(lengths, 40)
        for strategy in missed:
            missed[strategy] += pack_lengths(lengths, 40, strategy).num_packs > fewest
    assert missed["optimal"] <= missed["best_fit"] // 2 < 150


@pytest.mark.parametrize("strategy", ["optimal", "best_fit"])
def test_johnsons_instance_where_decreasing_strategies_need_eleven_ninths(strategy: str) -> None:
    half, quarter = 2048, 1024
    block = [half + 16] * 6 + [quarter + 32] * 6 + [quarter + 16] * 6 + [quarter - 32] * 12
    plan = pack_lengths(np.random.default_rng(0).permutation(block * 100), 4096, strategy)
    assert (plan.num_packs, plan.bound) == (900 if strategy == "optimal" else 1100, 900)


@pytest.mark.parametrize("strategy", STRATEGIES)
class TestEveryStrategy:
    @settings(max_examples=100)
    @given(data=st.data())
    def test_obeys_all_constraints_at_once(self, strategy: str, data: st.DataObject) -> None:
        lengths, capacity = data.draw(instances())
        count = len(lengths)
        slots = data.draw(st.none() | st.integers(1, 5))
        groups = data.draw(st.none() | st.lists(st.integers(-2, 2), min_size=count, max_size=count))
        order = data.draw(st.sampled_from(ORDERS))
        shuffled = data.draw(st.booleans())
        plan = pack_lengths(
            lengths,
            capacity,
            strategy,
            order=order,
            groups=groups,
            max_segments_per_pack=slots,
            shuffle_documents=shuffled,
        )
        plan.check()
        packs = packs_of(plan)
        assert all(pack == sorted(pack) for pack in packs)
        assert all(len(pack) <= (slots or 40) for pack in packs)
        assert groups is None or all(len({groups[d] for d in pack}) == 1 for pack in packs)
        assert plan.bound <= plan.num_packs
        if order == "input":
            assert [pack[0] for pack in packs] == sorted(pack[0] for pack in packs)
        if order == "length":
            longest = [max(lengths[d] for d in pack) for pack in packs]
            assert longest == sorted(longest, reverse=True)

    @settings(max_examples=100)
    @given(data=st.data())
    def test_never_separates_the_documents_of_an_atom(
        self, strategy: str, data: st.DataObject
    ) -> None:
        sizes = data.draw(
            st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), max_size=12)
        )
        lengths = [length for atom in sizes for length in atom]
        atoms = [number for number, atom in enumerate(sizes) for _ in atom]
        slots, order = data.draw(st.none() | st.integers(3, 6)), data.draw(st.sampled_from(ORDERS))
        groups = data.draw(st.none() | st.just([atom % 2 for atom in atoms]))
        plan = pack_lengths(
            lengths,
            27,
            strategy,
            atoms=atoms,
            groups=groups,
            max_segments_per_pack=slots,
            order=order,
        )
        plan.check()
        packs = packs_of(plan)
        if order == "length":
            longest = [max(lengths[d] for d in pack) for pack in packs]
            assert longest == sorted(longest, reverse=True)
        assert all(pack == sorted(pack) and len(pack) <= (slots or 40) for pack in packs)
        atoms_of_packs = [sorted({atoms[d] for d in pack}) for pack in packs]
        assert sorted(atom for pack in atoms_of_packs for atom in pack) == list(range(len(sizes)))
        assert plan.bound <= plan.num_packs

    def test_packs_nothing_into_no_packs(self, strategy: str) -> None:
        plan = pack_lengths([], 8, strategy, groups=[], atoms=[])
        assert (plan.num_packs, plan.order.tolist(), plan.offsets.tolist(), plan.bound) == (
            0,
            [],
            [0],
            0,
        )
        assert (plan.utilization, plan.gap, plan.gap_share, plan.bias, plan.straggler(8)) == (
            1.0,
            0,
            0.0,
            0.0,
            1.0,
        )

    @pytest.mark.parametrize(
        ("length", "count", "capacity", "packs"),
        [
            (1, 1, 1, 1),
            (1, 5, 1, 5),
            (1, 5, 2, 3),
            (2, 5, 2, 5),
            (8, 3, 8, 3),
            (3, 7, 10, 3),
            (7, 1, 1000, 1),
        ],
    )
    def test_packs_equal_documents_as_tightly_as_possible(
        self, strategy: str, length: int, count: int, capacity: int, packs: int
    ) -> None:
        plan = pack_lengths([length] * count, capacity, strategy)
        plan.check()
        assert plan.num_packs == plan.bound == packs

    @pytest.mark.parametrize("order", ORDERS)
    def test_gives_the_same_plan_again_in_any_thread(self, strategy: str, order: str) -> None:
        lengths = np.random.default_rng(1).integers(1, 100, 5000)
        with ThreadPoolExecutor(4) as threads:
            plans = list(
                threads.map(
                    lambda _: pack_lengths(lengths, 256, strategy, 7, order=order), range(4)
                )
            )
        for plan in plans[1:]:
            assert np.array_equal(plan.order, plans[0].order)
            assert np.array_equal(plan.offsets, plans[0].offsets)

    def test_takes_any_integers(self, strategy: str) -> None:
        plain = pack_lengths([5, 6, 2, 3], 8, strategy)
        for dtype in (np.uint8, np.int16, np.int64, np.uint64):
            assert np.array_equal(
                pack_lengths(np.array([5, 6, 2, 3], dtype), 8, strategy).order, plain.order
            )
        strided = np.repeat(np.array([5, 6, 2, 3], np.int32), 2)[::2]
        assert np.array_equal(pack_lengths(strided, 8, strategy).order, plain.order)

    def test_packs_for_a_million_tokens(self, strategy: str) -> None:
        lengths = np.random.default_rng(0).integers(1, 200_000, 3000)
        plan = pack_lengths(lengths, 1 << 20, strategy)
        plan.check()
        assert plan.utilization > 0.85


def test_a_small_plan_can_be_read() -> None:
    plan = pack_lengths([5, 6, 2, 3], 8, order="input")
    assert packs_of(plan) == [[0, 3], [1, 2]]
    assert plan.fills.tolist() == [8, 8]


DIGESTS = {
    "best_fit": "20d47605",
    "first_fit": "ab8fd635",
    "knapsack": "ab8fd635",
    "optimal": "20d47605",
    "stream": "cc0874dd",
    "greedy": "d7771d32",
    "first_fit_input": "be6d1150",
    "balanced": "ada91431",
}


def test_plans_are_the_same_on_every_machine() -> None:
    """Pinned: another digest means other bytes for every dataset built with these settings."""
    lengths = (np.arange(1000) * 7919 % 241 + 1).astype(np.int32)
    digests = {}
    for strategy in STRATEGIES:
        plan = pack_lengths(lengths, 512, strategy, 3)
        digests[strategy] = hashlib.sha256(plan.order.astype("<i8").tobytes()).hexdigest()[:8]
    assert digests == DIGESTS


def test_the_seed_decides_the_place_of_equal_documents_and_the_order_of_packs() -> None:
    lengths = [4] * 200
    first, second = (pack_lengths(lengths, 8, seed=seed) for seed in (0, 1))
    assert packs_of(first) != packs_of(second)
    assert sorted(packs_of(first)) != sorted(packs_of(second))
    together = sum(b - a == 1 for a, b in packs_of(first))
    assert together < 10  # dealt in input order, all 100 packs would hold neighbours
    for negative_or_huge in (-1, 2**64 + 5):
        pack_lengths(lengths, 8, seed=negative_or_huge).check()


def test_shuffling_documents_is_fair() -> None:
    """Each pairing of four equal documents is equally likely.

    In 3,000 shuffles into two packs, each of the three pairings occurs about 1,000 times.
    """
    partners = [
        next(p for p in packs_of(pack_lengths([4] * 4, 8, seed=s)) if 0 in p)[1]
        for s in range(3000)
    ]
    assert all(900 < partners.count(other) < 1100 for other in (1, 2, 3))


def test_every_order_of_packs_is_equally_likely() -> None:
    firsts = [pack_lengths([8] * 6, 8, seed=seed).order[0] for seed in range(3000)]
    assert all(400 < firsts.count(document) < 600 for document in range(6))


def test_order_input_deals_equal_documents_in_input_order() -> None:
    assert packs_of(pack_lengths([4] * 6, 8, order="input")) == [[0, 1], [2, 3], [4, 5]]


def test_stream_takes_documents_in_seeded_random_order_when_asked() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 2000)
    near = pack_lengths(lengths, 1000, "stream", order="input")
    far = pack_lengths(lengths, 1000, "stream", order="input", shuffle_documents=True)
    spread = [np.mean([np.ptp(pack) for pack in packs_of(plan)]) for plan in (near, far)]
    assert spread[0] < 200 < 1000 < spread[1]


def instruction_lengths(count: int) -> Any:
    """Distribution a: instruction data, mean 247 tokens, packs of 2,048."""
    random = np.random.default_rng(0)
    return np.clip(random.lognormal(np.log(250) - 0.405, 0.9, count), 1, 2048).astype(np.int32)


@pytest.mark.parametrize(("slots", "share"), [(8, 0.05), (16, 0.01), (32, 0.01)])
@pytest.mark.parametrize("strategy", ["best_fit", "first_fit", "optimal"])
def test_limited_segments_cost_few_packs_where_plain_best_fit_wastes_many(
    strategy: str, slots: int, share: float
) -> None:
    plan = pack_lengths(instruction_lengths(50_000), 2048, strategy, max_segments_per_pack=slots)
    assert np.diff(plan.offsets).max() <= slots
    assert plan.gap_share <= share


@settings(max_examples=300)
@given(instances(), st.integers(1, 6))
def test_limited_best_fit_is_never_worse_than_its_reference(
    instance: tuple[list[int], int], slots: int
) -> None:
    lengths, capacity = instance
    plan = pack_lengths(lengths, capacity, "best_fit", max_segments_per_pack=slots)
    assert plan.num_packs <= len(reference.best_fit(lengths, capacity, slots))


def test_stream_is_full_and_fair() -> None:
    lengths = instruction_lengths(100_000)
    stream, best = (pack_lengths(lengths, 2048, strategy) for strategy in ("stream", "best_fit"))
    assert stream.utilization >= 0.999
    assert abs(stream.bias) <= 0.15
    assert best.bias > 0.7


def test_optimal_reaches_the_bound_where_best_fit_does_not() -> None:
    lengths = instruction_lengths(100_000)
    assert pack_lengths(lengths, 2048, "best_fit").gap > 0
    assert pack_lengths(lengths, 2048, "optimal").gap == 0


class TestBalanced:
    def test_packs_are_as_even_as_can_be(self) -> None:
        assert pack_lengths([7, 6, 5, 4, 3, 2, 1], 20, "balanced", num_packs=2).fills.tolist() == [
            14,
            14,
        ]
        assert sorted(
            pack_lengths([8, 7, 6, 5, 4], 20, "balanced", num_packs=2).fills.tolist()
        ) == [15, 15]

    @settings(max_examples=200)
    @given(instances(), st.integers(0, 10))
    def test_makes_exactly_the_packs_asked_for(
        self, instance: tuple[list[int], int], extra: int
    ) -> None:
        lengths, capacity = instance
        if lengths:
            packs = min(len(lengths), pack_lengths(lengths, capacity, "optimal").num_packs + extra)
            plan = pack_lengths(lengths, capacity, "balanced", num_packs=packs)
            plan.check()
            assert plan.num_packs == packs

    def test_never_exceeds_max_length_and_is_even_to_a_token(self) -> None:
        for seed in range(20):
            lengths = np.minimum(
                1024, np.random.default_rng(seed).permutation(instruction_lengths(100_000))[:1024]
            )
            plan = pack_lengths(lengths, 2048, "balanced")
            plan.check()
            assert plan.gap == 0
            assert np.ptp(plan.fills) <= 2

    @settings(max_examples=100)
    @given(instances(), st.sampled_from(ORDERS), st.none() | st.integers(0, 10))
    def test_very_many_packs_are_planned_on_counts(
        self, instance: tuple[list[int], int], order: str, extra: int | None
    ) -> None:
        lengths, capacity = instance
        if not lengths:
            return
        fewest = pack_lengths(lengths, capacity, "optimal").num_packs
        packs = None if extra is None else min(len(lengths), fewest + extra)
        with mock.patch.object(strategies, "_EVENED", 0):
            plan = pack_lengths(lengths, capacity, "balanced", order=order, num_packs=packs)
        plan.check()
        assert plan.num_packs == packs if packs else plan.num_packs <= fewest

    def test_on_counts_packs_are_as_full_as_one_by_one(self) -> None:
        lengths = np.minimum(1024, instruction_lengths(2000))
        with mock.patch.object(strategies, "_EVENED", 0):
            counted = pack_lengths(lengths, 2048, "balanced", num_packs=400)
        longest = np.argsort(-lengths, kind="stable")
        pack_of = longest_first(lengths, np.zeros(0, np.int32), longest, 400, strategies.NO_LIMIT)
        assert sorted(counted.fills.tolist()) == sorted(
            np.bincount(pack_of, lengths).astype(int).tolist()
        )

    def test_says_what_is_wrong_with_the_number_of_packs(self) -> None:
        with pytest.raises(
            ConfigError, match="num_packs is 1 but these documents need at least 2 packs"
        ):
            pack_lengths([5, 5], 8, "balanced", num_packs=1)
        with pytest.raises(ConfigError, match="num_packs is 3 but 2 documents"):
            pack_lengths([5, 5], 8, "balanced", num_packs=3)
        with pytest.raises(ConfigError, match="num_packs is for strategy balanced"):
            pack_lengths([5, 5], 8, "best_fit", num_packs=2)
        with pytest.raises(ConfigError, match="num_packs cannot be used with groups"):
            pack_lengths([5, 5], 8, "balanced", num_packs=2, groups=[0, 1])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"lengths": [3, 0], "max_length": 8},
            r"lengths\[1\] is 0 but every document needs at least 1 token; leave it out",
        ),
        ({"lengths": [3, -7], "max_length": 8}, r"lengths\[1\] is -7 but every document"),
        (
            {"lengths": [3, 1, 1, 1, 1, 9], "max_length": 8},
            r"lengths\[5\] is 9 but a pack holds 8; split, truncate or drop",
        ),
        (
            {"lengths": np.array([1, 2**40]), "max_length": 8},
            r"lengths\[1\] is 1,099,511,627,776 but a pack holds 8",
        ),
        (
            {"lengths": np.array([1, 2**32 + 1]), "max_length": 8},
            r"lengths\[1\] is 4,294,967,297 but a pack holds 8",
        ),
        (
            {"lengths": [1.5], "max_length": 8},
            r"lengths must be a 1-D array of integers; got float64 of shape \(1,\)",
        ),
        ({"lengths": [[1]], "max_length": 8}, r"got int64 of shape \(1, 1\)"),
        ({"lengths": [1], "max_length": 0}, "max_length is 0 but must be a whole number from 1 to"),
        ({"lengths": [1], "max_length": True}, "max_length is True but"),
        (
            {"lengths": [1], "max_length": 2**24 + 1},
            "max_length is 16777217 but must be a whole number from 1 to 16,777,216",
        ),
        (
            {"lengths": [1], "max_length": 8, "max_segments_per_pack": 0},
            "max_segments_per_pack is 0 but",
        ),
        (
            {"lengths": [1], "max_length": 8, "strategy": "bestfit"},
            "unknown strategy 'bestfit'; did you mean best_fit?",
        ),
        (
            {"lengths": [1], "max_length": 8, "strategy": "zzz"},
            "unknown strategy 'zzz'; choose one of best_fit, first_fit",
        ),
        (
            {"lengths": [1], "max_length": 8, "strategy": "wrapped"},
            "strategy wrapped cuts documents where packs end",
        ),
        (
            {"lengths": [1], "max_length": 8, "order": "shufle"},
            "unknown order 'shufle'; did you mean shuffle?",
        ),
        (
            {"lengths": [1, 2], "max_length": 8, "groups": [1]},
            r"groups must hold an integer for each of 2 documents; got int64",
        ),
        ({"lengths": [1], "max_length": 8, "groups": ["a"]}, "groups must hold an integer"),
        (
            {"lengths": [1, 2], "max_length": 8, "atoms": [1, 0]},
            r"atoms\[1\] is 0, less than the one before",
        ),
        (
            {"lengths": [1, 2, 3], "max_length": 8, "atoms": np.array([0, 1, 0], np.uint64)},
            r"atoms\[2\] is 0, less than the one before",
        ),
        (
            {"lengths": [5, 5, 5], "max_length": 8, "atoms": [0, 3, 3]},
            "atom 3 has 10 tokens but a pack holds 8; make it smaller",
        ),
        (
            {"lengths": [1, 1], "max_length": 8, "atoms": [4, 4], "max_segments_per_pack": 1},
            "atom 4 has 2 documents but a pack holds 1",
        ),
        (
            {"lengths": [1, 1], "max_length": 8, "atoms": [4, 4], "groups": [0, 1]},
            "document 1 is in atom 4 but not in the group",
        ),
    ],
)
def test_a_wrong_argument_is_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as error:
        pack_lengths(**arguments)
    assert "\n" not in str(error.value)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("strategy", ["best_fit", "first_fit", "optimal", "stream", "greedy"])
def test_packing_takes_at_most_forty_bytes_per_document(strategy: str) -> None:
    """Peak resident memory of a separate process, less its memory before the call."""
    program = """if True:
        import sys
        import numpy as np
        from packprep.support.memory import peak
        from packprep.packing.api import pack_lengths
        lengths = np.random.default_rng(0).integers(1, 512, 4_000_000, np.int32)
        pack_lengths(lengths[:100_000], 2048, sys.argv[1])
        before = peak()
        plan = pack_lengths(lengths, 2048, sys.argv[1])
        print((peak() - before) / lengths.size)
    """
    run = subprocess.run(
        [sys.executable, "-c", program, strategy], capture_output=True, text=True, check=True
    )
    assert 8 < float(run.stdout) <= 40
