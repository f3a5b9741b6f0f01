"""From counts back to documents: order packs, queue documents by length, deal them to the packs.

Orders of packs are shuffled, like the input, longest first, or balanced for ranks in step. They are
decided on patterns of packs, so they need no second pass over the documents.

Memory traffic decides the speed: reads and writes are sequential where possible, and tables fit the
fast caches. Indices are unsigned in hot loops, because numba checks signed ones for negative
values.
"""

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ...schemas.arrays import Int32, Int64, UInt32
from ...support.hashing import Purpose, stream
from .common import Out, kernel_for_many, larger, set_bits, shuffle, smaller, smaller_of_16

_U0, _U1, _U4, _LANES = np.uint64(0), np.uint64(1), np.uint64(4), np.uint64(16)
_NEXT = np.uint32(1)
_SORT_ABOVE = np.uint64(128)  # documents; up to this many, comparing all pairs beats a sort
_HIGHEST = np.int32(2**31 - 1)


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


def _sorted_by_key(keys: Int32, _: UInt32, queue: Int32) -> None:
    queue[:] = np.argsort(keys, kind="stable")


@kernel_for_many(_sorted_by_key)
def queue_by_key(keys: Int32, cursors: Out[UInt32], queue: Out[Int32]) -> None:
    """Fill queue [documents] with document numbers sorted by key; equal keys stay in input order.

    A counting sort. cursors: [keys], where the documents of each key begin, from 0 on; moved on.
    """
    for i in range(np.uint64(keys.size)):
        k = np.uint64(keys[i])
        place = cursors[k]
        queue[np.uint64(place)] = i
        cursors[k] = place + _NEXT


def by_pack(pack_of: Int32, packs: int) -> tuple[Int64, Int64]:
    """Order and offsets of the plan with document i in pack pack_of[i].

    Documents ascend inside a pack.
    """
    offsets = np.zeros(packs + 1, np.int64)
    np.cumsum(np.bincount(pack_of, minlength=packs), out=offsets[1:])
    order = np.empty(pack_of.size, np.int32)
    queue_by_key(pack_of, offsets[:-1].astype(np.uint32), order)
    return order.astype(np.int64), offsets


def deal(
    packs: Int32, starts: Int64, kinds: Int32, cursors: UInt32, queue: Int32
) -> tuple[Int64, Int64]:
    """Return order [documents] and offsets [packs + 1]: pack p takes the pattern packs[p].

    kinds: one entry per document of a pattern, kinds[starts[pattern]:starts[pattern + 1]]. cursors:
    [kinds], the next document of each kind in the queue. Documents ascend inside a pack.
    """
    # Large arrays are made by numpy, not in kernels: it requests huge pages for them.
    order, offsets = np.empty(queue.size, np.int64), np.empty(packs.size + 1, np.int64)
    largest = int(np.diff(starts).max(initial=0))
    _deal(packs, starts, kinds, cursors, queue, np.empty(largest + 32, np.int32), order, offsets)
    if largest > _SORT_ABOVE:
        sort_long_packs(order, offsets, int(_SORT_ABOVE))
    return order, offsets


def sort_long_packs(order: Int64, offsets: Int64, above: int) -> None:
    """Sort the packs of more than `above` documents, in place."""
    for pack in np.flatnonzero(np.diff(offsets) > above).tolist():
        order[offsets[pack] : offsets[pack + 1]].sort()


def _dealt(
    packs: Int32,
    starts: Int64,
    kinds: Int32,
    cursors: UInt32,
    queue: Int32,
    _: Int32,
    order: Int64,
    offsets: Int64,
) -> None:
    """`_deal` by sorting: the packs' places for documents by kind, then the documents by pack."""
    sizes = np.diff(starts)[packs]
    offsets[:] = np.append(0, np.cumsum(sizes))
    kind = kinds[joined_ranges(starts[packs], sizes)]
    counts = np.bincount(kind, minlength=cursors.size)
    taken = queue[joined_ranges(cursors.astype(np.int64), counts)]
    order[np.argsort(kind, kind="stable")] = taken
    order[:] = order[np.lexsort((order, np.repeat(np.arange(packs.size), sizes)))]


