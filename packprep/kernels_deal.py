"""From counts back to documents: count lengths, queue documents by length, deal them to the planned packs.

All of this is memory traffic: sequential reads and writes wherever possible. Inside a pack documents are put into input
order while the pack is still in the cache.
"""

import numpy as np

from packprep.kernels import Int32s, Int64s, kernel, shuffle


@kernel
def count_keys(keys: Int32s, counts: Int64s) -> int:
    """Adds to counts[k] how often key k occurs; returns the first index whose key is not in 1..counts.size-1, or -1."""
    top = np.uint32(counts.size - 1)
    # Two tables: neighbouring equal keys would otherwise wait for each other's store.
    odd = np.zeros(counts.size, np.int64)
    pairs = keys.size >> 1
    for i in range(pairs):
        a, b = keys[2 * i], keys[2 * i + 1]
        if np.uint32(a - 1) >= top:
            return 2 * i
        if np.uint32(b - 1) >= top:
            return 2 * i + 1
        counts[a] += 1
        odd[b] += 1
    if keys.size & 1:
        a = keys[keys.size - 1]
        if np.uint32(a - 1) >= top:
            return keys.size - 1
        counts[a] += 1
    for k in range(counts.size):
        counts[k] += odd[k]
    return -1


@kernel
def queue_by_key(keys: Int32s, ends: Int64s, queue: Int32s) -> None:
    """Fills queue [documents] with document numbers sorted by key, equal keys in input order (a counting sort).

    ends: [keys], where the documents of each key begin; on return, where they end.
    """
    for i in range(keys.size):
        k = keys[i]
        queue[ends[k]] = i
        ends[k] += 1


@kernel
def shuffle_queues(queue: Int32s, starts: Int64s, seed: np.uint64) -> None:
    """Shuffles queue[starts[k]:starts[k+1]] in place for every k."""
    for k in range(starts.size - 1):
        shuffle(queue, starts[k], starts[k + 1], seed)


@kernel
def sort_small(values: Int64s, start: int, stop: int) -> None:
    """Sorts values[start:stop] in place, rising."""
    if stop - start > 24:
        values[start:stop].sort()
        return
    for i in range(start + 1, stop):
        value = values[i]
        j = i
        while j > start and values[j - 1] > value:
            values[j] = values[j - 1]
            j -= 1
        values[j] = value


@kernel
def deal(
    sequence: Int32s,
    starts: Int64s,
    kinds: Int32s,
    copies: Int32s,
    cursors: Int64s,
    queue: Int32s,
    order: Int64s,
    offsets: Int64s,
) -> None:
    """Writes order [documents] and offsets [packs + 1]: pack p takes the documents pattern sequence[p] asks for.

    cursors: [kinds], the next document of each kind in the queue. Inside a pack documents rise.
    """
    at = 0
    offsets[0] = 0
    for p in range(sequence.size):
        first = at
        pattern = sequence[p]
        for run in range(starts[pattern], starts[pattern + 1]):
            cursor = cursors[kinds[run]]
            for i in range(copies[run]):
                order[at] = queue[cursor + i]
                at += 1
            cursors[kinds[run]] = cursor + copies[run]
        sort_small(order, first, at)
        offsets[p + 1] = at


@kernel
def documents_of(order: Int64s, offsets: Int64s, starts: Int64s) -> tuple[Int64s, Int64s]:
    """The plan of documents for a plan of atoms: atom a is the documents starts[a]..starts[a + 1] - 1."""
    documents, ends = np.empty(starts[-1], np.int64), np.zeros(offsets.size, np.int64)
    at = 0
    for p in range(offsets.size - 1):
        for i in range(offsets[p], offsets[p + 1]):
            for document in range(starts[order[i]], starts[order[i] + 1]):
                documents[at] = document
                at += 1
        ends[p + 1] = at
    return documents, ends
