"""An order of packs in which every span of them has the shares of the sources of its window.

Shuffled packs have the shares on average only: of 1,000 packs with one source each, the share of a
source is off by a point or more. Here the next pack is always of the source that lacks most tokens
so far, and packs of one source keep their shuffled order.

Example: packs A A B A A B, two thirds of A -> A B A A B A.
"""

import numpy as np

from packprep.packing.kernels.compiled import Out, kernel
from packprep.support.arrays import Int64


def interleaved(tokens: Int64) -> Int64:
    """Numbers of packs in the new order. tokens: of each source in each pack, [packs, sources]."""
    packs, sources = tokens.shape
    # Tokens above the share of the window, times all tokens of the window, to have whole numbers.
    above = tokens * tokens.sum() - tokens.sum(axis=1)[:, None] * tokens.sum(axis=0)[None, :]
    kind = above.argmax(axis=1)
    members = np.argsort(kind, kind="stable")
    starts = np.append(0, np.cumsum(np.bincount(kind, minlength=sources)))
    order = np.empty(packs, np.int64)
    _take_turns(
        np.ascontiguousarray(above).ravel(),
        members,
        starts[1:],
        starts[:-1].copy(),
        np.zeros(sources, np.int64),
        order,
    )
    return order


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
