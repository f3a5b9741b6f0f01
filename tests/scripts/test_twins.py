"""Simulations and twins of scripts: packs of billions of documents, and nanochat's cropping."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep import pack_lengths

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path[:0] = [str(SCRIPTS / "checks"), str(SCRIPTS / "bench")]

from crop_to_fill import Cropped, crop_to_fill  # noqa: E402
from simulate_scale import Lengths, web_text  # noqa: E402


@pytest.mark.parametrize("documents", [100_000, pytest.param(10_000_000, marks=pytest.mark.long)])
def test_the_number_of_packs_is_that_of_the_real_planner(documents: int) -> None:
    counts = web_text(4096).scaled(documents)
    lengths = np.repeat(counts.lengths, counts.counts)
    plan = pack_lengths(lengths, 4096, "best_fit")
    assert counts.documents == len(lengths) == documents
    assert counts.packs(4096) == len(plan.offsets) - 1
    assert counts.bound(4096) == plan.bound


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20), st.integers(1, 10**10))
def test_scaling_gives_exactly_so_many_documents_and_keeps_the_shares(
    counts: list[int], documents: int
) -> None:
    before = Lengths(np.arange(len(counts), 0, -1, dtype=np.int32), np.array(counts, np.int64))
    after = before.scaled(documents)
    assert after.documents == documents
    share = dict(zip(after.lengths.tolist(), (after.counts / documents).tolist(), strict=True))
    for length, count in zip(before.lengths.tolist(), before.counts.tolist(), strict=True):
        assert abs(share.get(length, 0.0) - count / before.documents) <= 1 / documents + 1e-12


def test_ten_billion_documents_are_planned_from_their_counts_close_to_the_bound() -> None:
    counts = web_text(4096).scaled(10**10)
    assert 0 <= counts.packs(4096) - counts.bound(4096) < 1e-4 * counts.bound(4096)


def scanned(lengths: list[int], capacity: int) -> Cropped:
    """The same with nanochat's own loops: the buffer is a list, scanned for each document."""
    buffer: list[int] = []
    rows = lost = taken = 0
    while True:
        left, dropped = capacity, 0
        while left:
            while len(buffer) < 1000:
                if taken >= len(lengths):
                    return Cropped(rows, rows * capacity, lost)
                buffer += lengths[taken : taken + 128]
                taken += 128
            fitting = [number for number, length in enumerate(buffer) if length <= left]
            if fitting:
                left -= buffer.pop(max(fitting, key=buffer.__getitem__))
            else:
                dropped += buffer.pop(min(range(len(buffer)), key=buffer.__getitem__)) - left
                left = 0
        rows, lost = rows + 1, lost + dropped


def test_the_twin_crops_as_many_tokens_as_scanning_the_buffer() -> None:
    lengths = np.random.default_rng(0).integers(1, 300, 3000).astype(np.int32)
    result = crop_to_fill(lengths, 128)
    assert result == scanned(lengths.tolist(), 128)
    assert result.rows > 500
    assert 0 < result.lost < result.kept
    assert crop_to_fill(np.full(2000, 4, np.int32), 8).lost == 0
