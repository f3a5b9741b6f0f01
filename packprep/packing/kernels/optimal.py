"""Minimum bin slack on counts of equal documents: fill packs to the last token if possible.

Gupta and Ho (1999) fill one pack after another with the subset of the remaining documents that
leaves the least room. Here the longest remaining length is always in the pack. The search goes from
long to short and ends at a perfect fill. Its pattern is repeated as long as the counts allow, so a
million documents need thousands of searches.
"""

import numpy as np

from ...schemas.arrays import Int32, Int64
from .common import Out, inlined, kernel, larger, smaller
from .fit import PatternList, Patterns, living, rooms


@inlined
def _next_unused(next_living: Int64, left: Int64, used: Int64, k: int) -> int:
    """First kind >= k with a document that is neither packed nor in this pack.

    Returns the number of kinds if there is none.
    """
    k = living(next_living, k)
    while k < left.size and left[k] <= used[k]:
        k = living(next_living, k + 1)
    return k


def perfect_fill_patterns(
    lengths: Int32, counts: Int64, capacity: int, slots: int, steps: int, all_steps: int
) -> Patterns:
    """For each pack, the subset with the longest remaining document that leaves the least room.

    lengths, counts: [kinds], lengths descending. A search ends at a perfect fill, or after `steps`
    documents tried once it has a pack. After `all_steps` documents tried in all searches, a search
    gets a hundredth of `steps`.
    """
    most = min(slots, capacity // int(lengths[-1])) + 1
    result = PatternList(counts.copy(), min(most, lengths.size))
    at_most, patterns, tried = rooms(lengths, capacity), 0, 0
    while True:
        patterns, tried = _perfect_fill(
            lengths,
            capacity,
            slots,
            steps,
            all_steps,
            at_most,
            *result.arguments,
            patterns,
            tried,
            np.empty(most, np.int64),
            np.empty(most, np.int64),
            np.zeros(lengths.size, np.int64),
        )
        if not result.left.any():
            return result.done(patterns)
        result.grow()


@kernel
def _perfect_fill(
    lengths: Int32,
    capacity: int,
    slots: int,
    steps: int,
    all_steps: int,
    at_most: Int32,
    left: Out[Int64],
    next_living: Out[Int64],
    most: int,
    starts: Out[Int64],
    run_kind: Out[Int32],
    run_copies: Out[Int32],
    times: Out[Int64],
    patterns: int,
    tried: int,
    chosen: Out[Int64],
    best: Out[Int64],
    used: Out[Int64],
) -> tuple[int, int]:
    """Append to the first `patterns` patterns until all are made, or the arrays are full.

    tried: documents tried for them. chosen: kinds in the pack, never decreasing. best: those of the
    best pack. used: documents of each kind among the chosen. Returns the number of patterns and the
    documents tried.
    """
    kinds, run = lengths.size, starts[patterns]
    while patterns < times.size and run + most <= run_kind.size:
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
                    exact = larger(chosen[depth - 1], at_most[room])
                    candidate = _next_unused(next_living, left, used, exact)
                    if candidate == exact < kinds and lengths[exact] == room:
                        chosen[depth] = exact
                        used[exact] += 1
                        depth += 1
                        room, candidate = 0, kinds
                if candidate == kinds and (room < least or size == 0):
                    least, size = room, depth
                    for i in range(depth):
                        best[i] = chosen[i]
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
            run_kind[run], run_copies[run] = best[i], copies
            run += 1
            repeat = smaller(repeat, left[best[i]] // copies)
            i += copies
        for i in range(first, run):
            left[run_kind[i]] -= repeat * run_copies[i]
            if left[run_kind[i]] == 0:
                next_living[run_kind[i]] = run_kind[i] + 1
        times[patterns] = repeat
        patterns += 1
        starts[patterns] = run
    return patterns, tried
