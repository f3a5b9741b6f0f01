"""The strategies: each turns items (documents, or atoms of several) into packs.

Planners on counts decide what packs look like from how many items have each length, then deal the
items; planners on items go through them one by one. A new strategy is one function, one line in
STRATEGIES, and its name in config/option.py, from where help, checks and completion have it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from packprep.packing import order as orders
from packprep.packing.bounds import bound_of_counts
from packprep.packing.kernels.balanced import by_pack, even_out, longest_first
from packprep.packing.kernels.common import shuffle
from packprep.packing.kernels.deal import deal, queue_by_key, shuffle_queues
from packprep.packing.kernels.fit import Patterns, best_fit_patterns, first_fit_patterns
from packprep.packing.kernels.optimal import perfect_fill_patterns
from packprep.packing.kernels.spread import emptiest_first_patterns
from packprep.packing.kernels.stream import best_fit_online, next_fit, sort_packs, stream_packs
from packprep.support.arrays import Int32, Int64
from packprep.support.errors import ConfigError
from packprep.support.hashing import Purpose, stream

NO_LIMIT = 2**31 - 1  # segments per pack where there is no limit
_BISECTIONS = 12  # of the number of packs of at most so many segments
_EXCHANGES = 20_000_000  # of balanced: pairs of packs looked at, some tenths of a second
_EVENED = (
    200_000  # packs; beyond them balanced works on counts, and a hundred exchanges would not show
)
_STEPS, _ALL_STEPS = (
    50_000,
    20_000_000,
)  # of optimal: per search; of all searches, about a fifth of a second


@dataclass(frozen=True)
class Items:
    """Input of a planner: all that decides the plan."""

    lengths: Int32
    counts: Int64  # items of each length, [max_length + 1]
    weights: (
        Int32 | None
    )  # segments of each item, where a pack's segments are limited and some item has several
    max_length: int
    slots: int  # segments a pack may hold
    seed: int
    order: str
    shuffle_documents: bool
    num_packs: int | None
    ranks: int
    cost: tuple[float, float]


PackedItems = tuple[Int64, Int64]
"""order [items] and offsets [packs + 1], as in PackPlan."""
ItemPlanner = Callable[[Items], PackedItems]
Kinds = tuple[Int32, Int32, Int64]
"""length, weight and count of each kind of interchangeable items, longest first."""


def _by_counts(plan_kinds: Callable[[Kinds, Items], Patterns]) -> ItemPlanner:
    """A planner that decides on kinds of items, then deals the items to its packs.

    Items of a kind have equal length and equal weight.
    """

    def plan(items: Items) -> PackedItems:
        keys, kinds, starts = _kinds(items)
        patterns = plan_kinds(kinds, items)
        if items.slots < NO_LIMIT and patterns[3].sum() > _bound(kinds, items):
            # A stream meets long and short documents as the input mixes them, and so rarely runs
            # out of slots.
            streamed = STRATEGIES["stream"](
                replace(items, shuffle_documents=items.order != "input")
            )
            if streamed[1].size <= patterns[3].sum():
                return streamed
        return _dealt(patterns, kinds[0], keys, starts, items)

    return plan


def _dealt(
    patterns: Patterns, lengths: Int32, keys: Int32, starts: Int64, items: Items
) -> PackedItems:
    """The items in packs that look like the patterns, in the order that was asked for.

    lengths: of the kinds; keys: of the items; starts: where each key's items begin in a queue
    sorted by key.
    """
    run_starts, kinds, copies, times = patterns
    longest, cost = np.zeros(0, np.int32), np.zeros(0)
    if items.order == "length" and times.size:
        longest = np.maximum.reduceat(lengths[kinds], run_starts[:-1])
    if items.order == "balanced" and times.size:
        length = lengths[kinds].astype(np.float64)
        cost = np.add.reduceat(
            copies * (items.cost[0] * length + items.cost[1] * length**2), run_starts[:-1]
        )
    packs = orders.sequence(items.order, times, longest, cost, items.seed, items.ranks)
    # Large arrays are made here and not in the kernels: numpy asks for huge pages.
    queue, order = np.empty(keys.size, np.int32), np.empty(keys.size, np.int64)
    offsets = np.empty(packs.size + 1, np.int64)
    queue_by_key(keys, starts[:-1].astype(np.uint32), queue)
    if items.order != "input":
        shuffle_queues(queue, starts, stream(items.seed, Purpose.EQUAL_LENGTHS))
    sizes = (
        np.add.reduceat(copies, run_starts[:-1], dtype=np.int64) if times.size else run_starts[:0]
    )
    pattern_starts = np.concatenate([run_starts[:1], np.cumsum(sizes)])
    cursors = (starts[lengths] if items.weights is None else starts[:-1]).astype(np.uint32)
    deal(packs, pattern_starts, np.repeat(kinds, copies), cursors, queue, order, offsets)
    return orders.by_first_document(order, offsets) if items.order == "input" else (order, offsets)


def _kinds(items: Items) -> tuple[Int32, Kinds, Int64]:
    """Key of each item; its kinds, longest first; where the items of each key begin in a queue."""
    if items.weights is None:
        lengths = np.flatnonzero(items.counts)[::-1].astype(np.int32)
        starts = np.zeros(items.counts.size + 1, np.int64)
        np.cumsum(items.counts, out=starts[1:])
        return items.lengths, (lengths, np.ones_like(lengths), items.counts[lengths]), starts
    # Key 0 is the longest and heaviest, so that keys and kinds are the same numbers.
    scale = int(items.weights.max()) + 1
    size = items.lengths * np.int64(scale) + items.weights
    pairs, keys, counts = np.unique(-size, return_inverse=True, return_counts=True)
    starts = np.concatenate([[0], np.cumsum(counts)])
    kinds = (-pairs // scale).astype(np.int32), (-pairs % scale).astype(np.int32), counts
    return keys.astype(np.int32), kinds, starts


def _best_fit(kinds: Kinds, items: Items) -> Patterns:
    return _within_slots(best_fit_patterns(*kinds, items.max_length, items.slots), kinds, items)


def _first_fit(kinds: Kinds, items: Items) -> Patterns:
    return _within_slots(first_fit_patterns(*kinds, items.max_length, items.slots), kinds, items)


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
    """`best`, or even packs where these are fewer: where a pack's slots run out before its room.

    Looks for the smallest number of even packs that holds everything, by bisection between the
    bound and `best`.
    """
    if items.slots == NO_LIMIT or not kinds[0].size or items.weights is not None:
        return best
    lengths, _, counts = kinds
    low, high = _bound(kinds, items), int(best[3].sum())
    for _ in range(_BISECTIONS):
        if low >= high:
            break
        begun = low + (high - low) // 8  # the bound is nearer, as a rule
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
    """The patterns with fewer packs; on a tie the first."""
    return second if second[3].sum() < first[3].sum() else first


def _by_items(plan_items: Callable[[Items], PackedItems]) -> ItemPlanner:
    """A planner that decides item by item; its packs are put in order afterwards."""

    def plan(items: Items) -> PackedItems:
        if not items.shuffle_documents:
            return arranged_packs(*plan_items(items), items)
        visit = np.arange(items.lengths.size, dtype=np.int32)
        shuffle(visit, 0, visit.size, stream(items.seed, Purpose.DOCUMENT_ORDER))
        weights = None if items.weights is None else items.weights[visit]
        order, offsets = plan_items(replace(items, lengths=items.lengths[visit], weights=weights))
        order = visit[order].astype(np.int64)
        sort_packs(order, offsets)
        return arranged_packs(order, offsets, items)

    return plan


def _greedy(items: Items) -> PackedItems:
    return next_fit(items.lengths, _or_none(items.weights), items.max_length, items.slots)


def _stream(items: Items) -> PackedItems:
    if items.weights is not None:
        return _greedy(items)  # closing documents are looked up by length alone
    starts = np.zeros(items.counts.size + 1, np.int64)
    np.cumsum(items.counts, out=starts[1:])
    queue = np.empty(items.lengths.size, np.int32)
    queue_by_key(items.lengths, starts[:-1].astype(np.uint32), queue)
    order, offsets = np.empty(queue.size, np.int64), np.empty(queue.size + 1, np.int64)
    packs = stream_packs(
        items.lengths, starts, queue, items.max_length, items.slots, order, offsets
    )
    closed = order, offsets[: packs + 1].copy()
    # Where short documents are too rare to close every pack, they run out and the last packs stay
    # half empty.
    if items.slots < NO_LIMIT or packs <= 1.001 * _bound(_kinds(items)[1], items):
        return closed
    online = best_fit_online(items.lengths, items.max_length)
    return online if online[1].size < closed[1].size else closed


def _balanced(items: Items) -> PackedItems:
    """Even packs: of the number asked for, or of the smallest number that works."""
    documents = items.lengths.size
    if not documents:
        return np.zeros(0, np.int64), np.zeros(1, np.int64)
    needed = _bound(_kinds(items)[1], items)
    packs = items.num_packs or needed
    if packs > documents:
        raise ConfigError(
            f"num_packs is {packs:,} but {documents:,} documents fill at most as many packs; ask "
            "for fewer"
        )
    if packs < needed:
        raise ConfigError(
            f"num_packs is {packs:,} but these documents need at least {needed:,} packs; ask for "
            "more"
        )
    # An even plan that exceeds max_length somewhere is often mended by exchanges; if not, more
    # packs may do it.
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
            f"num_packs is {packs:,} but no plan with fewer than {fallback:,} was found; ask for "
            "more"
        )
    # The packs of the optimal plan, evened out; packs that are missing take a document each from
    # packs with several.
    several = np.ones(documents, np.bool_)
    several[offsets[:-1]] = False
    moved = order[several][: packs - fallback] if items.num_packs else order[:0]
    count, pack_of = fallback + moved.size, np.empty(documents, np.int32)
    pack_of[order] = np.repeat(np.arange(fallback, dtype=np.int32), np.diff(offsets))
    pack_of[moved] = np.arange(fallback, count, dtype=np.int32)
    _even_out(items, pack_of, count)
    return by_pack(pack_of, count)


def _even_by_counts(items: Items, tries: Sequence[int]) -> PackedItems | None:
    """The first of these numbers of packs that longest first into the emptiest pack fills.

    None where none is enough.

    The same rule as longest_first, on how many items have each length: milliseconds for any number
    of them.
    """
    keys, (lengths, _, counts), starts = _kinds(items)
    for packs in tries:
        even = emptiest_first_patterns(lengths, counts, items.max_length, items.slots, packs)
        if even[3].sum() == packs:
            order = (
                "input" if items.order == "input" else "shuffle"
            )  # what arranged() asks for comes later
            return _dealt(even, lengths, keys, starts, replace(items, order=order))
    return None


def _even_out(items: Items, pack_of: Int32, packs: int) -> None:
    # An exchange of items of different weights could exceed the slots.
    if items.weights is None and packs <= _EVENED:
        even_out(items.lengths, pack_of, packs, max(100, _EXCHANGES // packs))


STRATEGIES: dict[str, ItemPlanner] = {
    "best_fit": _by_counts(_best_fit),
    "first_fit": _by_counts(_first_fit),
    "knapsack": _by_counts(_first_fit),
    "optimal": _by_counts(_optimal),
    "stream": _by_items(_stream),
    "greedy": _by_items(_greedy),
    "balanced": _by_items(_balanced),
}


def arranged_packs(order: Int64, offsets: Int64, items: Items) -> PackedItems:
    """The same packs in the order that was asked for."""
    return orders.arranged(
        order, offsets, items.lengths, items.order, items.seed, items.ranks, items.cost
    )


def _or_none(weights: Int32 | None) -> Int32:
    return np.zeros(0, np.int32) if weights is None else weights
