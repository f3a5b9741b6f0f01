"""Other plans of the same documents: another seed gives every document other neighbours.

A planner on counts puts the longest documents together whatever the seed is, because few documents
share a great length. So further ways are tried in turn, all of which keep the utilization:

mixed      stream takes all documents in a seeded random order.
partly     best fit takes documents with half, or a quarter, of the tokens in random order, and then
           the others, longest first.
exchanged  in a plan of the strategy or of `partly`, pairs of documents that have the same length
           together change places, several times over. Every pack keeps its length.

A plan is used if its number of packs differs from that of the strategy by 0.025 % at most, so two
epochs differ by 0.05 %. Strategies that go through documents one by one (ONE_BY_ONE) take them in
another order instead, and have as many packs as that gives: those of greedy vary most. The
benchmark page has the shares of neighbours that remain. Where few documents have a length, as with
a thousand long ones, more of them do.
"""

from dataclasses import replace

import numpy as np

from ..schemas.arrays import Int32, Int64
from ..support.hashing import Purpose, stream
from .kernels.common import shuffle, shuffle_ranges
from .kernels.deal import queue_by_key
from .kernels.stream import best_fit_online, sort_packs
from .strategies import (
    NO_LIMIT,
    ONE_BY_ONE,
    STRATEGIES,
    ItemPlanner,
    Items,
    PackedItems,
    arranged_packs,
)

_TOLERANCE = 0.00025  # of the number of packs
_ROUNDS = 8  # of exchanges; further ones change little


def repacking(strategy: str) -> ItemPlanner:
    """Planner of a strategy that gives documents other neighbours with another seed."""

    def plan(items: Items) -> PackedItems:
        # Strategies that go through documents one by one read them in a seeded order.
        items = replace(items, shuffle_documents=True)
        order, offsets = STRATEGIES[strategy](items)
        if strategy in ONE_BY_ONE:
            return order, offsets
        if strategy != "balanced":  # which is chosen for packs as even as possible
            packs = offsets.size - 1
            mixed = STRATEGIES["stream"](items)
            if _near(mixed, packs):
                return mixed
            for share in (0.5, 0.25):
                if _near(partly := _partly(items, share), packs):
                    order, offsets = partly
                    break
        return arranged_packs(exchanged(order, offsets, items), offsets, items)

    return plan


def _near(plan: PackedItems, packs: int) -> bool:
    return abs(plan[1].size - 1 - packs) <= _TOLERANCE * packs


def _partly(items: Items, share: float) -> PackedItems:
    """Best fit of documents with a share of the tokens in random order, then of the others.

    No packs if segments per pack are limited.
    """
    if items.slots < NO_LIMIT or items.weights is not None:
        return np.zeros(0, np.int64), np.zeros(1, np.int64)
    visit = np.arange(items.lengths.size, dtype=np.int32)
    shuffle(visit, 0, visit.size, stream(items.seed, Purpose.PARTLY_RANDOM))
    tokens = np.cumsum(items.lengths[visit], dtype=np.int64)
    first = int(np.searchsorted(tokens, share * tokens[-1])) if visit.size else 0
    rest = visit[first:]
    visit[first:] = rest[np.argsort(-items.lengths[rest], kind="stable")]
    order, offsets = best_fit_online(items.lengths[visit], items.max_length)
    return visit[order].astype(np.int64), offsets


def exchanged(order: Int64, offsets: Int64, items: Items) -> Int64:
    """The order of a plan in which pairs of documents of equal length changed places.

    Packs keep their lengths, and the numbers of segments that items count as.
    """
    # Pairs are two consecutive places of a pack: [0, 5, 8] -> places 0, 2, 5.
    pairs = np.diff(offsets) // 2
    ends = np.cumsum(pairs)
    starts = np.repeat(offsets[:-1] - 2 * (ends - pairs), pairs) + 2 * np.arange(pairs.sum())
    documents = order.astype(np.int32)
    keys = [stream(items.seed, Purpose.EXCHANGES, number) for number in range(2 * _ROUNDS)]
    for inside, among in zip(keys[::2], keys[1::2], strict=True):
        shuffle_ranges(documents, offsets, inside)
        sums = _sums(items, documents[starts], documents[starts + 1])
        firsts = np.append(0, np.cumsum(np.bincount(sums)))
        place = np.empty(sums.size, np.int32)  # pairs in the order of their sums
        queue_by_key(sums, firsts[:-1].astype(np.uint32), place)
        moved = place.copy()
        shuffle_ranges(moved, firsts, among)
        pair = np.stack([documents[starts[moved]], documents[starts[moved] + 1]])
        documents[starts[place]], documents[starts[place] + 1] = pair
    exchanged = documents.astype(np.int64)
    sort_packs(exchanged, offsets)
    return exchanged


def _sums(items: Items, one: Int32, other: Int32) -> Int32:
    """A number for each pair, equal where pairs have equal lengths, and equal weights."""
    sums = items.lengths[one] + items.lengths[other]
    if items.weights is None:
        return sums
    weights = items.weights[one] + items.weights[other]
    both = sums * (np.int64(weights.max(initial=0)) + 1) + weights
    return np.unique(both, return_inverse=True)[1].astype(np.int32)
