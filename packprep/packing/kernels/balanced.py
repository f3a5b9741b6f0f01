"""Make a fixed number of packs as even as possible.

Longest processing time first, then exchanges between uneven packs.
"""

import numpy as np

from packprep.packing.kernels.common import kernel
from packprep.support.arrays import Int32, Int64


@kernel
def _sink(heap: Int32, size: int, fills: Int64, node: int) -> None:
    """Restore the heap after the pack at `node` got fuller.

    The emptiest pack is on top; ties are broken by number.
    """
    pack = heap[node]
    while 2 * node + 1 < size:
        child = 2 * node + 1
        if child + 1 < size:
            a, b = heap[child], heap[child + 1]
            if fills[b] < fills[a] or (fills[b] == fills[a] and b < a):
                child += 1
        child_pack = heap[child]
        if fills[pack] < fills[child_pack] or (
            fills[pack] == fills[child_pack] and pack < child_pack
        ):
            break
        heap[node] = child_pack
        node = child
    heap[node] = pack


@kernel
def longest_first(lengths: Int32, weights: Int32, longest: Int64, packs: int, slots: int) -> Int32:
    """Pack of each document: longest first, each into the emptiest pack (Graham 1969).

    longest: documents, longest first. weights: [documents], or empty if each is 1. Returns an empty
    array if slots run out. O(documents log packs).
    """
    heap, size = np.arange(packs).astype(np.int32), packs
    fills, free = np.zeros(packs, np.int64), np.full(packs, slots, np.int64)
    pack_of = np.empty(lengths.size, np.int32)
    for i in longest:
        weight = weights[i] if weights.size else 1
        while size > 0 and free[heap[0]] < weight:
            size -= 1
            heap[0] = heap[size]
            _sink(heap, size, fills, 0)
        if size == 0:
            return np.empty(0, np.int32)
        pack = heap[0]
        pack_of[i] = pack
        fills[pack] += lengths[i]
        free[pack] -= weight
        _sink(heap, size, fills, 0)
    return pack_of


@kernel
def even_out(lengths: Int32, pack_of: Int32, packs: int, rounds: int) -> int:
    """Exchange documents, one for one, between the pack furthest from the mean and another pack.

    The other pack is the one with the best exchange. Changes pack_of in place and returns the
    number of exchanges. Ends when no pack can be improved, or after `rounds`. Every exchange brings
    two packs closer together, so the fullest pack never gets fuller.
    """
    fills, sizes = np.zeros(packs, np.int64), np.zeros(packs + 1, np.int64)
    for i in range(pack_of.size):
        fills[pack_of[i]] += lengths[i]
        sizes[pack_of[i] + 1] += 1
    starts = np.cumsum(sizes)
    members, cursors = np.empty(pack_of.size, np.int64), starts.copy()
    for i in np.argsort(lengths, kind="mergesort"):  # so the members of each pack ascend in length
        members[cursors[pack_of[i]]] = i
        cursors[pack_of[i]] += 1
    tokens = fills.sum()
    settled = np.zeros(packs, np.bool_)  # no exchange improves it, until it changes
    done = 0
    for _ in range(rounds):
        one, furthest = -1, np.int64(0)
        for pack in range(packs):
            away = abs(fills[pack] * packs - tokens)
            if away > furthest and not settled[pack]:
                one, furthest = pack, away
        if one < 0:
            break
        gain, a, b = 0, 0, 0
        for other in range(packs):
            apart = abs(fills[one] - fills[other])
            if apart // 2 <= gain:
                continue
            full, empty = (one, other) if fills[one] > fills[other] else (other, one)
            # The exchange that moves closest to half of the difference. Both lists ascend, so two
            # pointers find it.
            j = starts[empty]
            for i in range(starts[full], starts[full + 1]):
                length = lengths[members[i]]
                while j < starts[empty + 1] and 2 * (length - lengths[members[j]]) > apart:
                    j += 1
                for candidate in (j - 1, j):
                    if starts[empty] <= candidate < starts[empty + 1]:
                        moved = length - lengths[members[candidate]]
                        better = min(moved, apart - moved)
                        if better > gain:
                            gain, a, b = better, i, candidate
        if gain == 0:
            settled[one] = True
            continue
        i, j = members[a], members[b]
        full, empty = pack_of[i], pack_of[j]
        moved = lengths[i] - lengths[j]
        fills[full] -= moved
        fills[empty] += moved
        settled[full] = settled[empty] = False
        pack_of[i], pack_of[j] = empty, full
        members[a], members[b] = j, i
        for place, pack in ((a, full), (b, empty)):
            while place > starts[pack] and lengths[members[place - 1]] > lengths[members[place]]:
                members[place - 1], members[place] = members[place], members[place - 1]
                place -= 1
            while (
                place + 1 < starts[pack + 1]
                and lengths[members[place + 1]] < lengths[members[place]]
            ):
                members[place + 1], members[place] = members[place], members[place + 1]
                place += 1
        done += 1
    return done


@kernel
def by_pack(pack_of: Int32, packs: int) -> tuple[Int64, Int64]:
    """Order and offsets of the plan with document i in pack pack_of[i].

    Documents ascend inside a pack.
    """
    sizes = np.zeros(packs + 1, np.int64)
    for pack in pack_of:
        sizes[pack + 1] += 1
    offsets = np.cumsum(sizes)
    order, cursors = np.empty(pack_of.size, np.int64), offsets.copy()
    for i in range(pack_of.size):
        order[cursors[pack_of[i]]] = i
        cursors[pack_of[i]] += 1
    return order, offsets
