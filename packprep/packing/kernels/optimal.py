"""Minimum bin slack on counts of equal documents: fill packs to the last token if possible.

Gupta and Ho (1999) fill one pack after another with the subset of the remaining documents that
leaves the least room. Here the longest remaining length is always in the pack. The search goes from
long to short and ends at a perfect fill. Its pattern is repeated as long as the counts allow, so a
million documents need thousands of searches.
"""

import numpy as np

from packprep.packing.kernels.common import grown, kernel
from packprep.packing.kernels.fit import Patterns, living, rooms
from packprep.support.arrays import Int32, Int64


@kernel
def _next_unused(next_living: Int64, left: Int64, used: Int64, k: int) -> int:
    """First kind >= k with a document that is neither packed nor in this pack.

    Returns the number of kinds if there is none.
    """
    k = living(next_living, k)
    while k < left.size and left[k] <= used[k]:
        k = living(next_living, k + 1)
    return k


@kernel
def perfect_fill_patterns(
    lengths: Int32, counts: Int64, capacity: int, slots: int, steps: int, all_steps: int
) -> Patterns:
    """For each pack, the subset with the longest remaining document that leaves the least room.

    lengths, counts: [kinds], lengths descending. A search ends at a perfect fill, or after `steps`
    documents tried once it has a pack. After `all_steps` documents tried in all searches, a search
    gets a hundredth of `steps`.
    """
    kinds = lengths.size
    left = counts.copy()
    next_living = np.arange(kinds + 1)
    at_most = rooms(lengths, capacity)
    starts, times = np.zeros(64, np.int64), np.empty(64, np.int64)
    run_kind, run_copies = np.empty(64, np.int32), np.empty(64, np.int32)
    most = min(slots, capacity // lengths[kinds - 1]) + 1
    # kinds in the pack, never decreasing
    chosen, best = np.empty(most, np.int64), np.empty(most, np.int64)
    used = np.zeros(kinds, np.int64)  # documents of each kind among the chosen
    patterns, run, tried = 0, 0, 0
    while True:
        seed = living(next_living, 0)
        if seed == kinds:
            break
        chosen[0], used[seed], depth, room = seed, 1, 1, capacity - lengths[seed]
        least, size, limit = capacity, 0, tried + (steps if tried < all_steps else steps // 100)
        fresh, candidate = True, 0
        while depth > 0:
            if fresh:
                # Try a document that fills the room exactly, else the longest that fits.
                tried += 1
                candidate = kinds
                if room > 0 and depth < slots:
                    exact = max(chosen[depth - 1], np.int64(at_most[room]))
                    candidate = _next_unused(next_living, left, used, exact)
                    if candidate == exact < kinds and lengths[exact] == room:
                        chosen[depth] = exact
                        used[exact] += 1
                        depth += 1
                        room, candidate = 0, kinds
                if candidate == kinds and (room < least or size == 0):
                    least, size = room, depth
                    best[:depth] = chosen[:depth]
            if least == 0 or (tried > limit and size > 0):
                break
            if candidate < kinds:
                chosen[depth] = candidate
                used[candidate] += 1
                depth += 1
                room -= lengths[candidate]
                fresh = True
            else:
                # Remove the last document and try a shorter one instead.
                depth -= 1
                last = chosen[depth]
                used[last] -= 1
                room += lengths[last]
                candidate = _next_unused(next_living, left, used, last + 1) if depth > 0 else kinds
                fresh = False
        for i in range(depth):
            used[chosen[i]] = 0
        repeat, i, first = 1 << 62, 0, run
        while i < size:
            copies = 1
            while i + copies < size and best[i + copies] == best[i]:
                copies += 1
            run_kind, run_copies = grown(run_kind, run + 1), grown(run_copies, run + 1)
            run_kind[run], run_copies[run] = best[i], copies
            run += 1
            repeat = min(repeat, left[best[i]] // copies)
            i += copies
        for i in range(first, run):
            left[run_kind[i]] -= repeat * run_copies[i]
            if left[run_kind[i]] == 0:
                next_living[run_kind[i]] = run_kind[i] + 1
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
