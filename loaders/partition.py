"""Plans of samples from their lengths alone: packs as even and as few as possible.

The plans of `--strategy balanced`, by the same two loops.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..schemas.arrays import Int32, Int64
from ..schemas.balance import exchange_until_even, place_longest_first

_EXCHANGES = 1 << 17  # samples to compare for exchanges: 20 ms, for packs within 0.2 %
_NO_LIMIT = 2**31 - 1


def even_packs(lengths: Int64, packs: int) -> Int32:
    """Pack of each sample, [samples]: `packs` packs with about the same number of tokens each.

    Longest first, each into the emptiest pack, then exchanges of one sample for another.

    Example: lengths=[5, 3, 4, 1, 1], packs=2 -> [0, 1, 1, 0, 0]
    """
    weights, free = np.zeros(0, np.int32), np.full(packs, _NO_LIMIT, np.int64)
    fills, pack_of = np.zeros(packs, np.int64), np.zeros(len(lengths), np.int32)
    longest = ascending(lengths.max(initial=0) - lengths)
    short = lengths.astype(np.int32)
    _run(place_longest_first, short, weights, longest, fills, free, pack_of)
    _even_out(short, pack_of, packs)
    return pack_of


def fewest_packs(lengths: Int64, budget: int) -> tuple[Int32, int]:
    """Pack of each sample, and the number of packs: few of at most `budget` tokens, and even.

    lengths: each at most `budget`. The number is that of even packs if these fit, else that of best
    fit decreasing, whose packs are then made even.
    """
    least = _least(lengths, budget)
    for packs in range(least, least + 1 + least // 500):
        if (pack_of := _even_within(lengths, budget, packs)) is not None:
            return pack_of, packs
    fitted, most = _best_fit(lengths, budget)
    for packs in sorted({least + (most - least) * part // 4 for part in range(1, 4)}):
        if least < packs < most and ((pack_of := _even_within(lengths, budget, packs)) is not None):
            return pack_of, packs
    if (pack_of := _even_within(lengths, budget, most)) is not None:
        return pack_of, most
    _even_out(lengths.astype(np.int32), fitted, most)
    return fitted, most


def packs_within(lengths: Int64, budget: int, packs: int) -> Int32:
    """Pack of each sample, for a number of packs that `fewest_packs` found or a larger one.

    ValueError if no plan with so few packs is found.
    """
    if (pack_of := _even_within(lengths, budget, packs)) is not None:
        return pack_of
    pack_of, needed = fewest_packs(lengths, budget)
    if needed > packs:
        raise ValueError(
            f"num_packs is {packs:,} but no plan with fewer than {needed:,} packs of {budget:,} "
            "tokens was found; choose a larger number, or a larger max_tokens"
        )
    # Each missing pack takes the first sample of a pack with several.
    order = ascending(pack_of)
    again = np.flatnonzero(np.diff(pack_of[order]) == 0)
    moved = order[again[: packs - needed]]
    pack_of[moved] = np.arange(needed, needed + len(moved))
    _even_out(lengths.astype(np.int32), pack_of, packs)
    return pack_of


def most_packs(lengths_of_all: Sequence[Int64], budget: int) -> int:
    """The number of packs that is enough on each of several ranks, from the lengths of each.

    The largest of the numbers of `fewest_packs`; ranks that cannot have it are not planned.
    """
    bounds = [_least(lengths, budget) for lengths in lengths_of_all]
    packs = 1
    for rank in np.argsort(-np.array(bounds), kind="stable").tolist():
        lengths = lengths_of_all[rank]
        if _even_within(lengths, budget, packs) is None:
            packs = max(packs, fewest_packs(lengths, budget)[1])
    return packs


def neighbours_together(lengths: Int64, pack_of: Int32) -> Int32:
    """The same packs with samples of equal length dealt again, in input order.

    So the samples of a pack are near each other, which reads the memory in order.

    Example: lengths=[4, 4, 2, 2], pack_of=[1, 0, 0, 1] -> [0, 1, 0, 1]
    """
    dealt = np.empty_like(pack_of)
    by_pack = ascending(pack_of)
    dealt[ascending(lengths)] = pack_of[by_pack[ascending(lengths[by_pack])]]
    return dealt


def ascending(values: NDArray[Any]) -> Int64:
    """Indices that sort numbers of 0 or more; equal ones stay in order. O(n) for small numbers."""
    if len(values) and values.max() < 1 << 16:
        values = values.astype(np.uint16)  # numpy has a radix sort for two bytes only
    order: Int64 = np.argsort(values, kind="stable")
    return order


def _least(lengths: Int64, budget: int) -> int:
    """Lower bound on the number of packs: by tokens, and by samples that fill half a pack."""
    return max(-(-int(lengths.sum()) // budget), int((2 * lengths > budget).sum()), 1)


def _even_within(lengths: Int64, budget: int, packs: int) -> Int32 | None:
    """Even packs, or None if one of them is larger than the budget."""
    if int(lengths.sum()) > packs * budget:
        return None
    pack_of = even_packs(lengths, packs)
    fullest = np.bincount(pack_of, lengths, packs).max()
    return pack_of if fullest <= budget else None


def _best_fit(lengths: Int64, budget: int) -> tuple[Int32, int]:
    """Best fit decreasing: each into the fullest pack with room, else into a new one."""
    rooms: list[int] = []  # room << 32 | pack, ascending
    pack_of, packs = np.zeros(len(lengths), np.int32), 0
    for sample in ascending(lengths.max(initial=0) - lengths).tolist():
        length = int(lengths[sample])
        at = bisect_left(rooms, length << 32)
        if at == len(rooms):
            pack, room, packs = packs, budget, packs + 1
        else:
            room, pack = divmod(rooms.pop(at), 1 << 32)
        pack_of[sample] = pack
        insort(rooms, (room - length) << 32 | pack)
    return pack_of, max(packs, 1)


def _even_out(lengths: Int32, pack_of: Int32, packs: int) -> None:
    """Exchange samples between uneven packs; changes pack_of in place."""
    by_length = ascending(lengths)
    members = by_length[ascending(pack_of[by_length])]
    starts = np.append(0, np.cumsum(np.bincount(pack_of, minlength=packs)))
    fills = np.bincount(pack_of, lengths, packs).astype(np.int64)
    tokens, rounds = int(fills.sum()), _EXCHANGES // (len(lengths) + packs)
    settled = np.zeros(packs, np.bool_)
    _run(
        exchange_until_even,
        lengths,
        tokens,
        starts,
        rounds,
        pack_of,
        fills,
        members,
        settled,
    )


def _run(loop: Callable[..., Any], *arguments: Any) -> None:
    """Call a loop with lists, which Python reads faster, and change the arrays in place."""
    lists = [each.tolist() if isinstance(each, np.ndarray) else each for each in arguments]
    loop(*lists)
    for array, values in zip(arguments, lists, strict=True):
        if isinstance(array, np.ndarray) and array.flags.writeable:
            array[:] = values
