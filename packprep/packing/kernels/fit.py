"""Best fit and first fit decreasing on counts of equal documents.

The cost does not depend on the number of documents.

A kind is a set of interchangeable documents: one length (and, if segments per pack are limited, one
number of segments). A pattern is the content of one pack, as runs (kind, copies), with the number
of packs that have it. Equal documents are placed in bulk: 10 million documents of 2,000 lengths
take about 6,000 steps. The packs are the same as when documents are placed one by one; the tests
compare with tests/helpers/reference.py.
"""

import numpy as np

from packprep.packing.kernels.common import clear_bit, grown, kernel, next_set, set_bit
from packprep.support.arrays import Int32, Int64, UInt64

Patterns = tuple[Int64, Int32, Int32, Int64]
"""starts [patterns + 1] into the runs; kind, copies [runs]; packs [patterns]."""


@kernel
def _fullest(
    words: UInt64,
    summary: UInt64,
    heads: Int32,
    following: Int32,
    free: Int64,
    length: int,
    weight: int,
) -> tuple[int, int, int]:
    """Fullest packs that can take one document: (room, node before in its chain or -1, node).

    All are -1 if there are none.
    """
    room = next_set(words, summary, length)
    while room >= 0:
        before, node = -1, int(heads[room])
        while node >= 0 and free[node] < weight:
            before, node = node, int(following[node])
        if node >= 0:
            return room, before, node
        room = next_set(words, summary, room + 1) if room + 1 < heads.size else -1
    return -1, -1, -1


@kernel
def best_fit_patterns(
    lengths: Int32, weights: Int32, counts: Int64, capacity: int, slots: int
) -> Patterns:
    """Best fit decreasing on counts.

    Longest first, each document into the fullest pack that still has room, else into a new one.

    lengths, weights, counts: [kinds], lengths descending; a pack holds at most `capacity` tokens
    and weight `slots`.
    """
    size = 4 * lengths.size + 64
    while True:
        tree, packs = np.empty(4 * size, np.int32), np.empty(size, np.int64)
        nodes = _best_fit_tree(lengths, weights, counts, capacity, slots, tree, packs)
        if nodes >= 0:
            return paths(tree, packs[:nodes])
        size *= 4


