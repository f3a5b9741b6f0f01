"""One-pass measurements of a plan: fills, costs, variance of log length, faults."""

import math

import numpy as np
from numpy.typing import NDArray

from packprep.packing.kernels.common import kernel
from packprep.support.arrays import Int32, Int64


@kernel
def pack_fills(lengths: Int32, order: Int64, offsets: Int64) -> Int64:
    """Tokens in each pack."""
    fills = np.zeros(offsets.size - 1, np.int64)
    for p in range(fills.size):
        for i in range(offsets[p], offsets[p + 1]):
            fills[p] += lengths[order[i]]
    return fills


@kernel
def placed_costs(lengths: Int32, offsets: Int64, a: float, b: float) -> NDArray[np.float64]:
    """a * tokens + b * sum(length**2) of each pack; lengths in the order of packs."""
    costs = np.zeros(offsets.size - 1, np.float64)
    for p in range(costs.size):
        for i in range(offsets[p], offsets[p + 1]):
            length = float(lengths[i])
            costs[p] += a * length + b * length * length
    return costs


@kernel
def pack_longest(lengths: Int32, order: Int64, offsets: Int64) -> Int32:
    """Length of the longest document of each pack."""
    longest = np.zeros(offsets.size - 1, np.int32)
    for p in range(longest.size):
        for i in range(offsets[p], offsets[p + 1]):
            longest[p] = max(longest[p], lengths[order[i]])
    return longest


@kernel
def placed(lengths: Int32, order: Int64) -> Int32:
    """Lengths in the order of packs; computed once, because it reads memory at random."""
    out = np.empty(order.size, np.int32)
    for i in range(order.size):
        out[i] = lengths[order[i]]
    return out


@kernel
def log_variances(lengths: Int32, offsets: Int64) -> tuple[float, float]:
    """Sums of squares of log length around the mean of the pack, and around the mean of all.

    Lengths in the order of packs.
    """
    # A logarithm costs more than all other work, and many documents have few different lengths.
    longest = lengths.max() if lengths.size else 0
    table = np.empty(longest + 1 if longest <= lengths.size else 0, np.float64)
    for length in range(1, table.size):
        table[length] = math.log(length)
    mean = 0.0
    for i in range(lengths.size):
        mean += table[lengths[i]] if table.size else math.log(lengths[i])
    mean /= max(lengths.size, 1)
    within, total = 0.0, 0.0
    for p in range(offsets.size - 1):
        first, last = offsets[p], offsets[p + 1]
        pack_sum, pack_squares = 0.0, 0.0
        for i in range(first, last):
            length = lengths[i]
            x = (table[length] if table.size else math.log(length)) - mean
            pack_sum += x
            pack_squares += x * x
        if last > first:
            total += pack_squares
            within += max(0.0, pack_squares - pack_sum * pack_sum / (last - first))
    return within, total


@kernel
def first_fault(
    lengths: Int32, order: Int64, offsets: Int64, capacity: int
) -> tuple[int, int, int]:
    """First fault of a plan, as (fault, pack, value).

    Faults: 0 none, 1 empty pack, 2 no such document, 3 duplicate document, 4 over capacity.
    """
    seen = np.zeros(lengths.size, np.bool_)
    for p in range(offsets.size - 1):
        if offsets[p + 1] <= offsets[p] or offsets[p + 1] > order.size:
            return 1, p, 0
        fill = 0
        for i in range(offsets[p], offsets[p + 1]):
            document = order[i]
            if document < 0 or document >= lengths.size:
                return 2, p, document
            if seen[document]:
                return 3, p, document
            seen[document] = True
            fill += lengths[document]
        if fill > capacity:
            return 4, p, fill
    return 0, 0, 0
