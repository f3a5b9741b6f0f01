import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.config import BuildConfig
from packprep.planning import remainders, window_seed


@pytest.mark.parametrize(
    ("counts", "multiple", "remainder", "expected"),
    [
        ([7, 2], 4, "drop", [0, -1]),
        ([7, 2], 4, "fill", [0, 3]),
        ([7, 2, 0], 4, "fill", [0, 3, 0]),
        ([7, 1], 5, "drop", [-2, -1]),
        ([8], 4, "drop", [0]),
        ([3], 4, "drop", [-3]),
    ],
)
def test_packs_come_from_the_last_windows(
    counts: list[int], multiple: int, remainder: str, expected: list[int]
) -> None:
    config = BuildConfig(packs_multiple_of=multiple, remainder=remainder)  # type: ignore[arg-type]
    assert remainders(counts, config) == expected


@given(st.lists(st.integers(0, 9), min_size=1), st.integers(1, 12), st.sampled_from(["drop", "fill"]))
def test_what_remains_is_a_multiple_and_the_smallest_change(counts: list[int], multiple: int, remainder: str) -> None:
    config = BuildConfig(packs_multiple_of=multiple, remainder=remainder)  # type: ignore[arg-type]
    changes = remainders(counts, config)
    assert (sum(counts) + sum(changes)) % multiple == 0
    assert abs(sum(changes)) < multiple
    assert all(count + change >= 0 for count, change in zip(counts, changes, strict=True))


def test_windows_and_splits_have_seeds_of_their_own() -> None:
    config = BuildConfig(seed=5)
    seeds = {window_seed(config, window, split) for window in range(100) for split in range(2)}
    assert len(seeds) == 200
    assert all(0 <= seed < 2**63 for seed in seeds)