@kernel
def _best_fit_tree(
    lengths: Int32,
    weights: Int32,
    counts: Int64,
    capacity: int,
    slots: int,
    tree: Int32,
    packs: Int64,
) -> int:
    """Grow the tree of best_fit_patterns.

    Returns its number of nodes, or -1 if the arrays are too small for it.

    A document of length L goes to the packs with the least room r >= L. While such a pack has room,
    it stays the fullest one that fits, so it takes r // L in a row. All packs with room r do the
    same, in one step. Equally full packs are a node of a tree; the path to the root is their
    pattern. The arrays don't grow here: numba counts references to an array that is replaced in a
    loop, which takes as long as all other work.
    """
    words = np.zeros(
        (capacity >> 6) + 1, np.uint64
    )  # bit r: there are packs with room for r more tokens
    summary = np.zeros((words.size >> 6) + 1, np.uint64)  # bit w: words[w] is not 0
    heads = np.full(
        capacity + 1, -1, np.int32
    )  # room -> newest node with that room; `following` chains the others
    following, free = np.empty(packs.size, np.int32), np.empty(packs.size, np.int64)
    nodes = 0
    for k in range(lengths.size):
        length, weight, left = int(lengths[k]), int(weights[k]), int(counts[k])
        while left > 0:
            if nodes == packs.size:
                return -1
            room, before, node = next_set(words, summary, length), -1, -1
            if room >= 0:
                node = int(heads[room])
                if free[node] < weight:
                    room, before, node = _fullest(
                        words, summary, heads, following, free, length, weight
                    )
            free_room, slots_left, most = (
                (room, free[node], packs[node]) if node >= 0 else (capacity, slots, left)
            )
            copies = min(left, free_room // length, slots_left // weight)
            taken = min(most, left // copies)
            left -= taken * copies
            if node >= 0:
                packs[node] -= taken
                if packs[node] == 0:
                    if before >= 0:
                        following[before] = following[node]
                    else:
                        heads[room] = following[node]
                    if heads[room] < 0:
                        clear_bit(words, summary, room)
            add_node(tree, nodes, node, k, copies)
            packs[nodes], free[nodes] = taken, slots_left - copies * weight
            room = free_room - copies * length
            if room > 0 and free[nodes] > 0:
                following[nodes], heads[room] = heads[room], nodes
                set_bit(words, summary, room)
            nodes += 1
    return nodes


@kernel
def add_node(tree: Int32, node: int, parent: int, kind: int, copies: int) -> None:
    """Set node `node` of a tree: four numbers, its parent (-1: none), kind, copies and depth."""
    tree[4 * node], tree[4 * node + 1], tree[4 * node + 2] = parent, kind, copies
    tree[4 * node + 3] = tree[4 * parent + 3] + 1 if parent >= 0 else 1


@kernel
def paths(tree: Int32, packs: Int64) -> Patterns:
    """Patterns of a tree: for every node that has packs, the runs on its path to the root."""
    patterns, total = 0, 0
    for node in range(packs.size):
        if packs[node] > 0:
            patterns += 1
            total += tree[4 * node + 3]
    starts, times = np.zeros(patterns + 1, np.int64), np.empty(patterns, np.int64)
    run_kind, run_copies = np.empty(total, np.int32), np.empty(total, np.int32)
    pattern, run = 0, 0
    for leaf in range(packs.size):
        if packs[leaf] > 0:
            node = leaf
            while node >= 0:
                run_kind[run], run_copies[run] = tree[4 * node + 1], tree[4 * node + 2]
                run += 1
                node = int(tree[4 * node])
            times[pattern] = packs[leaf]
            pattern += 1
            starts[pattern] = run
    return starts, run_kind, run_copies, times


@kernel
def living(next_living: Int64, k: int) -> int:
    """First kind >= k that is not used up (union-find with path halving)."""
    while next_living[k] != k:
        next_living[k] = next_living[next_living[k]]
        k = next_living[k]
    return k


@kernel
def rooms(lengths: Int32, capacity: int) -> Int32:
    """First kind that fits each room 0..capacity; lengths: [kinds], descending."""
    at_most = np.empty(capacity + 1, np.int32)
    k = lengths.size
    for room in range(capacity + 1):
        while k > 0 and lengths[k - 1] <= room:
            k -= 1
        at_most[room] = k
    return at_most


@kernel
def first_fit_patterns(
    lengths: Int32, weights: Int32, counts: Int64, capacity: int, slots: int
) -> Patterns:
    """First fit decreasing, pack by pack: take the largest document that fits until none does.

    Placing documents longest first into the first pack with room gives the same packs as filling
    pack after pack with the largest document that fits ("greedy knapsack"): the first pack gets, of
    each length, as many documents as fit after the longer ones. A pattern repeats as long as the
    counts allow, so almost every pattern uses up one length.
    """
    kinds = lengths.size
    left = counts.copy()
    next_living = np.arange(kinds + 1)
    at_most = rooms(lengths, capacity)
    starts, times = np.zeros(64, np.int64), np.empty(64, np.int64)
    run_kind, run_copies = np.empty(64, np.int32), np.empty(64, np.int32)
    patterns, run = 0, 0
    while True:
        k = living(next_living, 0)
        if k == kinds:
            break
        room, free, repeat = capacity, slots, 1 << 62
        while k < kinds:
            copies = min(left[k], room // lengths[k], free // weights[k])
            if copies > 0:
                if run == run_kind.size:
                    run_kind, run_copies = grown(run_kind, run + 1), grown(run_copies, run + 1)
                run_kind[run], run_copies[run] = k, copies
                run += 1
                room -= copies * lengths[k]
                free -= copies * weights[k]
                repeat = min(repeat, left[k] // copies)
            if free == 0:
                break
            # The next kind is shorter, or equally long but lighter, and fits the room.
            k = living(next_living, max(k + 1, int(at_most[room])))
        for i in range(starts[patterns], run):
            left[run_kind[i]] -= repeat * run_copies[i]
            if left[run_kind[i]] == 0:
                next_living[run_kind[i]] = run_kind[i] + 1
        if patterns + 1 == starts.size:
            starts, times = grown(starts, patterns + 2), grown(times, patterns + 2)
        times[patterns] = repeat
        patterns += 1
        starts[patterns] = run
    return (
        starts[: patterns + 1].copy(),
        run_kind[:run].copy(),
        run_copies[:run].copy(),
        times[:patterns].copy(),
    )