@kernel_for_many(_dealt)
def _deal(
    packs: Int32,
    starts: Int64,
    kinds: Int32,
    cursors: Out[UInt32],
    queue: Int32,
    pack: Out[Int32],
    order: Out[Int64],
    offsets: Out[Int64],
) -> None:
    """Fill order and offsets; see `deal`. Packs of more than _SORT_ABOVE documents are not sorted.

    The place of a document in its pack is the number of smaller ones. pack: scratch for one pack
    and a vector more.
    """
    first = _U0
    offsets[0] = 0
    last = larger(0, packs.size - 1)
    # The size of a pack is read one pack ahead, so the processor predicts the end of the loops
    # below.
    next_start, next_size = _U0, _U0
    if packs.size:
        next_start = np.uint64(starts[packs[0]])
        next_size = np.uint64(starts[packs[0] + 1]) - next_start
    for p in range(np.uint64(packs.size)):
        start, size = next_start, next_size
        pattern = np.uint64(packs[smaller(p + _U1, last)])
        next_start = np.uint64(starts[pattern])
        next_size = np.uint64(starts[pattern + _U1]) - next_start
        for i in range(size):
            k = np.uint64(kinds[start + i])
            cursor = cursors[k]
            cursors[k] = cursor + _NEXT
            pack[i] = queue[np.uint64(cursor)]
        if size <= _LANES:
            mask = (_U1 << size) - _U1
            for i in range(size):
                document = pack[i]
                order[first + set_bits(smaller_of_16(pack, _U0, document) & mask)] = document
        elif size <= _SORT_ABOVE:
            padded = ((size + _LANES - _U1) >> _U4) << _U4
            for i in range(size, padded):
                pack[i] = _HIGHEST
            for i in range(size):
                document = pack[i]
                place = first
                for block in range(_U0, padded, _LANES):
                    place += set_bits(smaller_of_16(pack, block, document))
                order[place] = document
        else:
            for i in range(size):
                order[first + i] = pack[i]
        first += size
        offsets[p + _U1] = first


def joined_ranges(starts: Int64, sizes: Int64) -> Int64:
    """The numbers starts[0], starts[0] + 1, ... (sizes[0] of them), then those of starts[1], ...

    Example: starts=[5, 0], sizes=[2, 3] -> [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(sizes)
    return np.repeat(starts - (ends - sizes), sizes) + np.arange(ends[-1] if ends.size else 0)


def plan_of_documents(order: Int64, offsets: Int64, starts: Int64) -> tuple[Int64, Int64]:
    """Turn a plan of atoms into a plan of documents.

    Atom a has the documents starts[a]..starts[a + 1] - 1.
    """
    sizes = np.diff(starts)[order]
    ends = np.append(0, np.cumsum(sizes))
    return joined_ranges(starts[:-1][order], sizes), ends[offsets]


def permuted(order: Int64, offsets: Int64, packs: NDArray[np.integer[Any]]) -> tuple[Int64, Int64]:
    """Return the plan whose pack p is pack packs[p] of this one; `packs` may omit some."""
    sizes = np.diff(offsets)[packs]
    moved = np.append(0, np.cumsum(sizes))
    return order[joined_ranges(offsets[packs], sizes)], moved


def by_first_document(order: Int64, offsets: Int64) -> tuple[Int64, Int64]:
    """Return the same packs, sorted by their first documents."""
    return permuted(order, offsets, np.argsort(order[offsets[:-1]]))


def emptiest(fills: Int64, count: int) -> Int64:
    """The `count` packs with the fewest tokens, in ascending order.

    They are dropped where the number of packs must be a multiple.

    fills: int64 [packs], tokens. Among equally full packs, later ones are chosen.
    """
    return np.sort(np.lexsort((-np.arange(fills.size), fills))[:count])
