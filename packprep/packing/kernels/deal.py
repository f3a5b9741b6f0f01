"""From counts back to documents: count lengths, queue documents by length, deal them to packs.

Memory traffic decides the speed: reads and writes are sequential where possible, and tables fit the
fast caches. Indices are unsigned in hot loops, because numba checks signed ones for negative
values.
"""

import numpy as np

from packprep.packing.kernels.common import kernel, set_bits, shuffle, smaller_of_16
from packprep.support.arrays import Int32, Int64, UInt32

_U0, _U1, _U4, _LANES = np.uint64(0), np.uint64(1), np.uint64(4), np.uint64(16)
_NEXT = np.uint32(1)
_SORT_ABOVE = np.uint64(128)  # documents; up to this many, comparing all pairs beats a sort
_HIGHEST = np.int32(2**31 - 1)


@kernel
def count_keys(keys: Int32, counts: Int64) -> int:
    """Add to counts[k] how often key k occurs.

    Returns the index of the first key that is not in 1..counts.size-1, or -1.
    """
    # Four tables: else consecutive equal keys would wait for each other's store.
    tables = np.zeros((4, counts.size), np.int32)
    top = np.uint32(counts.size - 1)
    quads = np.uint64(keys.size >> 2)
    done = 0
    for quad in range(quads):
        i = _U4 * quad
        a, b, c, d = keys[i], keys[i + _U1], keys[i + np.uint64(2)], keys[i + np.uint64(3)]
        # For keys below 1, key - 1 as an unsigned number is too large as well.
        wrong = (np.uint32(a - 1) >= top) | (np.uint32(b - 1) >= top)
        if wrong | (np.uint32(c - 1) >= top) | (np.uint32(d - 1) >= top):
            break
        done += 4
        tables[0, np.uint64(a)] += 1
        tables[1, np.uint64(b)] += 1
        tables[2, np.uint64(c)] += 1
        tables[3, np.uint64(d)] += 1
    for rest in range(done, keys.size):
        if np.uint32(keys[rest] - 1) >= top:
            return rest
        tables[0, keys[rest]] += 1
    for k in range(counts.size):
        counts[k] += tables[0, k] + np.int64(tables[1, k]) + tables[2, k] + tables[3, k]
    return -1


@kernel
def queue_by_key(keys: Int32, cursors: UInt32, queue: Int32) -> None:
    """Fill queue [documents] with document numbers sorted by key; equal keys stay in input order.

    A counting sort. cursors: [keys], where the documents of each key begin; on return, where they
    end.
    """
    for i in range(np.uint64(keys.size)):
        k = np.uint64(keys[i])
        place = cursors[k]
        queue[np.uint64(place)] = i
        cursors[k] = place + _NEXT


@kernel
def shuffle_queues(queue: Int32, starts: Int64, key: np.uint64) -> None:
    """Shuffle queue[starts[k]:starts[k+1]] in place for every k."""
    for k in range(starts.size - 1):
        if starts[k + 1] - starts[k] > 1:
            shuffle(queue, starts[k], starts[k + 1], key)


@kernel
def repeat(values: Int32, times: Int64) -> Int32:
    """Repeat values[0] times[0] times, then values[1] times[1] times, ..."""
    result = np.empty(times.sum(), np.int32)
    start = 0
    for i in range(values.size):
        result[start : start + times[i]] = values[i]
        start += times[i]
    return result


@kernel
def deal(
    packs: Int32,
    starts: Int64,
    kinds: Int32,
    cursors: UInt32,
    queue: Int32,
    order: Int64,
    offsets: Int64,
) -> None:
    """Write order [documents] and offsets [packs + 1]: pack p takes documents of pattern packs[p].

    kinds: one entry per document of a pattern, kinds[starts[pattern]:starts[pattern + 1]]. cursors:
    [kinds], the next document of each kind in the queue. Documents ascend inside a pack: the place
    of a document is the number of smaller ones.
    """
    largest = 0
    for i in range(starts.size - 1):
        largest = max(largest, starts[i + 1] - starts[i])
    pack = np.empty(largest + 32, np.int32)
    first = _U0
    offsets[0] = 0
    last = np.uint64(max(0, packs.size - 1))
    # The size of a pack is read one pack ahead, so the processor predicts the end of the loops
    # below.
    next_start, next_size = _U0, _U0
    if packs.size:
        next_start = np.uint64(starts[packs[0]])
        next_size = np.uint64(starts[packs[0] + 1]) - next_start
    for p in range(np.uint64(packs.size)):
        start, size = next_start, next_size
        pattern = np.uint64(packs[min(p + _U1, last)])
        next_start = np.uint64(starts[pattern])
        next_size = np.uint64(starts[pattern + _U1]) - next_start
        for i in range(size):
            k = np.uint64(kinds[start + i])
            cursor = cursors[k]
            cursors[k] = cursor + _NEXT
            pack[i] = queue[np.uint64(cursor)]
        if size <= _LANES:
            mask = (_U1 << size) - _U1
            for i in range(size):
                document = pack[i]
                order[first + set_bits(smaller_of_16(pack, _U0, document) & mask)] = document
        elif size <= _SORT_ABOVE:
            padded = ((size + _LANES - _U1) >> _U4) << _U4
            for i in range(size, padded):
                pack[i] = _HIGHEST
            for i in range(size):
                document = pack[i]
                place = first
                for block in range(_U0, padded, _LANES):
                    place += set_bits(smaller_of_16(pack, block, document))
                order[place] = document
        else:
            pack[:size].sort()
            for i in range(size):
                order[first + i] = pack[i]
        first += size
        offsets[p + _U1] = first


@kernel
def plan_of_documents(order: Int64, offsets: Int64, starts: Int64) -> tuple[Int64, Int64]:
    """Turn a plan of atoms into a plan of documents.

    Atom a has the documents starts[a]..starts[a + 1] - 1.
    """
    documents, ends = np.empty(starts[-1], np.int64), np.zeros(offsets.size, np.int64)
    placed = 0
    for p in range(offsets.size - 1):
        for i in range(offsets[p], offsets[p + 1]):
            for document in range(starts[order[i]], starts[order[i] + 1]):
                documents[placed] = document
                placed += 1
        ends[p + 1] = placed
    return documents, ends
