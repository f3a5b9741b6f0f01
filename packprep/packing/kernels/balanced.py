"""Make a fixed number of packs as even as possible.

Longest processing time first, then exchanges between uneven packs.
"""

import numpy as np

from packprep.packing.kernels.common import smaller
from packprep.packing.kernels.compiled import Out, inlined, kernel
from packprep.packing.kernels.deal import by_pack
from packprep.support.arrays import Bools, Int32, Int64


@inlined
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


def longest_first(lengths: Int32, weights: Int32, longest: Int64, packs: int, slots: int) -> Int32:
    """Pack of each document: longest first, each into the emptiest pack (Graham 1969).

    longest: documents, longest first. weights: [documents], or empty if each is 1. Returns an empty
    array if slots run out. O(documents log packs).
    """
    heap, fills = np.arange(packs, dtype=np.int32), np.zeros(packs, np.int64)
    free, pack_of = np.full(packs, slots, np.int64), np.empty(lengths.size, np.int32)
    fit = _longest_first(lengths, weights, longest, heap, fills, free, pack_of)
    return pack_of if fit else pack_of[:0]


@kernel
def _longest_first(
    lengths: Int32,
    weights: Int32,
    longest: Int64,
    heap: Out[Int32],
    fills: Out[Int64],
    free: Out[Int64],
    pack_of: Out[Int32],
) -> bool:
    """Fill pack_of; see `longest_first`. Returns False if slots run out.

    heap: packs, the emptiest one on top. fills, free: tokens and free slots of each pack.
    """
    size = heap.size
    for i in longest:
        weight = weights[i] if weights.size else 1
        while size > 0 and free[heap[0]] < weight:
            size -= 1
            heap[0] = heap[size]
            _sink(heap, size, fills, 0)
        if size == 0:
            return False
        pack = heap[0]
        pack_of[i] = pack
        fills[pack] += lengths[i]
        free[pack] -= weight
        _sink(heap, size, fills, 0)
    return True


def even_out(lengths: Int32, pack_of: Int32, packs: int, rounds: int) -> int:
    """Exchange documents, one for one, between the pack furthest from the mean and another pack.

    The other pack is the one with the best exchange. Changes pack_of in place and returns the
    number of exchanges. Ends when no pack can be improved, or after `rounds`. Every exchange brings
    two packs closer together, so the fullest pack never gets fuller.
    """
    by_length = np.argsort(lengths, kind="stable")
    # So the members of each pack ascend in length.
    places, starts = by_pack(pack_of[by_length], packs)
    fills = np.bincount(pack_of, lengths, packs).astype(np.int64)
    settled = np.zeros(packs, np.bool_)
    return _even_out(
        lengths, int(fills.sum()), starts, rounds, pack_of, fills, by_length[places], settled
    )


@kernel
def _even_out(
    lengths: Int32,
    tokens: int,
    starts: Int64,
    rounds: int,
    pack_of: Out[Int32],
    fills: Out[Int64],
    members: Out[Int64],
    settled: Out[Bools],
) -> int:
    """Exchange documents; see `even_out`.

    tokens: of all packs. fills: of each pack. members: documents of each pack, shortest first,
    members[starts[pack]:starts[pack + 1]]. settled: no exchange improves the pack, until it
    changes.
    """
    packs = fills.size
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
                        better = smaller(moved, apart - moved)
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
