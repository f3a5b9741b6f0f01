"""Draw documents of a source for a mix, by a hash of seed and document.

A draw takes complete copies of all documents, and one more copy of the documents before a place in
the order of hashes. A histogram of that order finds the place, so nothing is stored per document of
the input. A few documents after the place fill the remaining tokens, each taken if it fits. Except
for these, a smaller draw is part of a larger one. A later draw of the same documents takes those
with the fewest copies first.

Example: 100 documents of 10 tokens, 1,234 wanted -> each once, and those with the 23 lowest hashes
once more.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packprep.packing.kernels.compiled import Out, kernel
from packprep.support.arrays import Bools, Int64
from packprep.support.hashing import Purpose, mix, stream

BUCKETS = 1 << 12
_SHIFT = np.uint64(64 - 12)
# documents in memory that may fill the remaining tokens; more would not fit better
_CANDIDATES = 100_000


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Copies to take of each document.

    times: copies that every document has at the end. below: documents in buckets before this one
    have one more. more: ids of other documents that have one more.
    """

    times: int
    below: int
    more: Int64

    def copies(self, ids: Int64, bucket: Int64, sizes: Int64, drawn: Int64) -> Int64:
        """Copies taken of each document, [documents]; none of a document of 0 tokens.

        drawn: copies that earlier draws have taken.
        """
        partly = (drawn <= self.times) & ((bucket < self.below) | np.isin(ids, self.more))
        taken: Int64 = np.where(sizes > 0, np.maximum(self.times - drawn, 0) + partly, 0)
        return taken


@dataclass(frozen=True, kw_only=True)
class DrawEnd:
    """End of a draw in the order of hashes.

    times: see `Draw`. Buckets before `first` are drawn completely, and `room` tokens from buckets
    first..last - 1.
    """

    times: int
    first: int
    last: int
    room: int


def hashes(seed: int, ids: Int64) -> NDArray[np.uint64]:
    """The place of each document in the order of the draw."""
    return mix(stream(seed, Purpose.DRAW), ids)


def buckets(hashed: NDArray[np.uint64]) -> Int64:
    """Bucket of each hash, 0 to BUCKETS - 1, [documents]."""
    return (hashed >> _SHIFT).astype(np.int64)


def place(wanted: int, pools: Mapping[int, tuple[Int64, Int64]]) -> DrawEnd:
    """The end of a draw of `wanted` tokens, which takes documents with the fewest copies first.

    pools: by the copies that earlier draws have taken, tokens and documents in each bucket,
    [BUCKETS] each.
    """
    tokens, documents = np.zeros((2, BUCKETS), np.int64)
    rest, times = wanted, 0
    levels = sorted(level for level, (sizes, _) in pools.items() if sizes.any())
    if not levels:
        return DrawEnd(times=0, first=0, last=0, room=0)
    for level, following in zip(levels, [*levels[1:], None], strict=True):
        tokens, documents = tokens + pools[level][0], documents + pools[level][1]
        more, total = rest // int(tokens.sum()), int(tokens.sum())
        if following is not None:
            more = min(more, following - level)
        times, rest = level + more, rest - more * total
        if times != following:
            break
    ends = np.cumsum(tokens)
    first = int(np.searchsorted(ends, rest, side="right")) if rest else 0
    room = rest - (int(ends[first - 1]) if first else 0)
    behind = np.cumsum(documents[first:])
    last = first + int(np.searchsorted(behind, _CANDIDATES)) + 1 if room else first
    return DrawEnd(times=times, first=first, last=min(last, BUCKETS), room=room)


def finish_draw(
    end: DrawEnd, candidates: Iterable[tuple[NDArray[np.uint64], Int64, Int64]]
) -> Draw:
    """The draw that ends at `end`.

    candidates: (hash, id, tokens) of the documents in buckets first..last - 1. Documents of one id,
    the turns of a row, are drawn together.
    """
    parts = list(candidates) or [
        (np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64))
    ]
    hashed, ids, sizes = (np.concatenate(column) for column in zip(*parts, strict=True))
    ids, firsts, row = np.unique(ids, return_index=True, return_inverse=True)
    hashed, sizes = hashed[firsts], np.bincount(row, sizes, len(ids)).astype(np.int64)
    order = np.argsort(hashed)
    taken = np.zeros(order.size, np.bool_)
    _fit(sizes[order], end.room, taken)
    return Draw(times=end.times, below=end.first, more=np.sort(ids[order][taken]))


@kernel
def _fit(sizes: Int64, room: int, taken: Out[Bools]) -> None:
    """Mark documents that fit into the room one after another; others are skipped.

    Example: sizes=[5, 3, 1], room=4 -> the last two.
    """
    for document in range(sizes.size):
        if 0 < sizes[document] <= room:
            taken[document] = True
            room -= sizes[document]
