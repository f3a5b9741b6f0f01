"""Brute-force twin of the trees: nested dicts, one token at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

Row = Sequence[int]


@dataclass
class Node:
    """One token of a trie. rows: that end here, or pass, in order of insertion."""

    ends: list[int] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    children: dict[int, "Node"] = field(default_factory=dict)


def trie(rows: Sequence[Row]) -> Node:
    root = Node()
    for number, row in enumerate(rows):
        node = root
        node.passes.append(number)
        for token in row:
            node = node.children.setdefault(token, Node())
            node.passes.append(number)
        node.ends.append(number)
    return root


def depth_first(node: Node) -> list[int]:
    """Rows in depth-first order: those that end at a node, then its children as they came."""
    return node.ends + [row for child in node.children.values() for row in depth_first(child)]


def common(first: Row, second: Row) -> int:
    """Number of equal tokens at the beginning of two rows."""
    length = 0
    for one, two in zip(first, second, strict=False):
        if one != two:
            break
        length += 1
    return length


def shared_tokens(rows: Sequence[Row], order: Sequence[int]) -> list[int]:
    """Tokens that each row shares with the one before it in the order."""
    return [0] + [common(rows[one], rows[two]) for one, two in pairwise(order)]


def greedy_cut(lengths: Sequence[int], shared: Sequence[int], most: int) -> int:
    """Tokens repeated where each part takes rows in order as long as they fit."""
    repeated = size = 0
    for length, common in zip(lengths, shared, strict=True):
        if common and size + length - common <= most:
            size += length - common
        else:
            repeated += common
            size = length
    return repeated


def count_nodes(rows: Sequence[Row]) -> int:
    """Nodes of the trees of some rows: a node ends where a row ends, or where rows part."""
    below: list[Node] = [trie(rows)]
    count = 0
    while below:
        children = list(below.pop().children.values())
        count += sum(bool(child.ends) or len(child.children) > 1 for child in children)
        below += children
    return count


def best_cut(rows: Sequence[Row], shared: Sequence[int], most: int, most_nodes: int) -> int:
    """The fewest tokens that any cut of the rows in their order repeats.

    most, most_nodes: tokens and nodes that each part may have.
    """
    best = {0: 0}
    for end in range(1, len(rows) + 1):
        options = []
        for begin in range(end - 1, -1, -1):
            part = rows[begin:end]
            if count_tokens(part) <= most and count_nodes(part) <= most_nodes:
                options.append(best[begin] + shared[begin])
            if shared[begin] == 0:
                break
        best[end] = min(options)
    return best[len(rows)]


def count_tokens(rows: Sequence[Row]) -> int:
    """Tokens of the trees of some rows."""
    return len({tuple(row[: end + 1]) for row in rows for end in range(len(row))})
