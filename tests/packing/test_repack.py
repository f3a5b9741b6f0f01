"""Plans of the same documents with other neighbours: as full as before, and really others."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.packing.api import pack_lengths
from packprep.packing.plan import PackPlan
from packprep.packing.repack import exchanged
from packprep.packing.strategies import NO_LIMIT, STRATEGIES, Items
from packprep.support.errors import ConfigError
from tests.packing.test_api import instances

# As many documents of a length as in short texts: many of 100 tokens, one of 900.
LENGTHS = np.random.default_rng(1).lognormal(5, 0.6, 20_000).clip(20, 900).astype(np.int32)


OPTIONS: Any = {"order": "shuffle", "shuffle_documents": False, "num_packs": None}
OPTIONS |= {"ranks": 8, "cost": (1.0, 1.0)}


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
    items = Items(
        lengths=array,
        counts=np.bincount(array, minlength=capacity + 1),
        weights=weights,
        max_length=capacity,
        slots=NO_LIMIT,
        seed=seed,
        **OPTIONS,
    )
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
