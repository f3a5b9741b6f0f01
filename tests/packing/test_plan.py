"""PackPlan: its figures against plain ones, and the sentence for every way of not being a plan."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.packing.api import pack_lengths
from packprep.packing.plan import PackPlan
from packprep.support.errors import ConfigError
from tests.helpers import reference


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


def test_bias_is_one_for_sorted_packs_and_zero_for_random_ones() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 20_000)
    offsets = np.arange(0, 20_001, 10)
    chance = PackPlan(lengths.astype(np.int32), 1000, np.arange(20_000), offsets)
    sort = PackPlan(lengths.astype(np.int32), 1000, np.argsort(lengths, kind="stable"), offsets)
    assert abs(chance.bias) < 0.02
    assert sort.bias > 0.99


def test_a_plan_cannot_be_changed() -> None:
    plan = pack_lengths([5, 3], 8)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.max_length = 9  # type: ignore[misc]


def test_a_valid_plan_passes_its_check() -> None:
    plan_of([[2, 0], [1]], [5, 6, 2]).check()
    plan_of([], []).check()


@pytest.mark.parametrize(
    ("order", "offsets", "words"),
    [
        ([0, 1, 2], [0, 2, 3], "pack 0 of the plan has 11 tokens but a pack holds 8"),
        ([0, 1, 2], [0, 1, 1, 3], "pack 1 of the plan has no documents: offsets must rise"),
        ([0, 1, 1], [0, 1, 3], "document 1 is in the plan twice, the second time in pack 1"),
        ([0, 1, 3], [0, 1, 3], r"pack 1 of the plan names document 3; documents are 0\.\.2"),
        ([0, 1, -1], [0, 1, 3], r"pack 1 of the plan names document -1; documents are 0\.\.2"),
        ([0, 1], [0, 1, 2], "the plan orders 2 documents but there are 3"),
        ([0, 1, 2, 0], [0, 1, 2, 3, 4], "the plan orders 4 documents but there are 3"),
        ([0, 1, 2], [0, 2], "go 0..2 but must go from 0 to 3"),
        ([0, 1, 2], [1, 3], "go 1..3 but must go from 0 to 3"),
        ([0, 1, 2], [], "go nothing but"),
        ([0, 1, 2], [0, 5, 3], "pack 0 of the plan has no documents|offsets must rise"),
        ([2, 0, 1], [0, 2, 1, 3], "pack 1 of the plan has no documents"),
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


def test_straggler_needs_a_rank() -> None:
    with pytest.raises(ConfigError, match="ranks is 0, expected at least 1"):
        pack_lengths([5, 3], 8).straggler(0)
