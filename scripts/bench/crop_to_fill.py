"""The best-fit loader of nanochat, from lengths alone: rows are always full, documents are cropped.

The algorithm is that of `tokenizing_distributed_data_loader_with_state_bos_bestfit` in
https://github.com/karpathy/nanochat/blob/0b949d9c/nanochat/dataloader.py, written again on a sorted
list: a row takes the longest document of a buffer of 1,000 that fits; when none fits, the shortest
is cropped to the rest of the row, and what is cropped is lost.
"""

from bisect import bisect_right, insort
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_BUFFER = 1000  # documents
_REFILL = 128  # documents


@dataclass(frozen=True)
class Cropped:
    """rows: all full. kept, lost: tokens; those still in the buffer at the end are neither."""

    rows: int
    kept: int
    lost: int


def crop_to_fill(lengths: NDArray[np.integer], capacity: int) -> Cropped:
    """Fill rows of `capacity` tokens until the documents run out.

    lengths: [documents], tokens. A row that the documents do not fill is not counted.
    """
    buffer: list[int] = []
    taken = rows = lost = 0
    while True:
        left = capacity
        dropped = 0
        while left:
            while len(buffer) < _BUFFER:
                if taken >= len(lengths):
                    return Cropped(rows, rows * capacity, lost)
                for length in lengths[taken : taken + _REFILL].tolist():
                    insort(buffer, length)
                taken += _REFILL
            fits = bisect_right(buffer, left)
            length = buffer.pop(fits - 1 if fits else 0)
            dropped += max(length - left, 0)
            left -= min(length, left)
        rows += 1
        lost += dropped
