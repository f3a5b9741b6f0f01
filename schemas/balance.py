"""Make a fixed number of packs as even as possible: two loops over lengths.

Longest first, each into the emptiest pack; then exchanges between uneven packs. Without a compiler
the loops take lists as well, which Python reads several times faster than arrays.
"""

import heapq

from .arrays import Bools, Int32, Int64, Out


def place_longest_first(
    lengths: Int32,
    weights: Int32,
    longest: Int64,
    fills: Out[Int64],
    free: Out[Int64],
    pack_of: Out[Int32],
) -> bool:
    """Fill pack_of: longest first, each into the emptiest pack (Graham 1969).

    Returns False if slots run out. longest: documents, longest first. weights: [documents], or
    empty if each is 1. fills, free: tokens and free slots of each pack; ties are broken by number.
    """
    heap = [(fills[pack], pack) for pack in range(len(fills))]
    for i in longest:
        weight = weights[i] if len(weights) > 0 else 1
        while len(heap) > 0 and free[heap[0][1]] < weight:
            heapq.heappop(heap)
        if len(heap) == 0:
            return False
        pack = heap[0][1]
        pack_of[i] = pack
        fills[pack] += lengths[i]
        free[pack] -= weight
        heapq.heapreplace(heap, (fills[pack], pack))
    return True


def exchange_until_even(
    lengths: Int32,
    tokens: int,
    starts: Int64,
    rounds: int,
    pack_of: Out[Int32],
    fills: Out[Int64],
    members: Out[Int64],
    settled: Out[Bools],
) -> int:
    """Exchange documents, one for one, between the pack furthest from the mean and another pack.

    The other pack is the one with the best exchange. Returns the number of exchanges. Ends when no
    pack can be improved, or after `rounds`. Every exchange brings two packs closer together, so the
    fullest pack never gets fuller.

    tokens: of all packs. fills: of each pack. members: documents of each pack, shortest first,
    members[starts[pack]:starts[pack + 1]]. settled: no exchange improves the pack, until it
    changes.
    """
    packs, done = len(fills), 0
    for _ in range(rounds):
        one, furthest = -1, 0
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
                        better = moved if moved < apart - moved else apart - moved
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
            last = starts[pack + 1] - 1
            while place < last and lengths[members[place + 1]] < lengths[members[place]]:
                members[place + 1], members[place] = members[place], members[place + 1]
                place += 1
        done += 1
    return done
