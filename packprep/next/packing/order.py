"""Orders of packs: shuffled, like the input, longest first, or balanced for ranks in step.

The order is decided on patterns of packs, before documents are dealt to them, so it needs no second
pass over the documents.
"""

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..schemas.arrays import Int32, Int64
from ..schemas.cost import Cost
from ..support.hashing import Purpose, stream
from .kernels.common import shuffle
from .kernels.compiled import Out, kernel
from .kernels.measure import placed_costs, placed_longest

PackOrder = Literal["shuffle", "input", "length", "balanced"]
ORDERS: tuple[str, ...] = get_args(PackOrder)


def sequence(
    pack_order: str, times: Int64, longest: Int32, cost: NDArray[np.float64], seed: int, ranks: int
) -> Int32:
    """The pattern of each pack; pattern i occurs times[i] times.

    times, longest, cost: [patterns]; cost is any measure of a pack's work. Returns int32 [packs].
    pack_order shuffle: every arrangement is equally likely. length: longest document first.
    balanced: sorted by cost and cut into groups of `ranks` packs, groups shuffled; the cheapest
    packs % ranks are last. input: in the order of the patterns.
    """
    patterns = np.arange(times.size, dtype=np.int32)
    if pack_order == "length":
        patterns = np.argsort(-longest, kind="stable").astype(np.int32)
    elif pack_order == "balanced":
        patterns = np.argsort(-cost, kind="stable").astype(np.int32)
    packs = np.repeat(patterns, times[patterns])
    if pack_order == "shuffle":
        shuffle(packs, 0, packs.size, stream(seed, Purpose.PACK_ORDER))
    elif pack_order == "balanced":
        grouped = packs.size // ranks * ranks
        groups = np.arange(grouped // ranks, dtype=np.int32)
        shuffle(groups, 0, groups.size, stream(seed, Purpose.STEP_ORDER))
        packs[:grouped] = packs[:grouped].reshape(-1, ranks)[groups].ravel()
    return packs


def arranged(
    order: Int64,
    offsets: Int64,
    lengths: Int32,
    pack_order: str,
    seed: int,
    ranks: int,
    cost: Cost,
) -> tuple[Int64, Int64]:
    """Return the same packs in the order `pack_order`.

    lengths: [documents]. cost: of a segment.
    """
    if pack_order == "input":
        return by_first_document(order, offsets)
    longest, work = np.zeros(0, np.int32), np.zeros(0)
    if pack_order == "length":
        longest = placed_longest(lengths[order], offsets)
    if pack_order == "balanced":
        work = placed_costs(lengths[order], offsets, cost)
    once = np.ones(offsets.size - 1, np.int64)
    return permuted(order, offsets, sequence(pack_order, once, longest, work, seed, ranks))


def by_first_document(order: Int64, offsets: Int64) -> tuple[Int64, Int64]:
    """Return the same packs, sorted by their first documents."""
    return permuted(order, offsets, np.argsort(order[offsets[:-1]]))


def permuted(order: Int64, offsets: Int64, packs: NDArray[np.integer[Any]]) -> tuple[Int64, Int64]:
    """Return the plan whose pack p is pack packs[p] of this one; `packs` may omit some."""
    sizes = np.diff(offsets)[packs]
    moved = np.zeros(packs.size + 1, np.int64)
    np.cumsum(sizes, out=moved[1:])
    result = np.empty(moved[-1], np.int64)
    _gather_packs(order, offsets, packs.astype(np.int64), result)
    return result, moved


def emptiest(fills: Int64, count: int) -> Int64:
    """The `count` packs with the fewest tokens, in ascending order.

    They are dropped where the number of packs must be a multiple.

    fills: int64 [packs], tokens. Among equally full packs, later ones are chosen.
    """
    return np.sort(np.lexsort((-np.arange(fills.size), fills))[:count])


@kernel
def _gather_packs(order: Int64, offsets: Int64, packs: Int64, result: Out[Int64]) -> None:
    cursor = 0
    for p in packs:
        for i in range(offsets[p], offsets[p + 1]):
            result[cursor] = order[i]
            cursor += 1


@kernel
def _take_turns(
    above: Int64,
    members: Int64,
    ends: Int64,
    heads: Out[Int64],
    sums: Out[Int64],
    order: Out[Int64],
) -> None:
    """Take the next pack of the source with the lowest sum. heads, sums: [sources]."""
    for place in range(order.size):
        lowest = -1
        for source in range(sums.size):
            if heads[source] < ends[source] and (lowest < 0 or sums[source] < sums[lowest]):
                lowest = source
        pack = members[heads[lowest]]
        heads[lowest] += 1
        order[place] = pack
        for source in range(sums.size):
            sums[source] += above[pack * sums.size + source]
