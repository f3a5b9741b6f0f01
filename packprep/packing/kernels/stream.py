"""Strategies that take documents in input order.

Next fit, first fit, best fit, and a stream that fills the end of each pack exactly.
"""

import numpy as np

from ...schemas.arrays import Bools, Int32, Int64, UInt64
from .common import Out, bitmap, kernel, kernel_for_many, larger, next_set, put_bit
from .deal import by_pack, queue_by_key, sort_long_packs

_SHORT = 32  # documents of a pack that insertion sorts quickly


def next_fit(lengths: Int32, weights: Int32, capacity: int, slots: int) -> tuple[Int64, Int64]:
    """Order and offsets of next fit: a new pack whenever the next document doesn't fit.

    weights: [documents], or empty if each is 1. One pass.
    """
    offsets = np.empty(lengths.size + 1, np.int64)
    packs = _next_fit(lengths, weights, capacity, slots, offsets)
    return np.arange(lengths.size), offsets[: packs + 1].copy()


@kernel_for_many()
def _next_fit(
    lengths: Int32, weights: Int32, capacity: int, slots: int, offsets: Out[Int64]
) -> int:
    packs, room, free = 0, 0, 0
    for i in range(lengths.size):
        weight = weights[i] if weights.size else 1
        if lengths[i] > room or weight > free:
            offsets[packs] = i
            packs += 1
            room, free = capacity, slots
        room -= lengths[i]
        free -= weight
    offsets[packs] = lengths.size
    return packs


