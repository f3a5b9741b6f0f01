"""Lower bounds on the number of packs of any plan, proven from the lengths alone.

A plan with as many packs as the bound is optimal. Cost: a few milliseconds for thousands of
distinct lengths.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.packing.kernels.common import kernel
from packprep.support.arrays import Int32, Int64

_FAMILIES = 20  # dual feasible functions tried; the first few nearly always decide


def lower_bound(
    lengths: Int32,
    max_length: int,
    max_segments_per_pack: int | None = None,
    groups: NDArray[np.integer[Any]] | None = None,
    atoms: NDArray[np.integer[Any]] | None = None,
) -> int:
    """The largest number of packs that is proven necessary; arguments as of `pack_lengths`.

    The maximum of L1 = ceil(tokens / max_length), Martello and Toth's L2 (1990), Fekete and
    Schepers' dual feasible functions (2001), the exact count for documents over max_length / 3, and
    ceil(documents / max_segments_per_pack); summed over groups.
    """
    if not lengths.size:
        return 0
    documents = np.ones(lengths.size, np.int64)
    if atoms is not None:
        first = np.flatnonzero(np.diff(atoms, prepend=atoms[0] - 1))
        lengths, documents = (
            np.add.reduceat(lengths, first).astype(np.int32),
            np.diff(np.append(first, atoms.size)),
        )
        groups = None if groups is None else groups[first]
    if groups is None:
        kinds, counts = (
            np.unique(lengths, return_counts=True)
            if max_length > 8 * lengths.size
            else _count(lengths)
        )
        return bound_of_counts(
            kinds[::-1].copy(),
            counts[::-1].copy(),
            max_length,
            documents.sum(),
            max_segments_per_pack,
        )
    by_group = np.lexsort((-lengths, groups))
    ends = np.append(np.flatnonzero(np.diff(groups[by_group])) + 1, lengths.size)
    total, start = 0, 0
    for end in ends.tolist():
        members = by_group[start:end]
        kinds, counts = _runs(lengths[members])
        total += bound_of_counts(
            kinds, counts, max_length, documents[members].sum(), max_segments_per_pack
        )
        start = end
    return total


def _count(lengths: Int32) -> tuple[Int32, Int64]:
    counts = np.bincount(lengths)
    kinds = np.flatnonzero(counts)
    return kinds.astype(np.int32), counts[kinds]


def _runs(lengths: Int32) -> tuple[Int32, Int64]:
    """Distinct values of a sorted array, and how often each occurs."""
    first = np.flatnonzero(np.diff(lengths, prepend=-1))
    return lengths[first], np.diff(np.append(first, lengths.size))


def bound_of_counts(
    kinds: Int32, counts: Int64, capacity: int, documents: int, slots: int | None
) -> int:
    """Lower bound for counts[i] items of length kinds[i]; together `documents` documents.

    kinds: descending, equal ones allowed.
    """
    best = max(
        feasible_bound(kinds, counts, capacity, _FAMILIES), over_a_third(kinds, counts, capacity)
    )
    return max(int(best), -(-int(documents) // slots) if slots else 0)


@kernel
def feasible_bound(kinds: Int32, counts: Int64, capacity: int, families: int) -> int:
    """Best lower bound from dual feasible functions f: in a pack, the f of documents sum to <= 1.

    kinds: distinct lengths, descending. counts: documents of each. f_0 is length / capacity; f_k
    maps lengths between i / (k + 1) and (i + 1) / (k + 1) of the capacity to i / k. Each is tried
    with every threshold: documents shorter than the threshold count 0, those that leave no room for
    it count 1. With families = 1 this is L2.
    """
    best = 0
    documents = counts.sum()
    for k in range(families + 1):
        unit = capacity * max(k, 1)
        if unit > (1 << 62) // max(documents, 1):
            break
        share = np.empty(kinds.size, np.int64)  # f in 1 / unit
        for i in range(kinds.size):
            parts = np.int64(kinds[i]) * (k + 1)
            # On the border between two parts, f_k is length / capacity.
            on_border = k == 0 or parts % capacity == 0
            share[i] = np.int64(kinds[i]) * max(k, 1) if on_border else parts // capacity * capacity
        total = (share * counts).sum()
        best = max(best, -(-total // unit))
        # Raise the threshold kind by kind: first count 1 for kinds that leave no room for it, then
        # count 0 for it.
        full = 0
        for i in range(kinds.size - 1, -1, -1):
            if 2 * np.int64(kinds[i]) > capacity:
                break
            while np.int64(kinds[full]) + kinds[i] > capacity:
                total += (unit - share[full]) * counts[full]
                full += 1
            best = max(best, -(-total // unit))
            total -= share[i] * counts[i]
        best = max(best, -(-total // unit))
    return best


@kernel
def over_a_third(kinds: Int32, counts: Int64, capacity: int) -> int:
    """Exact number of packs for documents longer than capacity / 3; no pack holds three of them.

    Documents over capacity / 2 need a pack each. Longest first, each is combined with one of the
    others if any fits: any that fits now also fits into all later packs. The rest goes in pairs.
    """
    packs, fitting = 0, 0
    mids = kinds.size
    while mids > 0 and 3 * np.int64(kinds[mids - 1]) <= capacity:
        mids -= 1
    shortest = mids
    for i in range(mids):
        if 2 * np.int64(kinds[i]) <= capacity:
            break
        packs += counts[i]
        while shortest > i and np.int64(kinds[shortest - 1]) + kinds[i] <= capacity:
            shortest -= 1
            fitting += counts[shortest]
        fitting -= min(fitting, counts[i])
    # Documents that fit some pack but are left over, and documents that fit none.
    waiting = fitting
    for i in range(shortest):
        if 2 * np.int64(kinds[i]) <= capacity:
            waiting += counts[i]
    return packs + (waiting + 1) // 2
