"""Orders of packs.

Shuffled, as the input, longest first, or in groups of equal cost for ranks in step.

It is decided on what packs look like, before any document is dealt, so it costs no second pass over
the documents.
"""

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from packprep.packing.kernels.common import kernel, shuffle
from packprep.packing.kernels.deal import repeat
from packprep.packing.kernels.measure import pack_longest, placed, placed_costs
from packprep.support.arrays import Int32, Int64
from packprep.support.hashing import Purpose, stream

PackOrder = Literal["shuffle", "input", "length", "balanced"]
ORDERS: tuple[str, ...] = get_args(PackOrder)


def sequence(
    how: str, times: Int64, longest: Int32, cost: NDArray[np.float64], seed: int, ranks: int
) -> Int32:
    """The pattern of each pack: pattern i stands times[i] times.

    times, longest, cost: [patterns]; cost is any measure of a pack's work. Returns int32 [packs].
    shuffle: every arrangement is equally likely. length: the longest document first. balanced:
    sorted by cost, cut into groups of `ranks` packs, the groups shuffled; the cheapest packs %
    ranks stand last. input: as the patterns stand.
    """
    patterns = np.arange(times.size, dtype=np.int32)
    if how == "length":
        patterns = np.argsort(-longest, kind="stable").astype(np.int32)
    elif how == "balanced":
        patterns = np.argsort(-cost, kind="stable").astype(np.int32)
    packs = repeat(patterns, times[patterns])
    if how == "shuffle":
        shuffle(packs, 0, packs.size, stream(seed, Purpose.PACK_ORDER))
    elif how == "balanced":
        whole = packs.size // ranks * ranks
        groups = np.arange(whole // ranks)
        shuffle(groups, 0, groups.size, stream(seed, Purpose.STEP_ORDER))
        packs[:whole] = packs[:whole].reshape(-1, ranks)[groups].ravel()
    return packs


def arranged(
    order: Int64,
    offsets: Int64,
    lengths: Int32,
    how: str,
    seed: int,
    ranks: int,
    cost: tuple[float, float],
) -> tuple[Int64, Int64]:
    """The same packs in the order that is asked for.

    lengths: [documents]. cost: a, b as `PackPlan.costs` has them.
    """
    if how == "input":
        return by_first_document(order, offsets)
    longest, work = np.zeros(0, np.int32), np.zeros(0)
    if how == "length":
        longest = pack_longest(lengths, order, offsets)
    if how == "balanced":
        work = placed_costs(placed(lengths, order), offsets, *cost)
    once = np.ones(offsets.size - 1, np.int64)
    return permuted(order, offsets, sequence(how, once, longest, work, seed, ranks))


def by_first_document(order: Int64, offsets: Int64) -> tuple[Int64, Int64]:
    """The same packs as the input has their first documents."""
    return permuted(order, offsets, np.argsort(order[offsets[:-1]]))


def permuted(order: Int64, offsets: Int64, packs: NDArray[np.integer[Any]]) -> tuple[Int64, Int64]:
    """The plan whose pack p is pack packs[p] of the given one; `packs` may leave some out."""
    sizes = np.diff(offsets)[packs]
    moved = np.zeros(packs.size + 1, np.int64)
    np.cumsum(sizes, out=moved[1:])
    result = np.empty(moved[-1], np.int64)
    _gather_packs(order, offsets, packs, result)
    return result, moved


def emptiest(fills: Int64, count: int) -> Int64:
    """The `count` packs with the fewest tokens, rising.

    These are left out when packs must be a multiple of something.

    fills: int64 [packs], tokens. Of equally full packs the later ones are chosen.
    """
    return np.sort(np.lexsort((-np.arange(fills.size), fills))[:count])


@kernel
def _gather_packs(
    order: Int64, offsets: Int64, packs: NDArray[np.integer[Any]], result: Int64
) -> None:
    at = 0
    for p in packs:
        for i in range(offsets[p], offsets[p + 1]):
            result[at] = order[i]
            at += 1
