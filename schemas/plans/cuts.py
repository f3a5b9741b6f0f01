"""Cut trees that are larger than a pack: a loop over rows in depth-first order.

See `packprep.trees.cut_trees`.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .arrays import Out

_Int64 = NDArray[np.int64]


def cut_trees_loop(
    lengths: _Int64,
    shared: _Int64,
    most: int,
    cost: Out[_Int64],
    begins: Out[_Int64],
    queue: Out[_Int64],
    cut: Out[_Int64],
) -> None:
    """Lower `cut`; see `cut_oversized`.

    cost: of the rows before each, with a cut before it. begins: first row of the part that ends
    before each. queue: rows that may begin a part, their costs ascending.
    """
    rows = len(shared)
    first = 0
    while first < rows:
        last, size = first + 1, lengths[first]
        while last < rows and shared[last] > 0:
            size += lengths[last] - shared[last]
            last += 1
        if size > most:
            head, tail, size = 0, 0, 0
            reached = 0  # tokens repeated by the best cuts of the rows before `row`
            low = first
            for row in range(first, last):
                repeated = shared[row] if row > first else 0
                cost[row] = reached + repeated
                while tail > head and cost[queue[tail - 1]] > cost[row]:
                    tail -= 1
                queue[tail] = row
                tail += 1
                # size: tokens of the part from row `low` to this one
                size = lengths[row] if row == low else size + lengths[row] - shared[row]
                while size > most:
                    low += 1
                    size += shared[low] - lengths[low - 1]
                while queue[head] < low:
                    head += 1
                begins[row + 1] = queue[head]
                reached = cost[queue[head]]
            end = last
            while begins[end] > first:
                cut[begins[end]] = 0
                end = begins[end]
        first = last


def cut_trees(
    lengths: _Int64, shared: _Int64, most: int, loop: Callable[..., None] = cut_trees_loop
) -> _Int64:
    """The shared tokens after each tree is cut into trees of at most `most` tokens.

    A later part repeats the path to its first row. Of all ways to cut the rows of a tree where they
    are, this one repeats the fewest tokens: the cheapest cut before a row, and after it, over all
    first rows whose part still fits (dynamic programming with a queue of minima). lengths, shared:
    [rows], in depth-first order; no row is longer than `most`. loop: compiled or not.
    """
    cut = shared.copy()
    rows = len(shared)
    cost, begins, queue = (np.empty(rows + 1, np.int64) for _ in range(3))
    loop(lengths, shared, most, cost, begins, queue, cut)
    return cut
