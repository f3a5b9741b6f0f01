"""Plans: figures, bounds and orders against plain ones, new strategies, other neighbours."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.packing.api import pack_lengths
from packprep.packing.bounds import feasible_bound, lower_bound
from packprep.packing.order import sequence
from packprep.packing.plan import PackPlan
from packprep.packing.repack import exchanged
from packprep.packing.strategies import NO_LIMIT, STRATEGIES, Items
from packprep.support.errors import ConfigError
from tests.helpers import reference
from tests.packing.test_api import instances


def plan_of(packs: list[list[int]], lengths: list[int], max_length: int = 8) -> PackPlan:
    order = np.array([document for pack in packs for document in pack], np.int64)
    offsets = np.cumsum([0, *map(len, packs)], dtype=np.int64)
    return PackPlan(np.array(lengths, np.int32), max_length, order, offsets)


def test_figures_of_a_plan_computed_by_hand() -> None:
    plan = plan_of([[0, 3], [1, 2]], [5, 6, 2, 3])
    assert (plan.num_packs, plan.fills.tolist(), plan.utilization) == (2, [8, 8], 1.0)
    assert (plan.bound, plan.gap, plan.gap_share) == (2, 0, 0.0)
    assert plan.costs((1, 0)).tolist() == [8, 8]
    assert plan.costs((0, 1)).tolist() == [34, 40]
    assert plan.straggler(2, (0, 1)) == pytest.approx(40 / 37)
    assert plan.straggler(1) == 1.0
    over = plan_of([[0], [1], [2]], [4, 4, 4])
    assert (over.bound, over.gap, over.gap_share) == (2, 1, 0.5)
    none = plan_of([], [])
    assert (none.utilization, none.gap_share, none.bias, none.straggler(8)) == (1.0, 0.0, 0.0, 1.0)


@given(
    st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=5), min_size=1, max_size=12),
    st.integers(1, 5),
)
def test_bias_and_straggler_are_those_of_the_plain_formulas(
    packs: list[list[int]], ranks: int
) -> None:
    lengths = [length for pack in packs for length in pack]
    numbers = iter(range(len(lengths)))
    numbered = [[next(numbers) for _ in pack] for pack in packs]
    plan = plan_of(numbered, lengths, 250)
    assert plan.bias == pytest.approx(reference.bias(numbered, lengths), abs=1e-9)
    assert plan.straggler(ranks, (3, 2)) == pytest.approx(
        reference.straggler(numbered, lengths, ranks, 3, 2)
    )


@pytest.mark.parametrize(
    ("order", "offsets", "words"),
    [
        ([0, 1, 2], [0, 2, 3], "pack 0 of the plan has 11 tokens but a pack holds 8"),
        ([0, 1, 2], [0, 1, 1, 3], "pack 1 of the plan has no documents: offsets must rise"),
        ([0, 1, 1], [0, 1, 3], "document 1 is in the plan twice, the second time in pack 1"),
        ([0, 1, 3], [0, 1, 3], r"pack 1 of the plan names document 3; documents are 0\.\.2"),
        ([0, 1, 2, 0], [0, 1, 2, 3, 4], "the plan orders 4 documents but there are 3"),
        ([0, 1, 2], [0, 2], "go 0..2 but must go from 0 to 3"),
        ([0, 1, 2], [1, 3], "go 1..3 but must go from 0 to 3"),
        ([0.0], [0, 1], "order of the plan must be a 1-D integer array; got float64 of shape"),
        ([0], "ab", "offsets of the plan must be a 1-D integer array; got str"),
    ],
)
def test_an_invalid_plan_is_refused_with_its_first_fault(
    order: list[Any], offsets: Any, words: str
) -> None:
    if isinstance(offsets, list):
        offsets = np.array(offsets, np.int64)
    plan = PackPlan(np.array([5, 6, 2], np.int32), 8, np.array(order), offsets)
    with pytest.raises(ConfigError, match=words):
        plan.check()


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=6),
    st.data(),
)
def test_a_plan_that_breaks_a_constraint_is_refused(atoms: list[list[int]], data: Any) -> None:
    """atoms: a group for each document of each atom."""
    group = [number for atom in atoms for number in atom]
    atom = [number for number, each in enumerate(atoms) for _ in each]
    pack_of = data.draw(st.lists(st.integers(0, 2), min_size=len(group), max_size=len(group)))
    packs = [[at for at, pack in enumerate(pack_of) if pack == wanted] for wanted in range(3)]
    packs = [pack for pack in packs if pack]
    limit = data.draw(st.none() | st.integers(1, 6))
    faults = [
        ("but a pack holds", limit is not None and max(map(len, packs)) > limit),
        ("of two groups", any(len({group[at] for at in pack}) > 1 for pack in packs)),
        (
            "into two packs",
            any(
                {atom[at] for at in a} & {atom[at] for at in b}
                for a in packs
                for b in packs
                if a is not b
            ),
        ),
    ]
    constraints: Any = {"groups": np.array(group), "atoms": np.array(atom)}
    plan = plan_of(packs, [1] * len(group), 99)
    plan = replace(plan, max_segments_per_pack=limit, **constraints)
    for words in [words for words, is_broken in faults if is_broken][:1]:
        with pytest.raises(ConfigError, match=words):
            plan.check()
        return
    plan.check()


def test_straggler_needs_a_rank() -> None:
    with pytest.raises(ConfigError, match="ranks is 0, expected at least 1"):
        pack_lengths([5, 3], 8).straggler(0)


def bound(lengths: list[int], capacity: int, **constraints: object) -> int:
    return lower_bound(np.array(lengths, np.int32), capacity, **constraints)  # type: ignore[arg-type]


lengths_to_30 = st.lists(st.integers(1, 30), min_size=1, max_size=8)


@given(lengths_to_30, st.integers(30, 60), st.none() | st.integers(1, 4))
def test_the_bound_is_at_most_the_optimum_and_at_least_l1_and_l2(
    lengths: list[int], capacity: int, slots: int | None
) -> None:
    best = bound(lengths, capacity, max_segments_per_pack=slots)
    assert best <= reference.fewest_packs(lengths, capacity, slots or 99)
    least = [-(-sum(lengths) // capacity), -(-len(lengths) // (slots or 99))]
    assert best >= max(*least, reference.l2(lengths, capacity))


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(40, 50))
def test_l2_is_martello_and_toths(lengths: list[int], capacity: int) -> None:
    kinds, counts = np.unique(np.array(lengths, np.int32), return_counts=True)
    assert feasible_bound(kinds[::-1], counts[::-1], capacity, 1) == reference.l2(lengths, capacity)


@given(st.lists(st.integers(11, 30), min_size=1, max_size=9))
def test_the_bound_is_exact_when_all_documents_are_longer_than_a_third_of_a_pack(
    lengths: list[int],
) -> None:
    assert bound(lengths, 30) == reference.fewest_packs(lengths, 30)


def test_groups_are_bounded_one_by_one() -> None:
    assert bound([2, 2, 2, 2], 8) == 1
    assert bound([2, 2, 2, 2], 8, groups=np.array([1, 0, 1, 3])) == 3
    assert bound([2, 2, 2, 2], 8, groups=np.array([1, 0, 1, 0]), max_segments_per_pack=1) == 4


def test_an_atom_is_one_item_with_as_many_segments_as_documents() -> None:
    assert bound([3, 3, 3, 3], 10) == 2
    assert bound([3, 3, 3, 3, 3, 3], 10, atoms=np.array([0, 0, 1, 1, 2, 2])) == 3
    assert bound([1, 1, 1, 1], 10, atoms=np.array([0, 0, 1, 1]), max_segments_per_pack=2) == 2


def test_huge_packs_and_many_documents_do_not_overflow() -> None:
    assert bound([2**31 - 1] * 1000, 2**31 - 1) == 1000
    assert bound([2**30] * 1001, 2**31 - 1) == 1001


def lengths_like_the_web(count: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    random = np.random.default_rng(0)
    return np.clip(random.lognormal(6.2, 1.1, count), 1, 4096).astype(np.int32)


@pytest.mark.parametrize(("ranks", "most"), [(8, 1.01), (64, 1.02)])
@pytest.mark.parametrize("cost", [(0.0, 1.0), (24576.0, 1.0)])
@pytest.mark.parametrize("strategy", ["best_fit", "stream", "greedy"])
def test_balanced_order_gives_every_rank_the_same_work_without_extra_packs(
    strategy: str, cost: tuple[float, float], ranks: int, most: float
) -> None:
    lengths = lengths_like_the_web(60_000)
    shuffled = pack_lengths(lengths, 4096, strategy)
    options: Any = {"order": "balanced", "balance_ranks": ranks, "cost": cost}
    balanced = pack_lengths(lengths, 4096, strategy, **options)
    balanced.check()
    assert balanced.num_packs == shuffled.num_packs
    assert balanced.straggler(ranks, cost) <= most < shuffled.straggler(ranks, cost)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_balanced_order_of_atoms_uses_the_cost_of_their_documents(strategy: str) -> None:
    # 400 atoms of 32,768 tokens; as one segment each would cost the same.
    lengths, atoms = [32000, 768, 16384, 16384] * 200, np.repeat(np.arange(400), 2)
    plan = pack_lengths(lengths, 32768, strategy, order="balanced", atoms=atoms)
    plan.check()
    assert plan.num_packs == 400
    assert plan.straggler(8) == 1.0


def test_balanced_order_shuffles_its_groups() -> None:
    plan = pack_lengths(lengths_like_the_web(60_000), 4096, order="balanced", balance_ranks=8)
    costs = plan.costs()[: plan.num_packs // 8 * 8].reshape(-1, 8).mean(axis=1)
    assert abs(np.corrcoef(costs, np.arange(costs.size))[0, 1]) < 0.1


def test_packs_of_an_incomplete_group_are_last_and_the_cheapest() -> None:
    times, longest = np.array([1, 3, 1]), np.zeros(3, np.int32)
    packs = sequence("balanced", times, longest, np.array([9.0, 5.0, 7.0]), 0, 2)
    assert sorted(packs[:2].tolist()) + sorted(packs[2:4].tolist()) in ([0, 2, 1, 1], [1, 1, 0, 2])
    assert packs[4] == 1


def test_length_order_puts_the_longest_first_and_input_order_keeps_the_order_of_patterns() -> None:
    times, longest, cost = np.array([2, 1, 2]), np.array([3, 9, 5], np.int32), np.zeros(3)
    assert sequence("length", times, longest, cost, 0, 8).tolist() == [1, 2, 2, 0, 0]
    assert sequence("input", times, longest, cost, 0, 8).tolist() == [0, 0, 1, 2, 2]
    assert sorted(sequence("shuffle", times, longest, cost, 0, 8).tolist()) == [0, 0, 1, 2, 2]


# As many documents of a length as in short texts: many of 100 tokens, one of 900.
LENGTHS = np.random.default_rng(1).lognormal(5, 0.6, 20_000).clip(20, 900).astype(np.int32)


def neighbours(plan: PackPlan) -> set[tuple[int, int]]:
    """Pairs of documents that follow each other in a pack, the smaller number first."""
    inside = np.ones(len(plan.order) - 1, np.bool_)
    inside[plan.offsets[1:-1] - 1] = False
    pairs = np.sort(np.stack([plan.order[:-1], plan.order[1:]]), axis=0)[:, inside]
    return set(zip(*pairs.tolist(), strict=True))


def in_common(one: PackPlan, other: PackPlan) -> float:
    return len(neighbours(one) & neighbours(other)) / len(neighbours(one))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("max_length", [1024, 4096, 32768])
def test_another_seed_gives_nearly_all_documents_other_neighbours(
    strategy: str, max_length: int
) -> None:
    one, other = (pack_lengths(LENGTHS, max_length, strategy, seed, repack=True) for seed in (0, 1))
    assert in_common(one, other) < 0.01
    if strategy in ("best_fit", "first_fit", "knapsack", "optimal"):
        plain = pack_lengths(LENGTHS, max_length, strategy)
        assert abs(plain.num_packs - one.num_packs) <= 0.00025 * plain.num_packs
    if strategy not in ("greedy", "first_fit_input"):  # fuller or emptier by the order of documents
        assert abs(LENGTHS.sum() / max_length * (1 / one.num_packs - 1 / other.num_packs)) < 0.0005


def test_documents_of_lengths_of_their_own_get_other_neighbours_too() -> None:
    lengths = np.random.default_rng(2).permutation(np.arange(1, 4097)).astype(np.int32)
    plans = [pack_lengths(lengths, 8192, "best_fit", seed, repack=True) for seed in (0, 1)]
    plain = [pack_lengths(lengths, 8192, "best_fit", seed) for seed in (0, 1)]
    assert (in_common(*plain), in_common(*plans) < 0.2) == (1, True)


@given(instances(), st.integers(0, 3), st.booleans())
def test_exchanged_documents_leave_the_length_of_every_pack_as_it_was(
    instance: tuple[list[int], int], seed: int, heavy: bool
) -> None:
    lengths, capacity = instance
    plan = pack_lengths(lengths, capacity, "optimal", seed)
    weights = np.arange(len(lengths), dtype=np.int32) % 3 + 1 if heavy else None
    array = np.array(lengths, np.int32)
    settings: dict[str, Any] = {"order": "shuffle", "shuffle_documents": False, "num_packs": None}
    settings |= {"ranks": 8, "cost": (1.0, 1.0), "slots": NO_LIMIT, "seed": seed}
    counts = np.bincount(array, minlength=capacity + 1)
    items = Items(array, counts, weights=weights, max_length=capacity, **settings)
    order = exchanged(plan.order, plan.offsets, items)
    assert sorted(order.tolist()) == list(range(len(lengths)))
    for values in (items.lengths, items.weights):
        if values is not None and len(lengths):
            sums = (
                np.add.reduceat(values[each], plan.offsets[:-1]) for each in (plan.order, order)
            )
            before, after = (each.tolist() for each in sums)
            assert before == after


def test_order_input_cannot_be_repacked() -> None:
    with pytest.raises(ConfigError, match="repack cannot keep documents in input order"):
        pack_lengths([1, 2], 4, order="input", repack=True)
