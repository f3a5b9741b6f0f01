"""Orders of packs: balanced steps at no extra packs, and the helpers that move or drop packs."""

from typing import Any

import numpy as np
import pytest

from packprep.packing.api import STRATEGIES, pack_lengths
from packprep.packing.order import emptiest, permuted, sequence


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


def test_permuted_moves_complete_packs_and_may_omit_some() -> None:
    order, offsets = np.array([4, 5, 0, 1, 2, 3]), np.array([0, 2, 3, 6])
    moved, ends = permuted(order, offsets, np.array([2, 0]))
    assert (moved.tolist(), ends.tolist()) == ([1, 2, 3, 4, 5], [0, 3, 5])


def test_emptiest_returns_the_packs_to_drop() -> None:
    fills = np.array([8, 3, 8, 3, 5])
    assert emptiest(fills, 0).tolist() == []
    assert emptiest(fills, 1).tolist() == [3]
    assert emptiest(fills, 3).tolist() == [1, 3, 4]
