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


def best_cut(lengths: Sequence[int], shared: Sequence[int], most: int) -> int:
    """The fewest tokens that any cut of the rows in their order repeats."""
    best = {0: 0}
    for end in range(1, len(lengths) + 1):
        options = []
        size = 0
        for begin in range(end - 1, -1, -1):
            size = lengths[begin] + (size - shared[begin + 1] if begin + 1 < end else 0)
            if size <= most:
                options.append(best[begin] + shared[begin])
            if shared[begin] == 0:
                break
        best[end] = min(options)
    return best[len(lengths)]
