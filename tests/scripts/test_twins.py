"""Simulations and twins of scripts: packs of billions of documents, and nanochat's cropping."""

import sys
from pathlib import Path

import numpy as np
import pytest

from packprep import pack_lengths

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path[:0] = [str(SCRIPTS / "checks"), str(SCRIPTS / "bench")]

from crop_to_fill import Cropped, crop_to_fill  # noqa: E402
from simulate_scale import web_text  # noqa: E402


@pytest.mark.parametrize("documents", [100_000, pytest.param(10_000_000, marks=pytest.mark.long)])
def test_the_number_of_packs_is_that_of_the_real_planner(documents: int) -> None:
    counts = web_text(4096).scaled(documents)
    lengths = np.repeat(counts.lengths, counts.counts)
    plan = pack_lengths(lengths, 4096, "best_fit")
    assert counts.documents == len(lengths) == documents
    assert counts.packs(4096) == len(plan.offsets) - 1
    assert counts.bound(4096) == plan.bound


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
