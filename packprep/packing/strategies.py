"""The strategies: each turns items into packs. An item is a document, or an atom of several.

Planners on counts decide patterns of packs from the number of items of each length, then deal the
items to the packs. Planners on items go through them one by one. A new strategy is one function,
one line in STRATEGIES, and its name in config/grammar.py, which help and checks read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..schemas.arrays import Int32, Int64
from ..schemas.cost import Cost
from ..support.errors import ConfigError
from ..support.hashing import Purpose, stream
from .kernels.balanced import even_out, longest_first
from .kernels.common import shuffle, shuffle_ranges
from .kernels.deal import by_first_document, by_pack, deal, queue_by_key, sequence
from .kernels.fit import Patterns, best_fit_patterns, first_fit_patterns
from .kernels.optimal import perfect_fill_patterns
from .kernels.spread import emptiest_first_patterns
from .kernels.stream import (
    best_fit_online,
    first_fit_online,
    next_fit,
    sort_packs,
    stream_packs,
)
from .plan import PackPlan, bound_of_counts

NO_LIMIT = 2**31 - 1  # segments per pack, if there is no limit
_BISECTIONS = 12  # of the number of packs, if segments per pack are limited
_EXCHANGES = 20_000_000  # balanced: pairs of packs to compare; some tenths of a second
# balanced: with more packs it works on counts, because a hundred exchanges would not show
_EVENED = 200_000
# optimal: steps of one search, and of all searches together (about a fifth of a second)
_STEPS, _ALL_STEPS = 50_000, 20_000_000


@dataclass(frozen=True)
class Items:
    """Input of a planner: everything that decides the plan."""

    lengths: Int32
    counts: Int64  # items of each length, [max_length + 1]
    # segments of each item; None if segments per pack are unlimited or every item has one
    weights: Int32 | None
    max_length: int
    slots: int  # maximum segments in a pack
    seed: int
    order: str
    shuffle_documents: bool
    num_packs: int | None
    ranks: int
    cost: Cost


PackedItems = tuple[Int64, Int64]
"""order [items] and offsets [packs + 1], see PackPlan."""
ItemPlanner = Callable[[Items], PackedItems]
Kinds = tuple[Int32, Int32, Int64]
"""length, weight and count of each kind of interchangeable items, longest first."""


def _by_counts(plan_kinds: Callable[[Kinds, Items], Patterns], items: Items) -> PackedItems:
    """Plan kinds of items, then deal the items to the packs.

    Items of one kind have the same length and the same weight.
    """
    keys, kinds, starts = _kinds(items)
    patterns = plan_kinds(kinds, items)
    if items.slots < NO_LIMIT and patterns[3].sum() > _bound(kinds, items):
        # A stream sees long and short documents mixed like the input, so packs rarely run out of
        # slots.
        streamed = STRATEGIES["stream"](replace(items, shuffle_documents=items.order != "input"))
        if streamed[1].size <= patterns[3].sum():
            return streamed
    return _dealt(patterns, kinds[0], keys, starts, items)


def _dealt(
    patterns: Patterns, lengths: Int32, keys: Int32, starts: Int64, items: Items
) -> PackedItems:
    """Deal the items to packs with these patterns, in the order `items.order`.

    lengths: of the kinds. keys: of the items. starts: where the items of each key begin in a queue
    sorted by key.
    """
    run_starts, kinds, copies, times = patterns
    longest, cost = np.zeros(0, np.int32), np.zeros(0)
    if items.order == "length" and times.size:
        longest = np.maximum.reduceat(lengths[kinds], run_starts[:-1])
    if items.order == "balanced" and times.size:
        cost = np.add.reduceat(copies * items.cost.flops(lengths[kinds]), run_starts[:-1])
    packs = sequence(items.order, times, longest, cost, items.seed, items.ranks)
    queue = np.empty(keys.size, np.int32)
    queue_by_key(keys, starts[:-1].astype(np.uint32), queue)
    if items.order != "input":
        shuffle_ranges(queue, starts, stream(items.seed, Purpose.EQUAL_LENGTHS))
    sizes = (
        np.add.reduceat(copies, run_starts[:-1], dtype=np.int64) if times.size else run_starts[:0]
    )
    pattern_starts = np.concatenate([run_starts[:1], np.cumsum(sizes)])
    cursors = (starts[lengths] if items.weights is None else starts[:-1]).astype(np.uint32)
    order, offsets = deal(packs, pattern_starts, np.repeat(kinds, copies), cursors, queue)
    return by_first_document(order, offsets) if items.order == "input" else (order, offsets)


def _kinds(items: Items) -> tuple[Int32, Kinds, Int64]:
    """Key of each item; the kinds, longest first; where each key begins in a sorted queue."""
    if items.weights is not None:
        return _weighted_kinds(items.lengths, items.weights)
    lengths = np.flatnonzero(items.counts)[::-1].astype(np.int32)
    starts = np.append(0, np.cumsum(items.counts))
    return items.lengths, (lengths, np.ones_like(lengths), items.counts[lengths]), starts


def _weighted_kinds(lengths: Int32, weights: Int32) -> tuple[Int32, Kinds, Int64]:
    # Key 0 is the longest and heaviest, so keys and kinds have the same numbers.
    scale = int(weights.max()) + 1
    size = lengths * np.int64(scale) + weights
    pairs, keys, counts = np.unique(-size, return_inverse=True, return_counts=True)
    starts = np.concatenate([[0], np.cumsum(counts)])
    kinds = (-pairs // scale).astype(np.int32), (-pairs % scale).astype(np.int32), counts
    return keys.astype(np.int32), kinds, starts


def _best_fit(kinds: Kinds, items: Items) -> Patterns:
    best = best_fit_patterns(*kinds, items.max_length, items.slots)
    return best if items.slots == NO_LIMIT else _within_slots(best, kinds, items)


def _first_fit(kinds: Kinds, items: Items) -> Patterns:
    best = first_fit_patterns(*kinds, items.max_length, items.slots)
    return best if items.slots == NO_LIMIT else _within_slots(best, kinds, items)


def _optimal(kinds: Kinds, items: Items) -> Patterns:
    best = _best_fit(kinds, items)
    if not kinds[0].size or items.weights is not None or best[3].sum() == _bound(kinds, items):
        return best
    lengths, _, counts = kinds
    return _fewest(
        best,
        perfect_fill_patterns(lengths, counts, items.max_length, items.slots, _STEPS, _ALL_STEPS),
    )


def _within_slots(best: Patterns, kinds: Kinds, items: Items) -> Patterns:
    """Return `best`, or even packs if these are fewer, because slots run out before room.

    Bisects between the bound and `best` for the smallest number of even packs that is enough.
    """
    if not kinds[0].size or items.weights is not None:
        return best
    lengths, _, counts = kinds
    low, high = _bound(kinds, items), int(best[3].sum())
    for _ in range(_BISECTIONS):
        if low >= high:
            break
        begun = low + (high - low) // 8  # usually nearer to the bound
        even = emptiest_first_patterns(lengths, counts, items.max_length, items.slots, begun)
        best = _fewest(best, even)
        if even[3].sum() > begun:
            low = begun + 1
        else:
            high = begun
        high = min(high, int(best[3].sum()))
    return best


def _bound(kinds: Kinds, items: Items) -> int:
    return bound_of_counts(
        kinds[0], kinds[2], items.max_length, int((kinds[1] * kinds[2]).sum()), items.slots
    )


def _fewest(first: Patterns, second: Patterns) -> Patterns:
    """Return the patterns with fewer packs; `first` on a tie."""
    return second if second[3].sum() < first[3].sum() else first


def _by_items(plan_items: ItemPlanner, items: Items) -> PackedItems:
    """Plan item by item, and order the packs afterwards."""
    if not items.shuffle_documents:
        return arranged_packs(*plan_items(items), items)
    visit = np.arange(items.lengths.size, dtype=np.int32)
    shuffle(visit, 0, visit.size, stream(items.seed, Purpose.DOCUMENT_ORDER))
    weights = None if items.weights is None else items.weights[visit]
    order, offsets = plan_items(replace(items, lengths=items.lengths[visit], weights=weights))
    order = visit[order].astype(np.int64)
    sort_packs(order, offsets)
    return arranged_packs(order, offsets, items)


def _greedy(items: Items) -> PackedItems:
    return next_fit(items.lengths, _or_none(items.weights), items.max_length, items.slots)


def _first_fit_input(items: Items) -> PackedItems:
    return first_fit_online(items.lengths, _or_none(items.weights), items.max_length, items.slots)


def _stream(items: Items) -> PackedItems:
    if items.weights is not None:
        return _greedy(items)  # stream_packs looks up documents by length only
    closed = stream_packs(items.lengths, items.counts, items.max_length, items.slots)
    packs = closed[1].size - 1
    # If short documents are too rare to close every pack, the last packs stay half empty.
    if items.slots < NO_LIMIT or packs <= 1.001 * _bound(_kinds(items)[1], items):
        return closed
    online = best_fit_online(items.lengths, items.max_length)
    return online if online[1].size < closed[1].size else closed


def _balanced(items: Items) -> PackedItems:
    """Make packs as even as possible: num_packs of them, or the smallest number that works."""
    documents = items.lengths.size
    if not documents:
        return np.zeros(0, np.int64), np.zeros(1, np.int64)
    needed = _bound(_kinds(items)[1], items)
    packs = items.num_packs or needed
    if packs > documents:
        raise ConfigError(
            f"strategy balanced cannot make {packs:,} packs: {documents:,} documents fill at most "
            f"{documents:,}; choose a smaller number"
        )
    if packs < needed:
        raise ConfigError(
            f"strategy balanced cannot make {packs:,} packs: these documents need at least "
            f"{needed:,}; choose a larger number"
        )
    # Exchanges often fix an even plan that exceeds max_length somewhere; if not, more packs may.
    order, offsets = STRATEGIES["optimal"](replace(items, order="shuffle", num_packs=None))
    fallback = offsets.size - 1
    tries = sorted(
        {packs} if items.num_packs else {packs + (fallback - packs) * i // 4 for i in range(5)}
    )
    if packs > _EVENED and items.weights is None:
        if (even := _even_by_counts(items, tries)) is not None:
            return even
        if not items.num_packs:
            return order, offsets
        tries = []
    longest = np.argsort(-items.lengths, kind="stable") if tries else np.empty(0, np.int64)
    for count in tries:
        pack_of = longest_first(items.lengths, _or_none(items.weights), longest, count, items.slots)
        if pack_of.size:
            _even_out(items, pack_of, count)
            if np.bincount(pack_of, items.lengths).max() <= items.max_length:
                return by_pack(pack_of, count)
    if items.num_packs and items.num_packs < fallback:
        raise ConfigError(
            f"strategy balanced cannot make {packs:,} packs: no plan with fewer than {fallback:,} "
            "was found; choose a larger number"
        )
    # Even out the packs of the optimal plan; each missing pack takes a document from a pack with
    # several.
    several = np.ones(documents, np.bool_)
    several[offsets[:-1]] = False
    moved = order[several][: packs - fallback] if items.num_packs else order[:0]
    count, pack_of = fallback + moved.size, np.empty(documents, np.int32)
    pack_of[order] = np.repeat(np.arange(fallback, dtype=np.int32), np.diff(offsets))
    pack_of[moved] = np.arange(fallback, count, dtype=np.int32)
    _even_out(items, pack_of, count)
    return by_pack(pack_of, count)


def _even_by_counts(items: Items, tries: Sequence[int]) -> PackedItems | None:
    """Plan with the first of these numbers of packs that is enough; None if none is.

    The rule of longest_first, but on counts of items: milliseconds for any number of items.
    """
    keys, (lengths, _, counts), starts = _kinds(items)
    for packs in tries:
        even = emptiest_first_patterns(lengths, counts, items.max_length, items.slots, packs)
        if even[3].sum() == packs:
            # arranged() makes the other orders later
            order = "input" if items.order == "input" else "shuffle"
            return _dealt(even, lengths, keys, starts, replace(items, order=order))
    return None


def _even_out(items: Items, pack_of: Int32, packs: int) -> None:
    # Exchanging items of different weights could exceed the slots.
    if items.weights is None and packs <= _EVENED:
        even_out(items.lengths, pack_of, packs, max(100, _EXCHANGES // packs))


STRATEGIES: dict[str, ItemPlanner] = {
    "best_fit": partial(_by_counts, _best_fit),
    "first_fit": partial(_by_counts, _first_fit),
    "knapsack": partial(_by_counts, _first_fit),
    "optimal": partial(_by_counts, _optimal),
    "stream": partial(_by_items, _stream),
    "greedy": partial(_by_items, _greedy),
    "first_fit_input": partial(_by_items, _first_fit_input),
    "balanced": partial(_by_items, _balanced),
}

ONE_BY_ONE = ("stream", "greedy", "first_fit_input")
"""Strategies that take documents in input order, or in a seeded one."""


def arranged_packs(order: Int64, offsets: Int64, items: Items) -> PackedItems:
    """Return the same packs in the order `items.order`."""
    plan = PackPlan(items.lengths, items.max_length, order, offsets)
    plan = plan.arranged(items.order, items.seed, items.ranks, items.cost)
    return plan.order, plan.offsets


def _or_none(weights: Int32 | None) -> Int32:
    return np.zeros(0, np.int32) if weights is None else weights