def first_fit_online(
    lengths: Int32, weights: Int32, capacity: int, slots: int
) -> tuple[Int64, Int64]:
    """Order and offsets of first fit in input order.

    Each document goes into the first pack with room, else into a new one. weights: [documents], or
    empty if each is 1. O(documents log packs), by a tree of the rooms of all packs (Johnson, 1974).
    Example: lengths=[5, 6, 2, 3], capacity=8 -> packs [0, 2], [1] and [3].
    """
    # The first document of a pack fitted nowhere before, so two packs in a row hold more tokens
    # than one has room for, or more segments.
    tokens, segments = int(lengths.sum(dtype=np.int64)), lengths.size
    if weights.size:
        segments = int(weights.sum(dtype=np.int64))
    most = min(lengths.size, 2 * (tokens // capacity + segments // slots) + 1)
    leaves = 1 << max(0, most - 1).bit_length()
    room = np.full(2 * leaves, capacity, np.int32)
    free, pack_of = np.full(leaves, slots, np.int32), np.empty(lengths.size, np.int32)
    packs = _first_fit_online(lengths, weights, leaves, room, free, pack_of)
    return by_pack(pack_of, packs)


@kernel
def _first_fit_online(
    lengths: Int32,
    weights: Int32,
    leaves: int,
    room: Out[Int32],
    free: Out[Int32],
    pack_of: Out[Int32],
) -> int:
    """Fill pack_of; return the number of packs.

    room: [2 * leaves], a heap. room[leaves + p] is the room of pack p, that of a pack without
    documents too; room[n] is the larger of room[2 * n] and room[2 * n + 1]. free: [leaves], slots
    left of each pack.
    """
    packs = 0
    for i in range(lengths.size):
        length, weight = lengths[i], weights[i] if weights.size else 1
        node = 1
        while True:
            while node < leaves:  # down, to the first pack below with enough room
                node *= 2
                if room[node] < length:
                    node += 1
            if free[node - leaves] >= weight:
                break
            while True:  # up, to the next packs on the right where one has enough room
                while node & 1:
                    node >>= 1
                node += 1
                if room[node] >= length:
                    break
        pack = node - leaves
        packs = larger(packs, pack + 1)
        pack_of[i] = pack
        free[pack] -= weight
        room[node] = 0 if free[pack] == 0 else room[node] - length
        while node > 1:
            node >>= 1
            room[node] = larger(room[2 * node], room[2 * node + 1])
    return packs


def stream_packs(lengths: Int32, counts: Int64, capacity: int, slots: int) -> tuple[Int64, Int64]:
    """Order and offsets of next fit, but later documents that fit exactly close each pack.

    counts: documents of each length, [capacity + 1]. When the next document doesn't fit, the
    remaining room is filled with one unused document of that length, else with two, else with the
    longest that fits, repeatedly. So packs are full, but most documents come in input order and
    only few are chosen by length. All documents before the next one are used, so those that close a
    pack come later in the input.
    """
    starts = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    queue = np.empty(lengths.size, np.int32)
    queue_by_key(lengths, starts[:-1].astype(np.uint32), queue)
    order, offsets = np.empty(queue.size, np.int64), np.empty(queue.size + 1, np.int64)
    used = np.zeros(queue.size, np.bool_)
    words, summary = bitmap(capacity)
    packs = _stream_packs(
        lengths,
        starts,
        queue,
        capacity,
        slots,
        starts[:-1].copy(),
        used,
        words,
        summary,
        order,
        offsets,
    )
    return order, offsets[: packs + 1].copy()


@kernel
def _stream_packs(
    lengths: Int32,
    starts: Int64,
    queue: Int32,
    capacity: int,
    slots: int,
    heads: Out[Int64],
    used: Out[Bools],
    words: Out[UInt64],
    summary: Out[UInt64],
    order: Out[Int64],
    offsets: Out[Int64],
) -> int:
    """Fill order and offsets; see `stream_packs`. Returns the number of packs.

    starts, queue: documents by length, in input order (queue[starts[L]:starts[L + 1]] have length
    L). heads: the first unused one of each length. words, summary: bit capacity - L is set if there
    are unused documents of length L; so the next set bit is the longest that fits.
    """
    documents = lengths.size
    for length in range(1, capacity + 1):
        if starts[length + 1] > starts[length]:
            put_bit(words, summary, capacity - length, True)
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
                put_bit(words, summary, capacity - length, False)
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
                put_bit(words, summary, capacity - length, False)
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


def best_fit_online(lengths: Int32, capacity: int) -> tuple[Int64, Int64]:
    """Order and offsets of best fit in input order.

    Each document goes into the fullest pack with room, else into a new one.
    """
    words, summary = bitmap(capacity)
    newest, older = np.full(capacity + 1, -1, np.int32), np.empty(lengths.size, np.int32)
    pack_of = np.empty(lengths.size, np.int32)
    packs = _best_fit_online(lengths, capacity, words, summary, newest, older, pack_of)
    return by_pack(pack_of, packs)


@kernel
def _best_fit_online(
    lengths: Int32,
    capacity: int,
    words: Out[UInt64],
    summary: Out[UInt64],
    newest: Out[Int32],
    older: Out[Int32],
    pack_of: Out[Int32],
) -> int:
    """Fill pack_of; return the number of packs.

    words, summary: bit r is set if there are packs with room for r more tokens. newest: room ->
    newest pack with that room, or -1; `older` chains the others.
    """
    packs = 0
    for i in range(lengths.size):
        length = lengths[i]
        room = next_set(words, summary, length)
        if room < 0:
            pack, room = packs, capacity
            packs += 1
        else:
            pack = newest[room]
            newest[room] = older[pack]
            if older[pack] < 0:
                put_bit(words, summary, room, False)
        pack_of[i] = pack
        room -= length
        if room > 0:
            if newest[room] < 0:
                put_bit(words, summary, room, True)
            older[pack], newest[room] = newest[room], pack
    return packs


def sort_packs(order: Int64, offsets: Int64) -> None:
    """Sort the documents of each pack into input order, in place."""
    _sort_short_packs(order, offsets, _SHORT)
    sort_long_packs(order, offsets, _SHORT)


@kernel
def _sort_short_packs(order: Out[Int64], offsets: Int64, most: int) -> None:
    """Sort the packs of at most `most` documents."""
    for p in range(offsets.size - 1):
        first, last = offsets[p], offsets[p + 1]
        if last - first <= most:
            for i in range(first + 1, last):
                document, j = order[i], i
                while j > first and order[j - 1] > document:
                    order[j] = order[j - 1]
                    j -= 1
                order[j] = document
