"""The order of an epoch: each pack's place is a pure function of the seed and the epoch.

Shards are shuffled, then packs within each window of neighbouring shards: random enough to train
on, local enough that the next window can be read ahead. Outputs of a list follow one another, each
shuffled within itself. The order is global and ranks take their share of it, so a place is one
integer with the same meaning at every world size. Random numbers are hashes of counters
(splitmix64), so they have no state and depend on no library version. Memory: eight bytes for each
pack of a window.
"""

from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ..schemas.arrays import Int64
from .shards import PackedShards


class EpochOrder:
    """Packs 0..n-1 in the order of one epoch; order.pack_at(0) is the first of them.

    window: shards whose packs are mixed; 0 keeps stored order. Those of a window and of the next
    are read ahead when a pack of the window is first asked for.
    """

    def __init__(self, shards: PackedShards, seed: int, epoch: int, window: int) -> None:
        counts, sizes = shards.packs_per_shard, shards.shards_per_output
        self.packs = len(shards)
        self._firsts = [*accumulate(counts, initial=0)]
        self._key = _hash(_hash(np.array([seed % 2**64], np.uint64)) + np.uint64(epoch))
        self._shuffle = window > 0
        self._windows = list[list[int]]()
        for end, size in zip(accumulate(sizes), sizes, strict=True):
            of_output = np.arange(end - size, end)
            if self._shuffle:
                of_output = _permutation(of_output, self._key + np.uint64(1))
            each = max(window, 1)
            self._windows += [of_output[at : at + each].tolist() for at in range(0, size, each)]
        packs = (sum(counts[shard] for shard in of_window) for of_window in self._windows)
        self._begins = [*accumulate(packs, initial=0)]
        self._read_ahead = shards.read_ahead
        # Two, because a batch may cross the end of a window.
        self._opened = lru_cache(maxsize=2)(self._open)

    def pack_at(self, place: int) -> int:
        """Stored number of the pack at a place of the order, 0 to `packs` - 1."""
        window = bisect_right(self._begins, place) - 1
        return int(self._opened(window)[place - self._begins[window]])

    def every(self) -> Int64:
        """Stored numbers of all packs in this order, int64 [packs]."""
        windows = [self._packs_of(window) for window in range(len(self._windows))]
        return np.concatenate([np.empty(0, np.int64), *windows])

    def _open(self, window: int) -> Int64:
        self._read_ahead([shard for each in self._windows[window : window + 2] for shard in each])
        return self._packs_of(window)

    def _packs_of(self, window: int) -> Int64:
        packs = [np.arange(*self._firsts[shard : shard + 2]) for shard in self._windows[window]]
        joined = np.concatenate(packs)
        return _permutation(joined, self._key + np.uint64(2)) if self._shuffle else joined


class PackSteps:
    """Steps of an epoch with equally many packs in each batch.

    Global batch s is the each * world_size places from start + s * each * world_size on, and rank r
    takes places r, r + world_size, ... of these. fill: the last batch may lack packs; their places
    are `packs` or more.

    Example: 10 packs, each 2, world_size 2 -> 2 steps; rank 1 has places [1, 3], [5, 7]
    """

    def __init__(self, packs: int, each: int, start: int, world_size: int, fill: bool) -> None:
        self._packs, self._start, self._world_size = packs, start, world_size
        self._size = each * world_size
        rest = packs - start
        self._steps = -(-rest // self._size) if fill else rest // self._size

    def __len__(self) -> int:
        return self._steps

    def end(self, step: int) -> int:
        """First place after the global batch at a step."""
        return min(self._start + (step + 1) * self._size, self._packs)

    def places(self, rank: int, step: int) -> range:
        """Places of a rank's packs at a step, ascending."""
        first = self._start + step * self._size
        return range(first + rank, first + self._size, self._world_size)


class TokenSteps:
    """Steps of an epoch with batches of at most `budget` tokens.

    The order is cut into runs that are as long as fits, and global batch s has the runs
    s * world_size, s * world_size + 1, ...: one for each rank. The runs do not depend on the number
    of ranks, and those after any of them are the same when the order is cut from there on.

    tokens: of each pack, in the order of the epoch. The rest: see PackSteps.

    Example: tokens [5, 3, 4, 4, 6], budget 8, world_size 2 -> packs [0, 1] and [2, 3], then [4]
    """

    def __init__(self, tokens: Int64, budget: int, start: int, world_size: int, fill: bool) -> None:
        self._bounds = [start + bound for bound in _next_fit_bounds(tokens[start:], budget)]
        self._world_size, runs = world_size, len(self._bounds) - 1
        self._steps = -(-runs // world_size) if fill else runs // world_size

    def __len__(self) -> int:
        return self._steps

    def end(self, step: int) -> int:
        """First place after the global batch at a step."""
        return self._bounds[min((step + 1) * self._world_size, len(self._bounds) - 1)]

    def places(self, rank: int, step: int) -> range:
        """Places of a rank's packs at a step, ascending."""
        run = step * self._world_size + rank
        if run >= len(self._bounds) - 1:
            return range(self._bounds[-1], self._bounds[-1] + 1)
        return range(self._bounds[run], self._bounds[run + 1])


def _next_fit_bounds(tokens: Int64, budget: int) -> list[int]:
    """Bounds of runs of at most `budget` tokens, each as long as fits: 0, ..., len(tokens).

    Example: tokens=[5, 3, 4, 4, 6], budget=8 -> [0, 2, 4, 5]
    """
    before = np.append(0, np.cumsum(tokens))
    following = np.searchsorted(before, before + budget, side="right").data
    bounds = [0]
    while bounds[-1] < len(tokens):
        bounds.append(int(following[bounds[-1]]) - 1)
    return bounds


def _permutation(values: Int64, key: NDArray[np.uint64]) -> Int64:
    """Sort the values by a keyed hash: every order is equally likely, except for 2^-64 ties."""
    return values[np.argsort(_hash(values.astype(np.uint64) + _hash(key)), kind="stable")]


def _hash(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Output function of splitmix64.

    Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014.
    """
    x = x * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
