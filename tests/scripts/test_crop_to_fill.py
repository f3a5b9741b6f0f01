import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))

from crop_to_fill import Cropped, crop_to_fill


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
            best = -1
            for number, length in enumerate(buffer):
                if length <= left and (best < 0 or length > buffer[best]):
                    best = number
            if best >= 0:
                left -= buffer.pop(best)
            else:
                dropped += buffer.pop(min(range(len(buffer)), key=buffer.__getitem__)) - left
                left = 0
        rows, lost = rows + 1, lost + dropped


@pytest.mark.parametrize("seed", range(3))
def test_the_twin_crops_as_many_tokens_as_scanning_the_buffer(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(1, 300, 3000).astype(np.int32)
    result = crop_to_fill(lengths, 128)
    assert result == scanned(lengths.tolist(), 128)
    assert result.rows > 500
    assert 0 < result.lost < result.kept


def test_documents_that_fill_rows_exactly_lose_nothing() -> None:
    assert crop_to_fill(np.full(2000, 4, np.int32), 8).lost == 0
