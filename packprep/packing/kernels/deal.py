"""From counts back to documents.

Count lengths, queue documents by length, deal them to the planned packs.

All of this is memory traffic: sequential reads and writes wherever possible, tables small enough
for the fast caches. Indices are unsigned where it counts, because numba checks signed ones for
negative values.
"""

import numpy as np

from packprep.packing.kernels.common import kernel, set_bits, shuffle, smaller_of_16
from packprep.support.arrays import Int32, Int64, UInt32

_U0, _U1, _U4, _LANES = np.uint64(0), np.uint64(1), np.uint64(4), np.uint64(16)
_NEXT = np.uint32(1)
_SORT_ABOVE = np.uint64(128)  # documents; up to here comparing all pairs 16 at a time beats a sort
_HIGHEST = np.int32(2**31 - 1)


@kernel
def count_keys(keys: Int32, counts: Int64) -> int:
    """Adds to counts[k] how often key k occurs.

    Returns the first index whose key is not in 1..counts.size-1, or -1.
    """
    # Four tables: neighbouring equal keys would otherwise wait for each other's store.
    tables = np.zeros((4, counts.size), np.int32)
    top = np.uint32(counts.size - 1)
    quads = np.uint64(keys.size >> 2)
    done = 0
    for quad in range(quads):
        i = _U4 * quad
        a, b, c, d = keys[i], keys[i + _U1], keys[i + np.uint64(2)], keys[i + np.uint64(3)]
        # As an unsigned number, key - 1 is also too large for keys below 1.
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
    """Fill queue [documents] with document numbers sorted by key, a counting sort.

    Equal keys stay in input order.

    cursors: [keys], where the documents of each key begin; on return, where they end.
    """
    for i in range(np.uint64(keys.size)):
        k = np.uint64(keys[i])
        at = cursors[k]
        queue[np.uint64(at)] = i
        cursors[k] = at + _NEXT


@kernel
def shuffle_queues(queue: Int32, starts: Int64, key: np.uint64) -> None:
    """Shuffles queue[starts[k]:starts[k+1]] in place for every k."""
    for k in range(starts.size - 1):
        if starts[k + 1] - starts[k] > 1:
            shuffle(queue, starts[k], starts[k + 1], key)


@kernel
def repeat(values: Int32, times: Int64) -> Int32:
    """values[0] times[0] times, then values[1] times[1] times, ..."""
    result = np.empty(times.sum(), np.int32)
    at = 0
    for i in range(values.size):
        result[at : at + times[i]] = values[i]
        at += times[i]
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
    """Writes order [documents] and offsets [packs + 1].

    Pack p takes the documents that pattern packs[p] asks for.

    kinds: one entry per document of a pattern, kinds[starts[pattern]:starts[pattern + 1]]. cursors:
    [kinds], the next document of each kind in the queue. Inside a pack documents rise: the place of
    one is the number of smaller ones.
    """
    largest = 0
    for i in range(starts.size - 1):
        largest = max(largest, starts[i + 1] - starts[i])
    pack = np.empty(largest + 32, np.int32)
    at = _U0
    offsets[0] = 0
    last = np.uint64(max(0, packs.size - 1))
    # The next pack's size is read one pack ahead: the processor guesses the end of the loops below
    # by it.
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
                order[at + set_bits(smaller_of_16(pack, _U0, document) & mask)] = document
        elif size <= _SORT_ABOVE:
            padded = ((size + _LANES - _U1) >> _U4) << _U4
            for i in range(size, padded):
                pack[i] = _HIGHEST
            for i in range(size):
                document = pack[i]
                place = at
                for block in range(_U0, padded, _LANES):
                    place += set_bits(smaller_of_16(pack, block, document))
                order[place] = document
        else:
            pack[:size].sort()
            for i in range(size):
                order[at + i] = pack[i]
        at += size
        offsets[p + _U1] = at


@kernel
def plan_of_documents(order: Int64, offsets: Int64, starts: Int64) -> tuple[Int64, Int64]:
    """The plan of documents for a plan of atoms.

    Atom a is the documents starts[a]..starts[a + 1] - 1.
    """
    documents, ends = np.empty(starts[-1], np.int64), np.zeros(offsets.size, np.int64)
    at = 0
    for p in range(offsets.size - 1):
        for i in range(offsets[p], offsets[p + 1]):
            for document in range(starts[order[i]], starts[order[i] + 1]):
                documents[at] = document
                at += 1
        ends[p + 1] = at
    return documents, ends
