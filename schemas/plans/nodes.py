"""Nodes of trees: runs of tokens that rows have in common, in depth-first order.

Example: rows of 2, 3 and 2 tokens that share 0, 2 and 1 with the row before ->
row [0, 0, 1, 2], start [0, 1, 2, 1], end [1, 2, 3, 2], parent [-1, 0, 1, 0], last [1, 2, 3].
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import Out

_Int64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Nodes of trees in depth-first order; arrays are [nodes], except `last`.

    row: the first row that has these tokens. start, end: they are its tokens start..end - 1.
    parent: node of the tokens before, -1 at a root. last: [rows], the node at which each row ends.
    """

    row: _Int64
    start: _Int64
    end: _Int64
    parent: _Int64
    last: _Int64

    def __len__(self) -> int:
        return len(self.row)


def split_rows(
    lengths: _Int64,
    shared: _Int64,
    parts: Out[_Int64],
    row: Out[_Int64],
    start: Out[_Int64],
    end: Out[_Int64],
) -> int:
    """Fill row, start and end from behind, and return the number of nodes.

    parts: a stack of the depths at which later rows part from this one, the deepest on top.
    """
    place, top = len(row), 0
    for number in range(len(lengths) - 1, -1, -1):
        until = lengths[number]
        while top > 0 and parts[top - 1] > shared[number]:
            depth = parts[top - 1]
            top -= 1
            if depth < until:
                place -= 1
                row[place], start[place], end[place] = number, depth, until
                until = depth
        if shared[number] < until:
            place -= 1
            row[place], start[place], end[place] = number, shared[number], until
        if shared[number] > 0 and (top == 0 or parts[top - 1] < shared[number]):
            parts[top] = shared[number]
            top += 1
        elif shared[number] == 0:
            top = 0
    return len(row) - place


def link_nodes(
    lengths: _Int64,
    shared: _Int64,
    row: _Int64,
    start: _Int64,
    end: _Int64,
    path: Out[_Int64],
    parent: Out[_Int64],
    last: Out[_Int64],
) -> None:
    """Fill parent and last; see `Nodes`. path: nodes of the latest row, from its root on."""
    node, top = 0, 0
    for number in range(len(lengths)):
        while top > 0 and end[path[top - 1]] > shared[number]:
            top -= 1
        while node < len(row) and row[node] == number:
            parent[node] = path[top - 1] if top > 0 else -1
            path[top] = node
            top += 1
            node += 1
        last[number] = path[top - 1]


def nodes_of_rows(
    lengths: Any,
    shared: Any,
    split: Callable[..., int] = split_rows,
    link: Callable[..., None] = link_nodes,
) -> Nodes:
    """Nodes of rows in depth-first order; shared: [rows], tokens shared with the row before.

    lengths, shared: arrays, or lists, which are faster if the loops are not compiled. split, link:
    the loops.
    """
    rows = len(lengths)
    most = 2 * rows
    row, start, end, parent = (np.empty(most, np.int64) for _ in range(4))
    last, path = np.empty(rows, np.int64), np.empty(most + 1, np.int64)
    first = most - int(split(lengths, shared, path, row, start, end))
    nodes = Nodes(
        row=row[first:], start=start[first:], end=end[first:], parent=parent[first:], last=last
    )
    link(lengths, shared, nodes.row, nodes.start, nodes.end, path, nodes.parent, last)
    return nodes
