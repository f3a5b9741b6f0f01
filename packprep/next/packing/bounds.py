"""Lower bounds on the number of packs of any plan, proven from the lengths alone.

A plan with as many packs as the bound is optimal. Cost: a few milliseconds for thousands of
distinct lengths.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..schemas.arrays import Int32, Int64

_FAMILIES = 20  # dual feasible functions tried; the first few nearly always decide
_CELLS = 16_000  # kinds times functions that are tried at once; their arrays fit the caches


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


def feasible_bound(kinds: Int32, counts: Int64, capacity: int, families: int) -> int:
    """Best lower bound from dual feasible functions f: in a pack, the f of documents sum to <= 1.

    kinds: distinct lengths, descending. counts: documents of each. f_0 is length / capacity; f_k
    maps lengths between i / (k + 1) and (i + 1) / (k + 1) of the capacity to i / k. Each is tried
    with every threshold: documents shorter than the threshold count 0, those that leave no room for
    it count 1. With families = 1 this is L2.
    """
    documents, lengths = int(counts.sum()), kinds.astype(np.int64)
    # Thresholds from the shortest kind up to half of the capacity, and the kinds that leave no
    # room for each: the first `full` ones.
    thresholds = lengths[::-1][: int(np.count_nonzero(2 * lengths <= capacity))]
    full = lengths.size - np.searchsorted(lengths[::-1], capacity - thresholds, side="right")
    best = 0
    most = (1 << 62) // max(documents, 1) // max(capacity, 1)  # so that no sum overflows
    every = np.arange(min(families, most) + 1)
    rows = max(1, _CELLS // max(lengths.size, 1))
    for k in (every[first : first + rows, None] for first in range(0, every.size, rows)):
        units = capacity * np.maximum(k, 1)
        parts = lengths * (k + 1)
        # f in 1 / unit. On the border between two parts, f_k is length / capacity.
        floors = parts // capacity * capacity
        on_border = (k == 0) | (parts == floors)
        shares = np.where(on_border, lengths * np.maximum(k, 1), floors)
        sums = shares * counts
        totals = sums.sum(1, keepdims=True)
        raised = _from_zero((units - shares) * counts)[:, full]
        dropped = _from_zero(sums[:, ::-1])[:, : thresholds.size + 1]
        last = raised[:, -1:] if thresholds.size else np.zeros_like(totals)
        most_of_row = (totals + np.concatenate([raised, last], 1) - dropped).max(1, keepdims=True)
        best = max(best, int((-(-most_of_row // units)).max()))
    return best


def _from_zero(values: Int64) -> Int64:
    """Sums of the first 0, 1, 2, ... values of each row."""
    sums = np.zeros((values.shape[0], values.shape[1] + 1), np.int64)
    np.cumsum(values, axis=1, out=sums[:, 1:])
    return sums


def over_a_third(kinds: Int32, counts: Int64, capacity: int) -> int:
    """Exact number of packs for documents longer than capacity / 3; no pack holds three of them.

    Documents over capacity / 2 need a pack each. Longest first, each is combined with one of the
    others if any fits: any that fits now also fits into all later packs. The rest goes in pairs.
    """
    lengths = kinds.astype(np.int64)
    long, mid = 2 * lengths > capacity, 3 * lengths > capacity
    large, small = lengths[long], lengths[mid & ~long]
    alone, others = counts[long], _from_zero(counts[mid & ~long][None, ::-1])[0]
    # Others that fit beside each kind of long documents: those that are left of the kinds before,
    # and the new ones. An excess of long documents is not carried over.
    fit = others[np.searchsorted(small[::-1], capacity - large, side="right")]
    balance = np.append(0, fit - np.cumsum(alone))
    left = int(balance[-1] - min(0, balance.min()))
    waiting = left + int(others[-1] - (fit[-1] if fit.size else 0))
    return int(alone.sum()) + (waiting + 1) // 2
