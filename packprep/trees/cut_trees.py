"""Cut trees that are larger than a pack, in tokens or in segments.

Trees are rows in depth-first order and the tokens that each shares with the row before; see
`merge_prefixes`. So a row with 0 begins a tree, and to lower a number is to repeat tokens.
"""

import numpy as np

from packprep.packing.kernels.compiled import Out, kernel
from packprep.support.arrays import Int64


def cut_oversized(lengths: Int64, shared: Int64, most: int, most_nodes: int | None = None) -> Int64:
    """The shared tokens after each tree is cut into trees of at most `most` tokens.

    A later part repeats the path to its first row. Of all ways to cut the rows of a tree where they
    are, this one repeats the fewest tokens: the cheapest cut before a row, and after it, over all
    first rows whose part still fits (dynamic programming with a queue of minima). lengths, shared:
    [rows], in depth-first order; no row is longer than `most`. most_nodes: nodes that a tree may
    have, at least 1; None for any number.
    """
    cut = shared.copy()
    rows = len(shared)
    cost, begins, queue = (np.empty(rows + 1, np.int64) for _ in range(3))
    parts, ends = node_ends(lengths, shared)
    uses = np.zeros(2 * rows, np.int64)
    nodes = 2 * rows if most_nodes is None else most_nodes
    _cut(lengths, shared, parts, ends, most, nodes, cost, begins, queue, uses, cut)
    return cut


def node_ends(lengths: Int64, shared: Int64) -> tuple[Int64, Int64]:
    """Numbers of the ends of nodes: where each row parts from the row before, and where it ends.

    A node ends where a row ends or where rows part. So some rows that follow one another make a
    tree of as many nodes as there are different numbers among their ends and the parts between
    them. The first row of a tree parts nowhere: its part is -1. Both [rows]; equal numbers are the
    same place of a tree.

    Example: rows of 2, 3 and 2 tokens that share 0, 2 and 1 with the row before -> parts
    [-1, 0, 2], ends [0, 1, 3].
    """
    rows = len(lengths)
    parts, ends = np.empty(rows, np.int64), np.empty(rows, np.int64)
    depth, number = np.empty(2 * rows, np.int64), np.empty(2 * rows, np.int64)
    _number(lengths, shared, depth, number, parts, ends)
    return parts, ends


@kernel
def _number(
    lengths: Int64,
    shared: Int64,
    depth: Out[Int64],
    number: Out[Int64],
    parts: Out[Int64],
    ends: Out[Int64],
) -> None:
    """Fill parts and ends. depth, number: a stack of the ends on the path to the latest row."""
    made, top = 0, 0
    for row in range(len(lengths)):
        parts[row] = -1
        while top > 0 and depth[top - 1] > shared[row]:
            top -= 1
        if shared[row] > 0:
            if top == 0 or depth[top - 1] < shared[row]:
                depth[top], number[top] = shared[row], made
                top += 1
                made += 1
            parts[row] = number[top - 1]
        if top == 0 or depth[top - 1] < lengths[row]:
            depth[top], number[top] = lengths[row], made
            top += 1
            made += 1
        ends[row] = number[top - 1]


@kernel
def _cut(
    lengths: Int64,
    shared: Int64,
    parts: Int64,
    ends: Int64,
    most: int,
    most_nodes: int,
    cost: Out[Int64],
    begins: Out[Int64],
    queue: Out[Int64],
    uses: Out[Int64],
    cut: Out[Int64],
) -> None:
    """Lower `cut`; see `cut_oversized`.

    parts, ends: see `node_ends`. cost: of the rows before each, with a cut before it. begins: first
    row of the part that ends before each. queue: rows that may begin a part, their costs ascending.
    uses: 0, [ends of nodes]; how often each is in the current part.
    """
    rows = len(shared)
    first = 0
    while first < rows:
        last, size, highest = first + 1, lengths[first], ends[first]
        while last < rows and shared[last] > 0:
            size += lengths[last] - shared[last]
            highest = max(highest, parts[last], ends[last])
            last += 1
        # The ends of nodes are numbered from that of the first row on.
        if size > most or highest - ends[first] >= most_nodes:
            head, tail, size, nodes = 0, 0, 0, 0
            reached = 0  # tokens repeated by the best cuts of the rows before `row`
            low = first
            for row in range(first, last):
                repeated = shared[row] if row > first else 0
                cost[row] = reached + repeated
                while tail > head and cost[queue[tail - 1]] > cost[row]:
                    tail -= 1
                queue[tail] = row
                tail += 1
                # size, nodes: of the part from row `low` to this one
                size = lengths[row] if row == low else size + lengths[row] - shared[row]
                if row > first:
                    nodes += uses[parts[row]] == 0
                    uses[parts[row]] += 1
                nodes += uses[ends[row]] == 0
                uses[ends[row]] += 1
                while size > most or nodes > most_nodes:
                    low += 1
                    size += shared[low] - lengths[low - 1]
                    uses[ends[low - 1]] -= 1
                    nodes -= uses[ends[low - 1]] == 0
                    uses[parts[low]] -= 1
                    nodes -= uses[parts[low]] == 0
                while queue[head] < low:
                    head += 1
                begins[row + 1] = queue[head]
                reached = cost[queue[head]]
            end = last
            while begins[end] > first:
                cut[begins[end]] = 0
                end = begins[end]
        first = last
