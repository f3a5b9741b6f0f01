"""Packs of samples are even, few, and the same as the strategy `balanced` makes them."""

import itertools
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.loaders.samples import compiling
from packprep.loaders.samples.partition import (
    even_packs,
    fewest_packs,
    most_packs,
    neighbours_together,
    packs_within,
)
from packprep.packing.kernels.balanced import even_out, longest_first

LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=40).map(np.array)


def fills(pack_of: Any, lengths: Any, packs: int) -> list[int]:
    return [int(fill) for fill in np.bincount(pack_of, lengths, packs)]


@given(LENGTHS, st.integers(1, 9))
def test_even_packs_are_those_of_the_compiled_kernels(lengths: Any, packs: int) -> None:
    short = lengths.astype(np.int32)
    longest = np.argsort(-lengths, kind="stable")
    expected = longest_first(short, np.zeros(0, np.int32), longest, packs, 2**31 - 1)
    even_out(short, expected, packs, 10_000)
    assert even_packs(lengths, packs).tolist() == expected.tolist()


@given(LENGTHS, st.integers(1, 9))
def test_samples_of_equal_length_are_dealt_in_input_order(lengths: Any, packs: int) -> None:
    before = even_packs(lengths, packs)
    after = neighbours_together(lengths, before)
    for length in {*lengths.tolist()}:
        of_length = after[lengths == length].tolist()
        assert of_length == sorted(before[lengths == length].tolist())


def test_a_large_plan_is_the_same_with_and_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.random.default_rng(0).integers(1, 200, 5000)
    compiled = fewest_packs(lengths, 1000)
    compiling.compiled.cache_clear()
    monkeypatch.setitem(sys.modules, "numba", None)
    plain = fewest_packs(lengths, 1000)
    compiling.compiled.cache_clear()
    assert compiled[1] == plain[1]
    assert compiled[0].tolist() == plain[0].tolist()


@given(LENGTHS, st.integers(30, 80))
def test_no_pack_is_over_the_budget_and_none_is_needless(lengths: Any, budget: int) -> None:
    pack_of, packs = fewest_packs(lengths, budget)
    assert max(fills(pack_of, lengths, packs)) <= budget
    assert packs >= max(1, -(-int(lengths.sum()) // budget))
    # Two packs that fit into one would show that there are too many.
    apart = sorted(fills(pack_of, lengths, packs))
    assert packs == 1 or apart[0] + apart[1] > budget


@given(st.lists(st.integers(1, 12), min_size=1, max_size=7).map(np.array), st.integers(12, 20))
def test_few_samples_are_in_the_fewest_packs_or_one_more(lengths: Any, budget: int) -> None:
    fewest = next(
        packs
        for packs in itertools.count(1)
        if any(
            max(fills(list(choice), lengths, packs)) <= budget
            for choice in itertools.product(range(packs), repeat=len(lengths))
        )
    )
    assert fewest <= fewest_packs(lengths, budget)[1] <= fewest + 1


@given(st.lists(LENGTHS, min_size=1, max_size=4), st.integers(30, 80), st.integers(0, 3))
def test_the_number_for_all_ranks_is_enough_on_each(
    ranks: list[Any], budget: int, more: int
) -> None:
    packs = most_packs(ranks, budget)
    assert packs <= max(fewest_packs(lengths, budget)[1] for lengths in ranks)
    for lengths in ranks:
        pack_of = packs_within(lengths, budget, packs + more)
        assert max(fills(pack_of, lengths, packs + more)) <= budget


def test_a_number_of_packs_that_is_too_small_is_an_error() -> None:
    with pytest.raises(
        ValueError, match="num_packs is 2 but no plan with fewer than 3 packs of 8 tokens was found"
    ):
        packs_within(np.array([5, 5, 5]), 8, 2)
