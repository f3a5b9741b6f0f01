import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.hashing import drawn, mix


@given(st.integers(0, 2**63 - 1))
def test_mixing_is_one_to_one_for_a_seed(seed: int) -> None:
    assert len(set(mix(seed, np.arange(1000)).tolist())) == 1000


def test_mixing_gives_the_same_bits_on_every_machine() -> None:
    assert [hex(bits) for bits in mix(0, np.arange(2)).tolist()] == ["0xa706dd2f4d197e6f", "0x46b73e79f0c37c00"]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_a_drawn_share_is_as_large_as_asked_and_a_smaller_one_lies_within_it(share: float) -> None:
    values = np.arange(100_000)
    assert abs(drawn(7, values, share).mean() - share) < 0.01
    assert not (drawn(7, values, share / 2) & ~drawn(7, values, share)).any()


def test_each_value_is_drawn_by_itself() -> None:
    values = np.arange(1000)
    assert (drawn(3, values[::-1], 0.3)[::-1] == drawn(3, values, 0.3)).all()
