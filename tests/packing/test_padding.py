"""Padding of batches of single documents."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packprep.packing.padding import batch_padding
from tests.helpers.command import run


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 5), st.integers(1, 60))
def test_the_padding_is_that_of_batches_in_some_order(
    lengths: list[int], batch: int, most: int
) -> None:
    padding = batch_padding([np.array(lengths[:7]), np.array(lengths[7:])], batch, most, seed=3)
    cut = sorted(min(length, most) for length in lengths if length)
    assert padding.tokens == sum(cut)
    assert padding.tokens <= padding.padded <= len(cut) * max(cut, default=0)
    assert padding.attended == sum(length**2 for length in cut)
    assert padding.attended <= padding.computed
    if batch == 1:
        assert padding.padded == padding.tokens
    stored = [min(length, most) for length in lengths if length]
    batches = [stored[first : first + batch] for first in range(0, len(stored), batch)]
    places = sum(len(each) * max(each) for each in batches)
    assert batch_padding([np.array(lengths, np.int32)], batch, most).padded == places


def test_plan_says_what_packing_avoids(tmp_path: Path) -> None:
    """Of one batch, padded to its longest document: 5,760 tokens in 8 x 2,048 places."""
    path = f"{tmp_path}/lengths.npy"
    np.save(path, np.array([512, 256, 1024, 128, 768, 2048, 384, 640]))
    printed = run("plan", path, "--max-length", 2048, "--padding-of-batch", 8, "--json", "-q").out
    assert (
        "2,048: 64.8% of batches of 8 documents, each padded to the longest, is padding: 2.84 "
        "places for each token; of full attention matrices 79.9%"
    ) in printed
