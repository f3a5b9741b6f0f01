"""Packs of at most so many segments: short documents are spread over all packs instead of being left for the end.

Best fit decreasing fills its first packs with a few long documents and its last ones with short ones, which then run
into the limit long before they are full. Here every pack takes as many documents as packs must hold on average, so that
the average of what is left stays where it was.
"""

import numpy as np

from packprep.kernels import Int32s, Int64s, grown, kernel
from packprep.kernels_fit import Patterns, living, rooms


@kernel
def spread_patterns(lengths: Int32s, counts: Int64s, capacity: int, slots: int) -> Patterns:
    """Packs of n documents, n = what is left / packs it needs, at most `slots`: the longest with as many short ones.

    Each place takes the longest document that leaves room for the shortest one in every later place. So a pack holds
    some long documents, one or two that close it, and short ones. A pattern repeats while the counts allow.
    """
    kinds = lengths.size
    left = counts.copy()
    next_living = np.arange(kinds + 1)
    at_most = rooms(lengths, capacity)
    documents, tokens = counts.sum(), (counts * lengths).sum()
    starts, times = np.zeros(64, np.int64), np.empty(64, np.int64)
    run_kind, run_copies = np.empty(64, np.int32), np.empty(64, np.int32)
    patterns, run, shortest = 0, 0, kinds - 1
    while documents > 0:
        while left[shortest] == 0:
            shortest -= 1
        packs = -(-tokens // capacity)
        places = min(slots, -(-documents // packs), capacity // lengths[shortest])
        room, first = capacity, run
        k = living(next_living, 0)
        while places > 0 and k < kinds:
            # The run takes copies while each leaves the shortest length for all later places.
            length, least = int(lengths[k]), int(lengths[shortest])
            spare = room - places * least
            each = min(left[k], places if length == least else min(places, spare // (length - least)))
            if each > 0:
                run_kind, run_copies = grown(run_kind, run + 1), grown(run_copies, run + 1)
                run_kind[run], run_copies[run] = k, each
                run += 1
                room -= each * length
                places -= each
            # Next: shorter, and with room for the shortest in the places after it.
            most = room - (places - 1) * least
            if places == 0 or room < least:
                break
            k = living(next_living, max(k + 1, int(at_most[max(most, least)])))
        repeat = 1 << 62
        for i in range(first, run):
            repeat = min(repeat, left[run_kind[i]] // run_copies[i])
        for i in range(first, run):
            used = repeat * run_copies[i]
            left[run_kind[i]] -= used
            documents -= used
            tokens -= used * lengths[run_kind[i]]
            if left[run_kind[i]] == 0:
                next_living[run_kind[i]] = run_kind[i] + 1
        starts, times = grown(starts, patterns + 2), grown(times, patterns + 2)
        times[patterns] = repeat
        patterns += 1
        starts[patterns] = run
    return starts[: patterns + 1].copy(), run_kind[:run].copy(), run_copies[:run].copy(), times[:patterns].copy()
