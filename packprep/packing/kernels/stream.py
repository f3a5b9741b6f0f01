"""Strategies that take documents in input order.

Next fit, best fit, and a stream that fills the end of each pack exactly.
"""

import numpy as np

from packprep.packing.kernels.common import clear_bit, kernel, next_set, set_bit
from packprep.support.arrays import Int32, Int64


@kernel
def next_fit(lengths: Int32, weights: Int32, capacity: int, slots: int) -> tuple[Int64, Int64]:
    """Order and offsets of next fit: a new pack whenever the next document doesn't fit.

    weights: [documents], or empty if each is 1. One pass.
    """
    documents = lengths.size
    order, offsets = np.empty(documents, np.int64), np.empty(documents + 1, np.int64)
    packs, room, free = 0, 0, 0
    for i in range(documents):
        weight = weights[i] if weights.size else 1
        if lengths[i] > room or weight > free:
            offsets[packs] = i
            packs += 1
            room, free = capacity, slots
        room -= lengths[i]
        free -= weight
        order[i] = i
    offsets[packs] = documents
    return order, offsets[: packs + 1].copy()


@kernel
def stream_packs(
    lengths: Int32,
    starts: Int64,
    queue: Int32,
    capacity: int,
    slots: int,
    order: Int64,
    offsets: Int64,
) -> int:
    """Next fit, but later documents that fit exactly close each pack. Returns the number of packs.

    starts, queue: documents by length, in input order (queue[starts[L]:starts[L + 1]] have length
    L). When the next document doesn't fit, the remaining room is filled with one unused document of
    that length, else with two, else with the longest that fits, repeatedly. So packs are full, but
    most documents come in input order and only few are chosen by length. All documents before the
    next one are used, so those that close a pack come later in the input.
    """
    documents = lengths.size
    used = np.zeros(documents, np.bool_)
    heads = starts[: capacity + 1].copy()
    # Bit capacity - L is set if there are unused documents of length L; so the next set bit is the
    # longest that fits.
    words = np.zeros((capacity >> 6) + 1, np.uint64)
    summary = np.zeros((words.size >> 6) + 1, np.uint64)
    for length in range(1, capacity + 1):
        if starts[length + 1] > starts[length]:
            set_bit(words, summary, capacity - length)
    placed, packs, i = 0, 0, 0
    while placed < documents:
        offsets[packs] = placed
        packs += 1
        room, free = capacity, slots
        while True:
            while i < documents and used[i]:
                i += 1
            if i == documents or lengths[i] > room or free <= 1:
                break
            length = lengths[i]
            heads[length] += 1
            if heads[length] == starts[length + 1]:
                clear_bit(words, summary, capacity - length)
            order[placed] = i
            placed += 1
            i += 1
            room -= length
            free -= 1
        first = placed
        while room > 0 and free > 0:
            longest = next_set(words, summary, capacity - room)
            if longest < 0:
                break
            length = capacity - longest
            if length < room and free > 1:
                # Two that fill the room exactly, if found in a few steps; else the longest.
                other, bit = 0, next_set(words, summary, capacity - (room + 1) // 2)
                for _ in range(32):
                    if bit < 0:
                        break
                    rest = room - (capacity - bit)
                    if heads[rest] + (2 * rest == room) < starts[rest + 1]:
                        other = rest
                        break
                    bit = next_set(words, summary, bit + 1) if bit < capacity else -1
                if other > 0:
                    length = room - other
            document = queue[heads[length]]
            heads[length] += 1
            if heads[length] == starts[length + 1]:
                clear_bit(words, summary, capacity - length)
            used[document] = True
            # Closing documents come last in the input; sort them among themselves here.
            place = placed
            while place > first and order[place - 1] > document:
                order[place] = order[place - 1]
                place -= 1
            order[place] = document
            placed += 1
            room -= length
            free -= 1
    offsets[packs] = documents
    return packs


@kernel
def best_fit_online(lengths: Int32, capacity: int) -> tuple[Int64, Int64]:
    """Order and offsets of best fit in input order.

    Each document goes into the fullest pack with room, else into a new one.
    """
    documents = lengths.size
    words = np.zeros((capacity >> 6) + 1, np.uint64)
    summary = np.zeros((words.size >> 6) + 1, np.uint64)
    newest = np.full(
        capacity + 1, -1, np.int32
    )  # room -> pack with that room; `older` chains the others
    older, pack_of = np.empty(documents, np.int32), np.empty(documents, np.int32)
    sizes = np.zeros(documents + 1, np.int64)
    packs = 0
    for i in range(documents):
        length = lengths[i]
        room = next_set(words, summary, length)
        if room < 0:
            pack, room = packs, capacity
            packs += 1
        else:
            pack = newest[room]
            newest[room] = older[pack]
            if older[pack] < 0:
                clear_bit(words, summary, room)
        pack_of[i] = pack
        sizes[pack + 1] += 1
        room -= length
        if room > 0:
            if newest[room] < 0:
                set_bit(words, summary, room)
            older[pack], newest[room] = newest[room], pack
    offsets = np.cumsum(sizes[: packs + 1])
    order, cursors = np.empty(documents, np.int64), offsets.copy()
    for i in range(documents):
        order[cursors[pack_of[i]]] = i
        cursors[pack_of[i]] += 1
    return order, offsets


@kernel
def sort_packs(order: Int64, offsets: Int64) -> None:
    """Sort the documents of each pack into input order, in place."""
    for p in range(offsets.size - 1):
        first, last = offsets[p], offsets[p + 1]
        if last - first > 32:
            order[first:last].sort()
            continue
        for i in range(first + 1, last):
            document, j = order[i], i
            while j > first and order[j - 1] > document:
                order[j] = order[j - 1]
                j -= 1
            order[j] = document
