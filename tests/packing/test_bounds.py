"""Lower bounds: never above the optimum, never below the textbook bounds, exact if promised."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.packing.bounds import feasible_bound, lower_bound
from tests.helpers import reference


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


@pytest.mark.parametrize(
    ("lengths", "capacity", "packs"),
    [
        ([], 8, 0),
        ([1], 1, 1),
        ([5] * 7, 8, 7),  # over one half: one each
        ([3] * 7, 8, 4),  # over a third: two each
        ([21] * 10, 100, 3),  # four each
        ([6, 3, 2, 2], 8, 2),  # the 3 fits no pack with the 6, and one more holds the rest
        ([49] * 49, 50, 49),
    ],
)
def test_bounds_computed_by_hand(lengths: list[int], capacity: int, packs: int) -> None:
    assert bound(lengths, capacity) == packs


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
