"""Other plans of the same documents: another seed gives every document other neighbours.

A planner on counts puts the longest documents together whatever the seed is, because few documents
share a great length. So two further ways are tried, and both keep the utilization:

mixed      stream takes documents in a seeded random order. Its plan is used if it has as many packs
           as that of the strategy, or up to 0.05 % more.
exchanged  else pairs of documents of the strategy's plan that have the same length together change
           places, several times over. Every pack keeps its length.

The benchmark page has the shares of neighbours that remain. Where few documents have a length, as
with a thousand long ones, there is less choice and more of them remain.
"""

from dataclasses import replace

import numpy as np

from packprep.packing.kernels.common import shuffle_ranges
from packprep.packing.kernels.deal import queue_by_key
from packprep.packing.kernels.stream import sort_packs
from packprep.packing.strategies import (
    STRATEGIES,
    ItemPlanner,
    Items,
    PackedItems,
    arranged_packs,
)
from packprep.support.arrays import Int32, Int64
from packprep.support.hashing import Purpose, stream

_MORE_PACKS = 0.0005
_ROUNDS = 8  # of exchanges; further ones change little


def repacking(strategy: str) -> ItemPlanner:
    """Planner of a strategy that gives documents other neighbours with another seed."""

    def plan(items: Items) -> PackedItems:
        # Strategies that go through documents one by one read them in a seeded order.
        items = replace(items, shuffle_documents=True)
        if strategy in ("stream", "greedy"):
            return STRATEGIES[strategy](items)
        order, offsets = STRATEGIES[strategy](items)
        if strategy != "balanced":  # which is chosen for packs as even as possible
            mixed = STRATEGIES["stream"](items)
            packs, of_mixed = offsets.size - 1, mixed[1].size - 1
            if packs <= of_mixed <= packs * (1 + _MORE_PACKS):
                return mixed
        order = exchanged(order, offsets, items)
        return (
            (order, offsets) if items.order == "shuffle" else arranged_packs(order, offsets, items)
        )

    return plan


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
