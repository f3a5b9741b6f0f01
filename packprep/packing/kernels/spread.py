"""Packs with a limit of segments: every pack gets both long and short documents.

Best fit decreasing fills its first packs with a few long documents and its last packs with short
ones. The last packs then reach the limit long before they are full. Placing each document in the
emptiest pack keeps all packs alike.
"""

from ...schemas.arrays import Int32, Int64, UInt64
from .common import Out, kernel, next_set, put_bit, smaller
from .fit import Patterns, grown


def emptiest_first_patterns(
    lengths: Int32, counts: Int64, capacity: int, slots: int, begun: int
) -> Patterns:
    """Longest first, each document into the emptiest of `begun` packs, or into a new one.

    Packs without free slots are skipped.

    lengths, counts: [kinds], lengths descending. All packs get about the same number of tokens and
    of documents, which is best if slots run out before room. Equal packs are filled at once, see
    best_fit_patterns.
    """
    size = 8 * lengths.size + 64
    return grown(_emptiest_first_tree, (lengths, counts, capacity, slots, begun), size, capacity)


@kernel
def _emptiest_first_tree(
    lengths: Int32,
    counts: Int64,
    capacity: int,
    slots: int,
    begun: int,
    parents: Out[Int32],
    kinds: Out[Int32],
    run_copies: Out[Int32],
    depths: Out[Int32],
    packs: Out[Int64],
    words: Out[UInt64],
    summary: Out[UInt64],
    heads: Out[Int32],
    following: Out[Int32],
    free: Out[Int64],
) -> int:
    """Grow the tree; return its number of nodes, or -1 if the arrays are too small for it.

    parents, kinds, run_copies, depths: of each node, see `paths`. packs: those that end there.
    words, summary: bit f is set if there are packs with f tokens and slots left. heads: fill ->
    newest node with that fill, or -1; `following` chains the others. free: slots left of each node.
    """
    nodes = 0
    for k in range(lengths.size):
        length, left = lengths[k], counts[k]
        while left > 0:
            if nodes == packs.size:
                return -1
            fill, node, slots_left = next_set(words, summary, 0), -1, slots
            if begun > 0:
                taken, fill = smaller(begun, left), 0
                begun -= taken
            elif fill < 0 or fill + length > capacity:
                taken, fill = 1, 0
            else:
                node = heads[fill]
                taken, slots_left = smaller(packs[node], left), free[node]
                packs[node] -= taken
                if packs[node] == 0:
                    heads[fill] = following[node]
                    if heads[fill] < 0:
                        put_bit(words, summary, fill, False)
            left -= taken
            parents[nodes], kinds[nodes], run_copies[nodes] = node, k, 1
            depths[nodes] = 1
            if node >= 0:
                depths[nodes] += depths[node]
            packs[nodes], free[nodes] = taken, slots_left - 1
            if free[nodes] > 0:
                following[nodes], heads[fill + length] = heads[fill + length], nodes
                put_bit(words, summary, fill + length, True)
            nodes += 1
    return nodes
