"""Make a fixed number of packs as even as possible.

Longest processing time first, then exchanges between uneven packs.
"""

import numpy as np

from ...schemas.arrays import Int32, Int64
from ...schemas.balance import exchange_until_even, place_longest_first
from .common import kernel
from .deal import by_pack

_longest_first = kernel(place_longest_first)
_even_out = kernel(exchange_until_even)


def longest_first(lengths: Int32, weights: Int32, longest: Int64, packs: int, slots: int) -> Int32:
    """Pack of each document: longest first, each into the emptiest pack.

    longest: documents, longest first. weights: [documents], or empty if each is 1. Returns an empty
    array if slots run out. O(documents log packs).
    """
    fills, free = np.zeros(packs, np.int64), np.full(packs, slots, np.int64)
    pack_of = np.empty(lengths.size, np.int32)
    fit = _longest_first(lengths, weights, longest, fills, free, pack_of)
    return pack_of if fit else pack_of[:0]


def even_out(lengths: Int32, pack_of: Int32, packs: int, rounds: int) -> int:
    """Exchange documents between uneven packs; see `exchange_until_even`.

    Changes pack_of in place and returns the number of exchanges.
    """
    by_length = np.argsort(lengths, kind="stable")
    # So the members of each pack ascend in length.
    places, starts = by_pack(pack_of[by_length], packs)
    fills = np.bincount(pack_of, lengths, packs).astype(np.int64)
    settled = np.zeros(packs, np.bool_)
    return int(
        _even_out(
            lengths, int(fills.sum()), starts, rounds, pack_of, fills, by_length[places], settled
        )
    )
