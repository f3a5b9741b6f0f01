"""Best fit and first fit decreasing on counts of equal documents.

The cost does not depend on the number of documents.

A kind is a set of interchangeable documents: one length (and, if segments per pack are limited, one
number of segments). A pattern is the content of one pack, as runs (kind, copies), with the number
of packs that have it. Equal documents are placed in bulk: 10 million documents of 2,000 lengths
take about 6,000 steps. The packs are the same as when documents are placed one by one; the tests
compare with tests/helpers/reference.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...schemas.arrays import Int32, Int64, UInt64
from .common import (
    Out,
    bitmap,
    inlined,
    kernel_for_many,
    larger,
    next_set,
    put_bit,
    smaller,
)

Patterns = tuple[Int64, Int32, Int32, Int64]
"""starts [patterns + 1] into the runs; kind, copies [runs]; packs [patterns]."""


def best_fit_patterns(
    lengths: Int32, weights: Int32, counts: Int64, capacity: int, slots: int
) -> Patterns:
    """Best fit decreasing on counts.

    Longest first, each document into the fullest pack that still has room, else into a new one.

    lengths, weights, counts: [kinds], lengths descending; a pack holds at most `capacity` tokens
    and weight `slots`.
    """
    size = 4 * lengths.size + 64
    return grown(_best_fit_tree, (lengths, weights, counts, capacity, slots), size, capacity)


def grown(grow: Callable[..., int], inputs: tuple[Any, ...], nodes: int, capacity: int) -> Patterns:
    """Patterns of the tree that a kernel grows.

    grow: gets the inputs and the arrays of the tree, which `_best_fit_tree` describes; returns the
    number of nodes, or -1 if the arrays are too small. nodes: room in the first arrays.
    """
    while True:
        parents, kinds, copies, depths, following = np.empty((5, nodes), np.int32)
        packs, free = np.empty((2, nodes), np.int64)
        heads = np.full(capacity + 1, -1, np.int32)
        tree = (parents, kinds, copies, depths)
        made = grow(*inputs, *tree, packs, *bitmap(capacity), heads, following, free)
        if made >= 0:
            return paths(tree, packs[:made])
        nodes *= 4


@kernel_for_many()
def _best_fit_tree(
    lengths: Int32,
    weights: Int32,
    counts: Int64,
    capacity: int,
    slots: int,
    parents: Out[Int32],
    kinds: Out[Int32],
    run_copies: Out[Int32],
    depths: Out[Int32],
    packs: Out[Int64],
    words: Out[UInt64],
    summary: Out[UInt64],
    heads: Out[Int32],
    following: Out[Int32],
    free: Out[Int64],
) -> int:
    """Grow the tree of best_fit_patterns.

    Returns its number of nodes, or -1 if the arrays are too small for it.

    A document of length L goes to the packs with the least room r >= L. While such a pack has room,
    it stays the fullest one that fits, so it takes r // L in a row. All packs with room r do the
    same, in one step. Equally full packs are a node of a tree; the path to the root is their
    pattern.

    parents, kinds, run_copies, depths: of each node, see `paths`. packs: those that end there.
    words, summary: bit r is set if there are packs with room for r more tokens. heads: room ->
    newest node with that room, or -1; `following` chains the others. free: slots left of each node.
    """
    nodes = 0
    for k in range(lengths.size):
        length, weight, left = lengths[k], weights[k], counts[k]
        while left > 0:
            if nodes == packs.size:
                return -1
            # The fullest packs that can take one document, and the node before in their chain.
            room, before, node = length - 1, -1, -1
            while node < 0 and room + 1 < heads.size:
                room = next_set(words, summary, room + 1)
                if room < 0:
                    break
                before, node = -1, heads[room]
                while node >= 0 and free[node] < weight:
                    before, node = node, following[node]
            free_room, slots_left, most = capacity, slots, left
            if node >= 0:
                free_room, slots_left, most = room, free[node], packs[node]
            copies = smaller(left, smaller(free_room // length, slots_left // weight))
            taken = smaller(most, left // copies)
            left -= taken * copies
            if node >= 0:
                packs[node] -= taken
                if packs[node] == 0:
                    if before >= 0:
                        following[before] = following[node]
                    else:
                        heads[room] = following[node]
                    if heads[room] < 0:
                        put_bit(words, summary, room, False)
            parents[nodes], kinds[nodes], run_copies[nodes] = node, k, copies
            depths[nodes] = 1
            if node >= 0:
                depths[nodes] += depths[node]
            packs[nodes], free[nodes] = taken, slots_left - copies * weight
            room = free_room - copies * length
            if room > 0 and free[nodes] > 0:
                following[nodes], heads[room] = heads[room], nodes
                put_bit(words, summary, room, True)
            nodes += 1
    return nodes


def paths(tree: tuple[Int32, Int32, Int32, Int32], packs: Int64) -> Patterns:
    """Patterns of a tree: for every node that has packs, the runs on its path to the root.

    tree: parent (-1: none), kind, copies and depth of each node. packs: [nodes], those that end
    there.
    """
    parents, kinds, copies, depths = tree
    leaves = np.flatnonzero(packs)
    starts = np.append(0, np.cumsum(depths[leaves], dtype=np.int64))
    run_kind, run_copies = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.int32)
    _write_paths(parents, kinds, copies, leaves, run_kind, run_copies)
    return starts, run_kind, run_copies, packs[leaves]


@kernel_for_many()
def _write_paths(
    parents: Int32,
    kinds: Int32,
    copies: Int32,
    leaves: Int64,
    run_kind: Out[Int32],
    run_copies: Out[Int32],
) -> None:
    run = 0
    for leaf in leaves:
        node = leaf
        while node >= 0:
            run_kind[run], run_copies[run] = kinds[node], copies[node]
            run += 1
            node = parents[node]


@inlined
def living(next_living: Int64, k: int) -> int:
    """First kind >= k that is not used up (union-find with path halving)."""
    while next_living[k] != k:
        next_living[k] = next_living[next_living[k]]
        k = next_living[k]
    return k


def rooms(lengths: Int32, capacity: int) -> Int32:
    """First kind that fits each room 0..capacity; lengths: [kinds], descending."""
    fitting = np.cumsum(np.bincount(lengths, minlength=capacity + 1), dtype=np.int32)
    at_most: Int32 = lengths.size - fitting
    return at_most


@dataclass
class PatternList:
    """Patterns that a kernel appends to, and the documents that are left for it.

    left: documents of each kind, [kinds]. next_living: see `living`.
    most: runs that one pattern may have. starts, run_kind, run_copies, times: see `Patterns`, with
    room for more.
    """

    left: Int64
    most: int

    def __post_init__(self) -> None:
        kinds = self.left.size
        self.next_living = np.arange(kinds + 1)
        self.starts, self.times = np.zeros(2 * kinds + 65, np.int64), np.empty(2 * kinds + 64, int)
        runs = 8 * kinds + 64 + self.most
        self.run_kind, self.run_copies = np.empty(runs, np.int32), np.empty(runs, np.int32)

    @property
    def arguments(self) -> tuple[Int64, Int64, int, Int64, Int32, Int32, Int64]:
        """The arguments of a kernel that appends, in its order."""
        return (
            self.left,
            self.next_living,
            self.most,
            self.starts,
            self.run_kind,
            self.run_copies,
            self.times,
        )

    def grow(self) -> None:
        """Make room for twice as many patterns."""
        for name in ("starts", "times", "run_kind", "run_copies"):
            values = getattr(self, name)
            setattr(self, name, np.concatenate([values, np.empty_like(values)]))

    def done(self, patterns: int) -> Patterns:
        """The first `patterns` of them."""
        runs = self.starts[patterns]
        return (
            self.starts[: patterns + 1].copy(),
            self.run_kind[:runs].copy(),
            self.run_copies[:runs].copy(),
            self.times[:patterns].copy(),
        )


def first_fit_patterns(
    lengths: Int32, weights: Int32, counts: Int64, capacity: int, slots: int
) -> Patterns:
    """First fit decreasing, pack by pack: take the largest document that fits until none does.

    Placing documents longest first into the first pack with room gives the same packs as filling
    pack after pack with the largest document that fits ("greedy knapsack"): the first pack gets, of
    each length, as many documents as fit after the longer ones. A pattern repeats as long as the
    counts allow, so almost every pattern uses up one length.
    """
    if not lengths.size:
        return PatternList(counts, 0).done(0)
    result = PatternList(counts.copy(), min(lengths.size, slots, capacity // int(lengths[-1])))
    at_most, patterns = rooms(lengths, capacity), 0
    while True:
        patterns = _first_fit(
            lengths,
            weights,
            capacity,
            slots,
            at_most,
            *result.arguments,
            patterns,
        )
        if not result.left.any():
            return result.done(patterns)
        result.grow()


@kernel_for_many()
def _first_fit(
    lengths: Int32,
    weights: Int32,
    capacity: int,
    slots: int,
    at_most: Int32,
    left: Out[Int64],
    next_living: Out[Int64],
    most: int,
    starts: Out[Int64],
    run_kind: Out[Int32],
    run_copies: Out[Int32],
    times: Out[Int64],
    patterns: int,
) -> int:
    """Append to the first `patterns` patterns until all are made, or the arrays are full.

    Returns the number of patterns.
    """
    kinds, run = lengths.size, starts[patterns]
    while patterns < times.size and run + most <= run_kind.size:
        k = living(next_living, 0)
        if k == kinds:
            break
        room, free, repeat = capacity, slots, 1 << 62
        while k < kinds:
            copies = smaller(left[k], smaller(room // lengths[k], free // weights[k]))
            if copies > 0:
                run_kind[run], run_copies[run] = k, copies
                run += 1
                room -= copies * lengths[k]
                free -= copies * weights[k]
                repeat = smaller(repeat, left[k] // copies)
            if free == 0:
                break
            # The next kind is shorter, or equally long but lighter, and fits the room.
            k = living(next_living, larger(k + 1, at_most[room]))
        for i in range(starts[patterns], run):
            left[run_kind[i]] -= repeat * run_copies[i]
            if left[run_kind[i]] == 0:
                next_living[run_kind[i]] = run_kind[i] + 1
        times[patterns] = repeat
        patterns += 1
        starts[patterns] = run
    return patterns
