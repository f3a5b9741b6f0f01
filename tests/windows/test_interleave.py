import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packprep.windows.interleave import interleaved


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=80))
def test_every_span_of_packs_of_two_sources_is_within_the_largest_pack_of_the_shares(
    packs: list[tuple[int, int]],
) -> None:
    tokens = np.array(packs, np.int64).reshape(-1, 2)
    order = interleaved(tokens)
    assert sorted(order.tolist()) == list(range(len(packs)))
    total = tokens.sum()
    above = tokens * total - tokens.sum(axis=1)[:, None] * tokens.sum(axis=0)
    ends = np.append(0, np.cumsum(above[order, 0]))
    assert np.ptp(ends) <= 2 * abs(above[:, 0]).max(initial=0)


def test_packs_of_one_source_keep_their_order() -> None:
    tokens = np.array([[5, 0, 0], [0, 7, 0], [3, 0, 0], [0, 0, 2], [4, 0, 0]])
    order = interleaved(tokens).tolist()
    assert [pack for pack in order if pack in (0, 2, 4)] == [0, 2, 4]
