"""Padding of batches of single documents."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.preview.padding import batch_padding
from tests.helpers.command import run


def of(lengths: list[int], batch: int, most: int = 4096) -> tuple[float, float]:
    padding = batch_padding([np.array(lengths, np.int32)], batch, most, seed=0)
    return round(100 * padding.share, 2), round(padding.times, 2)


@pytest.mark.parametrize(
    ("lengths", "share", "times"),
    [
        ([5, 3, 7], 28.57, 1.4),
        ([512, 128, 2048], 56.25, 2.29),
        ([512, 256, 1024, 128, 768, 2048, 384, 640], 64.84, 2.84),
    ],
)
def test_one_batch_is_padded_to_its_longest_document(
    lengths: list[int], share: float, times: float
) -> None:
    assert of(lengths, len(lengths)) == (share, times)


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


def test_plan_says_what_packing_avoids(tmp_path: Path) -> None:
    path = f"{tmp_path}/lengths.npy"
    np.save(path, np.array([512, 256, 1024, 128, 768, 2048, 384, 640]))
    printed = run("plan", path, "--max-length", 2048, "--padding-of-batch", 8, "--json", "-q").out
    assert (
        "2,048: 64.8% of batches of 8 documents, each padded to the longest, is padding: 2.84 "
        "places for each token; of full attention matrices 79.9%"
    ) in printed
