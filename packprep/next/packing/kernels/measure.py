"""Measurements of a plan: fills, costs, variance of log length, faults.

Sums of fractions are taken from left to right, so they are the same on every machine.
"""

import math

import numpy as np

from ...schemas.arrays import Bools, Float64, Int32, Int64
from ...schemas.cost import Cost
from .compiled import Out, kernel


def placed_fills(lengths: Int32, offsets: Int64) -> Int64:
    """Tokens in each pack; lengths in the order of packs."""
    ends = np.append(0, np.cumsum(lengths, dtype=np.int64))
    fills: Int64 = ends[offsets[1:]] - ends[offsets[:-1]]
    return fills


def placed_costs(lengths: Int32, offsets: Int64, cost: Cost) -> Float64:
    """Cost of each pack; lengths in the order of packs."""
    return _sums(cost.flops(np.arange(lengths.max(initial=0) + 1)), lengths, offsets)


def placed_longest(lengths: Int32, offsets: Int64) -> Int32:
    """Length of the longest document of each pack; lengths in the order of packs."""
    return np.maximum.reduceat(lengths, offsets[:-1]) if lengths.size else lengths


def log_variances(lengths: Int32, offsets: Int64) -> tuple[float, float]:
    """Sums of squares of log length around the mean of the pack, and around the mean of all.

    Lengths in the order of packs.
    """
    if not lengths.size:
        return 0.0, 0.0
    # A logarithm costs more than all other work, and many documents have few different lengths.
    table = np.zeros(int(lengths.max()) + 1)
    different = np.flatnonzero(np.bincount(lengths))
    table[different] = [math.log(length) for length in different.tolist()]
    table -= _sums(table, lengths, np.array([0, lengths.size]))[0] / lengths.size
    sums, squares = _sums(table, lengths, offsets), _sums(table * table, lengths, offsets)
    within = np.maximum(0.0, squares - sums * sums / np.maximum(np.diff(offsets), 1))
    return float(np.cumsum(within)[-1]), float(np.cumsum(squares)[-1])


def _sums(table: Float64, lengths: Int32, offsets: Int64) -> Float64:
    """Sum of table[length] over the documents of each pack."""
    sums = np.empty(offsets.size - 1)
    _sum_packs(table, lengths, offsets, sums)
    return sums


@kernel
def _sum_packs(table: Float64, lengths: Int32, offsets: Int64, sums: Out[Float64]) -> None:
    """Sum from left to right."""
    for pack in range(sums.size):
        total = 0.0
        for i in range(offsets[pack], offsets[pack + 1]):
            total += table[lengths[i]]
        sums[pack] = total


def first_fault(
    lengths: Int32, order: Int64, offsets: Int64, capacity: int
) -> tuple[int, int, int]:
    """First fault of a plan, as (fault, pack, value).

    Faults: 0 none, 1 empty pack, 2 no such document, 3 duplicate document, 4 over capacity.
    """
    return _first_fault(lengths, order, offsets, capacity, np.zeros(lengths.size, np.bool_))


@kernel
def _first_fault(
    lengths: Int32, order: Int64, offsets: Int64, capacity: int, seen: Out[Bools]
) -> tuple[int, int, int]:
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
