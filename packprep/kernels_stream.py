"""Strategies that take documents as they come."""

import numpy as np

from packprep.kernels import Int32s, Int64s, kernel


@kernel
def next_fit(lengths: Int32s, weights: Int32s, visit: Int32s, capacity: int, slots: int) -> tuple[Int64s, Int64s]:
    """Order and offsets of next fit: a new pack whenever the next document doesn't fit. One pass, nothing looked up.

    weights, visit: [documents], or empty for weights of 1 and input order. Inside a pack documents rise.
    """
    documents = lengths.size
    order, offsets = np.empty(documents, np.int64), np.empty(documents + 1, np.int64)
    packs, room, free = 0, 0, 0
    for at in range(documents):
        document = np.int64(visit[at]) if visit.size else at
        weight = weights[document] if weights.size else 1
        if lengths[document] > room or weight > free:
            offsets[packs] = at
            if visit.size and packs:
                order[offsets[packs - 1] : at].sort()
            packs += 1
            room, free = capacity, slots
        room -= lengths[document]
        free -= weight
        order[at] = document
    offsets[packs] = documents
    if visit.size and packs:
        order[offsets[packs - 1] :].sort()
    return order, offsets[: packs + 1].copy()
