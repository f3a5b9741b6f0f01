"""The packing strategies in plain Python, document by document: slow and simple.

The compiled strategies must equal them. A pack is a list of document numbers; a plan is a list of
packs.
"""

import math
from collections.abc import Sequence

Pack = list[int]


def greedy(lengths: Sequence[int], capacity: int, slots: int = 2**31) -> list[Pack]:
    """Next fit: a new pack whenever the next document doesn't fit."""
    packs: list[Pack] = []
    for document, length in enumerate(lengths):
        if not packs or fill(packs[-1], lengths) + length > capacity or len(packs[-1]) == slots:
            packs.append([])
        packs[-1].append(document)
    return packs


def longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda document: -lengths[document])


def first_fit(
    lengths: Sequence[int], capacity: int, slots: int = 2**31, decreasing: bool = True
) -> list[Pack]:
    """First fit: each document into the first pack that has room, longest first or in order."""
    packs: list[Pack] = []
    for document in longest_first(lengths) if decreasing else range(len(lengths)):
        for pack in packs:
            if fill(pack, lengths) + lengths[document] <= capacity and len(pack) < slots:
                pack.append(document)
                break
        else:
            packs.append([document])
    return packs


def best_fit(
    lengths: Sequence[int], capacity: int, slots: int = 2**31, decreasing: bool = True
) -> list[Pack]:
    """Best fit: each document into the fullest pack that has room, longest first or in order."""
    packs: list[Pack] = []
    for document in longest_first(lengths) if decreasing else range(len(lengths)):
        fits = [
            p for p in packs if fill(p, lengths) + lengths[document] <= capacity and len(p) < slots
        ]
        if fits:
            max(fits, key=lambda pack: fill(pack, lengths)).append(document)
        else:
            packs.append([document])
    return packs


def knapsack(lengths: Sequence[int], capacity: int) -> list[Pack]:
    """Pack after pack, the largest remaining document that still fits."""
    packs: list[Pack] = []
    left = longest_first(lengths)
    while left:
        pack: Pack = []
        while fits := [d for d in left if fill(pack, lengths) + lengths[d] <= capacity]:
            pack.append(fits[0])
            left.remove(fits[0])
        packs.append(pack)
    return packs


def wrapped(lengths: Sequence[int], capacity: int) -> list[list[tuple[int, int, int]]]:
    """All documents one after another, cut only where packs end.

    Returns (document, start, stop) of each segment of each pack.
    """
    packs: list[list[tuple[int, int, int]]] = []
    room = 0
    for document, length in enumerate(lengths):
        start = 0
        while start < length:
            if room == 0:
                packs.append([])
                room = capacity
            stop = min(length, start + room)
            packs[-1].append((document, start, stop))
            room -= stop - start
            start = stop
    return packs


def stream(lengths: Sequence[int], capacity: int, slots: int = 2**31) -> list[Pack]:
    """Next fit; unused documents close each pack: one or two that fill it, or the longest."""
    packs: list[Pack] = []
    unused = list(range(len(lengths)))
    while unused:
        pack: Pack = []
        room = capacity
        while unused and lengths[unused[0]] <= room and slots - len(pack) > 1:
            pack.append(unused.pop(0))
            room -= lengths[pack[-1]]
        while room > 0 and len(pack) < slots:
            available = sorted({lengths[d] for d in unused if lengths[d] <= room}, reverse=True)
            if not available:
                break
            length = available[0]
            if length < room and slots - len(pack) > 1:
                halves = [x for x in available if 2 * x <= room + 1][:32]
                counts = [lengths[d] for d in unused]
                pairs = [room - x for x in halves if counts.count(room - x) > (2 * x == room)]
                if pairs:
                    length = room - pairs[0]
            document = next(d for d in unused if lengths[d] == length)
            unused.remove(document)
            pack.append(document)
            room -= length
        packs.append(sorted(pack))
    return packs


def fewest_packs(lengths: Sequence[int], capacity: int, slots: int = 2**31) -> int:
    """The optimum, by trying everything; for up to ten documents."""
    ordered = sorted(lengths, reverse=True)
    best = len(ordered)

    def place(i: int, packs: list[tuple[int, int]]) -> None:
        nonlocal best
        if len(packs) >= best:
            return
        if i == len(ordered):
            best = len(packs)
            return
        for p, (tokens, size) in enumerate(packs):
            if tokens + ordered[i] <= capacity and size < slots and packs[p] not in packs[:p]:
                place(i + 1, [*packs[:p], (tokens + ordered[i], size + 1), *packs[p + 1 :]])
        place(i + 1, [*packs, (ordered[i], 1)])

    best += 1
    place(0, [])
    return best


def l2(lengths: Sequence[int], capacity: int) -> int:
    """Martello and Toth's bound as they define it, for every threshold."""
    best = 0
    for threshold in range(capacity // 2 + 1):
        alone = [x for x in lengths if x > capacity - threshold]
        large = [x for x in lengths if capacity - threshold >= x > capacity / 2]
        small = [x for x in lengths if capacity / 2 >= x >= threshold]
        room = len(large) * capacity - sum(large)
        best = max(
            best, len(alone) + len(large) + max(0, math.ceil((sum(small) - room) / capacity))
        )
    return best


def fill(pack: Pack, lengths: Sequence[int]) -> int:
    return sum(lengths[document] for document in pack)


def contents(packs: Sequence[Pack], lengths: Sequence[int]) -> list[list[int]]:
    """The packs as lengths, in an order independent of the plan."""
    return sorted(sorted(lengths[document] for document in pack) for pack in packs)


def bias(packs: Sequence[Pack], lengths: Sequence[int]) -> float:
    """Adjusted share of the variance of log length between packs (epsilon squared)."""
    logs = [math.log(length) for length in lengths]
    mean = sum(logs) / len(logs)
    total = sum((x - mean) ** 2 for x in logs)
    within = 0.0
    for pack in packs:
        pack_mean = sum(logs[d] for d in pack) / len(pack)
        within += sum((logs[d] - pack_mean) ** 2 for d in pack)
    free = len(lengths) - len(packs)
    return 1 - (within / free) / (total / (len(lengths) - 1)) if free and total > 1e-12 else 0.0


def straggler(
    packs: Sequence[Pack], lengths: Sequence[int], ranks: int, a: float, b: float
) -> float:
    """max / mean cost of each step of `ranks` packs, averaged over whole steps."""
    costs = [sum(a * lengths[d] + b * lengths[d] ** 2 for d in pack) for pack in packs]
    steps = [costs[i : i + ranks] for i in range(0, len(costs) - ranks + 1, ranks)] or [costs]
    return sum(max(step) / (sum(step) / len(step)) for step in steps) / len(steps)
