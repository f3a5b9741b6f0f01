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


class EpochOrder:
    """Packs 0..n-1 in the order of one epoch; order.take([0, 1]) gives the first two packs.

    packs_per_shard: in stored order. outputs: number of shards of each output. window: shards whose
    packs are mixed; 0 keeps stored order.
    """

    def __init__(
        self,
        packs_per_shard: tuple[int, ...],
        outputs: tuple[int, ...],
        *,
        seed: int,
        epoch: int,
        window: int,
    ) -> None:
        self.packs = sum(packs_per_shard)
        self._firsts = [*accumulate(packs_per_shard, initial=0)]
        self._key = _hash(_hash(np.array([seed % 2**64], np.uint64)) + np.uint64(epoch))
        self._shuffle = window > 0
        self.windows = list[list[int]]()
        for end, count in zip(accumulate(outputs), outputs, strict=True):
            shards = np.arange(end - count, end)
            if self._shuffle:
                shards = _permutation(shards, self._key + np.uint64(1))
            each = max(window, 1)
            self.windows += [shards[at : at + each].tolist() for at in range(0, count, each)]
        sizes = (sum(packs_per_shard[shard] for shard in shards) for shards in self.windows)
        self._ends = [*accumulate(sizes)]
        # Two, because a batch may cross the end of a window.
        self._packs_of = lru_cache(maxsize=2)(self._make_window)

    def window_at(self, place: int) -> int:
        """The number of the window that holds a place of the order."""
        return bisect_right(self._ends, place)

    def take(self, places: Int64) -> list[int]:
        """Stored numbers of the packs at ascending places of the order, each below `packs`."""
        numbers: list[int] = []
        while len(places):
            window = self.window_at(int(places[0]))
            inside = int(np.searchsorted(places, self._ends[window]))
            first = self._ends[window - 1] if window else 0
            numbers += self._packs_of(window)[places[:inside] - first].tolist()
            places = places[inside:]
        return numbers

    def every(self) -> Int64:
        """Stored numbers of all packs in this order, int64 [packs]."""
        windows = [self._make_window(window) for window in range(len(self.windows))]
        return np.concatenate([np.empty(0, np.int64), *windows])

    def _make_window(self, window: int) -> Int64:
        shards = self.windows[window]
        packs = [np.arange(self._firsts[shard], self._firsts[shard + 1]) for shard in shards]
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

    def places(self, rank: int, step: int) -> Int64:
        """Places of a rank's packs at a step, ascending."""
        first = self._start + step * self._size
        return np.arange(first + rank, first + self._size, self._world_size)


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

    def places(self, rank: int, step: int) -> Int64:
        """Places of a rank's packs at a step, ascending."""
        run = step * self._world_size + rank
        if run >= len(self._bounds) - 1:
            return np.array([self._bounds[-1]])
        return np.arange(self._bounds[run], self._bounds[run + 1])


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
