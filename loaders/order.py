"""The order of an epoch: each pack's place is a pure function of the seed and the epoch.

Shards are shuffled, then packs within each window of neighbouring shards: random enough to train
on, local enough that the next window can be read ahead. Phases follow one another, each shuffled
within itself. The order is global and ranks take their
share of it, so a place is one integer with the same meaning at every world size. Random numbers are
hashes of counters (splitmix64), so they have no state and depend on no library version. Memory:
eight bytes for each pack of a window.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1


class EpochOrder:
    """Packs 0..n-1 in the order of one epoch; order.take([0, 1]) gives the first two packs.

    packs_per_shard: in stored order. window: shards whose packs are mixed; 0 keeps stored order.
    first_pack: number of pack 0 where packs of other plans are stored before it. phases: number of
    shards of each phase; by default all of them are one.
    """

    def __init__(
        self,
        packs_per_shard: tuple[int, ...],
        *,
        seed: int,
        epoch: int,
        window: int,
        first_pack: int = 0,
        phases: Sequence[int] = (),
    ) -> None:
        self.packs = sum(packs_per_shard)
        self._firsts = list(accumulate(packs_per_shard, initial=0))
        self._counts, self._first_pack = packs_per_shard, first_pack
        self._key = _mix(_mix(seed & _MASK) + epoch)
        shards = len(packs_per_shard)
        if window:
            self.windows = []
            for end, count in zip(accumulate(phases or [shards]), phases or [shards], strict=True):
                of_phase = np.arange(end - count, end)
                shuffled = _permutation(of_phase, _mix(self._key + 1)).tolist()
                self.windows += [
                    tuple(shuffled[first : first + window]) for first in range(0, count, window)
                ]
        else:
            self.windows = [(shard,) for shard in range(shards)]
        self._shuffle = window > 0
        self._ends = list(
            accumulate(sum(packs_per_shard[shard] for shard in shards) for shards in self.windows)
        )
        # Two, because a batch may cross the end of a window.
        self._packs_of = lru_cache(maxsize=2)(self._make_window)

    def window_at(self, place: int) -> int:
        """The number of the window that holds a place of the order."""
        return bisect_right(self._ends, place)

    def take(self, places: NDArray[np.int64]) -> list[int]:
        """Stored numbers of the packs at ascending places of the order, each below `packs`."""
        numbers: list[int] = []
        while len(places):
            window = self.window_at(int(places[0]))
            inside = int(np.searchsorted(places, self._ends[window]))
            first = self._ends[window - 1] if window else 0
            numbers += self._packs_of(window)[places[:inside] - first].tolist()
            places = places[inside:]
        return numbers

    def every(self) -> NDArray[np.int64]:
        """Stored numbers of all packs in this order, int64 [packs]."""
        windows = [self._make_window(window) for window in range(len(self.windows))]
        return np.concatenate([np.empty(0, np.int64), *windows])

    def _make_window(self, window: int) -> NDArray[np.int64]:
        shards = self.windows[window]
        packs = np.concatenate(
            [
                np.arange(self._firsts[shard], self._firsts[shard] + self._counts[shard])
                for shard in shards
            ]
        )
        if self._shuffle:
            packs = _permutation(packs, _mix(self._key + 2))
        return packs + self._first_pack


@dataclass(frozen=True, kw_only=True)
class PhaseRun:
    """Batches of one phase: `steps` global batches from place `first` on, `batch` packs a rank."""

    phase: int
    first: int
    end: int
    batch: int
    steps: int


class Schedule:
    """The steps of an epoch from a place on: a run of equal batches in each phase.

    phases: packs in the order of the epoch, and packs in a batch of one rank, of each phase. start:
    place of the first pack. fill: the last batch of a phase may lack packs.

    Example: phases [(10, 4), (3, 1)], world_size 1, no fill -> 2 steps, then 3; 2 packs are left
    out.
    """

    def __init__(
        self, phases: Sequence[tuple[int, int]], *, start: int, world_size: int, fill: bool
    ) -> None:
        self.world_size = world_size
        self.runs: list[PhaseRun] = []
        first = 0
        for phase, (packs, batch) in enumerate(phases):
            end, begin = first + packs, max(first, start)
            each = batch * world_size
            steps = -(-max(end - begin, 0) // each) if fill else max(end - begin, 0) // each
            self.runs.append(PhaseRun(phase=phase, first=begin, end=end, batch=batch, steps=steps))
            first = end
        self._ends = list(accumulate(run.steps for run in self.runs))

    def __len__(self) -> int:
        return self._ends[-1]

    def at(self, step: int) -> tuple[PhaseRun, int]:
        """The run of a step, and the number of the step in it."""
        number = min(bisect_right(self._ends, step), len(self.runs) - 1)
        return self.runs[number], step - (self._ends[number - 1] if number else 0)

    def place(self, step: int) -> int:
        """First place of the global batch at a step."""
        run, number = self.at(step)
        return min(run.first + number * run.batch * self.world_size, run.end)

    def end(self, step: int) -> int:
        """First place after the global batch at a step."""
        run, number = self.at(step)
        return min(run.first + (number + 1) * run.batch * self.world_size, run.end)

    def places(
        self, rank: int, first: int, last: int
    ) -> Iterator[tuple[PhaseRun, NDArray[np.int64]]]:
        """Places of a rank's packs at steps first to last - 1, by run: int64 [steps, batch].

        Those of the last batch of a phase may be its end or more.
        """
        while first < last:
            run, number = self.at(first)
            count = min(last - first, run.steps - number)
            steps = np.arange(number, number + count)
            yield run, rank_places(steps, run.batch, rank, self.world_size, run.first)
            first += count


class CutSchedule(Schedule):
    """The steps of an epoch from a place on, with batches that are cut at bounds.

    phases: packs in each. start: place of the first pack. each: consecutive runs between bounds
    that are one step. fill: the last batch of a phase may lack packs.
    """

    def __init__(
        self, phases: Sequence[int], *, start: int, world_size: int, each: int, fill: bool
    ) -> None:
        self.world_size, self._each, self._fill = world_size, each, fill
        self.runs, self._bounds = [], list[list[int]]()
        first = 0
        for phase, packs in enumerate(phases):
            end = first + packs
            begin = min(max(first, start), end)
            bounds = self._cut(first, begin, end)
            count = len(bounds) - 1
            steps = -(-count // each) if fill else count // each
            self.runs.append(PhaseRun(phase=phase, first=begin, end=end, batch=0, steps=steps))
            self._bounds.append(bounds)
            first = end
        self._ends = list(accumulate(run.steps for run in self.runs))

    def _cut(self, first: int, begin: int, end: int) -> list[int]:
        """Bounds of the runs from place `begin` on, of a phase of the places first to end - 1."""
        raise NotImplementedError

    def place(self, step: int) -> int:
        return self._bound(step, 0)

    def end(self, step: int) -> int:
        return self._bound(step, 1)

    def _bound(self, step: int, later: int) -> int:
        run, number = self.at(step)
        bounds = self._bounds[run.phase]
        return bounds[min((number + later) * self._each, len(bounds) - 1)]


class TokenSchedule(CutSchedule):
    """Batches of at most `budget` tokens.

    The order is cut into runs that are as long as fits, and global batch s has the runs
    s * world_size, s * world_size + 1, ...: one for each rank. The runs do not depend on the number
    of ranks, and those after any of them are the same when the order is cut from there on.

    tokens: of each pack, in the order of the epoch. The rest: see CutSchedule.

    Example: tokens [5, 3, 4, 4, 6], budget 8, world_size 2 -> packs [0, 1] and [2, 3], then [4]
    """

    def __init__(
        self,
        tokens: NDArray[np.int64],
        phases: Sequence[int],
        budget: int,
        *,
        start: int,
        world_size: int,
        fill: bool,
    ) -> None:
        self._tokens, self._budget = tokens, budget
        super().__init__(phases, start=start, world_size=world_size, each=world_size, fill=fill)

    def _cut(self, first: int, begin: int, end: int) -> list[int]:
        return [begin + place for place in next_fit_bounds(self._tokens[begin:end], self._budget)]

    def places(
        self, rank: int, first: int, last: int
    ) -> Iterator[tuple[PhaseRun, NDArray[np.int64]]]:
        for step in range(first, last):
            run, number = self.at(step)
            bounds, mine = self._bounds[run.phase], number * self.world_size + rank
            lacks = mine >= len(bounds) - 1
            yield (
                run,
                np.arange(*((run.end, run.end + 1) if lacks else bounds[mine : mine + 2]))[None],
            )


class SequenceSchedule(CutSchedule):
    """Steps that hold `wanted` sequences over all ranks on average, with as many packs on each.

    Of a phase, step s ends where the number of sequences from the phase's beginning is nearest to
    (s + 1) * wanted, among the places that leave every rank the same number of packs; so what a
    step has too much, the next has less. A step has a pack on each rank: where packs hold too many
    sequences, steps end later until packs with fewer make up for it. From an end of a step on, the
    steps are the same; from another place on, sequences are counted from there.

    sequences: of each pack, in the order of the epoch. The rest: see CutSchedule. ValueError if
    steps of one pack on each rank hold more than `wanted` on average.

    Example: sequences [3, 4, 2, 5, 3], wanted 5, world_size 1 -> packs [0], [1, 2] and [3]
    """

    def __init__(
        self,
        sequences: NDArray[np.int64],
        phases: Sequence[int],
        wanted: int,
        *,
        start: int,
        world_size: int,
        fill: bool,
    ) -> None:
        self._sequences, self._wanted = sequences, wanted
        ends = np.cumsum(phases)
        for first, end in zip(ends - phases, ends, strict=True):
            fewest = self._sequences[first:end].mean() * world_size if end > first else 0
            if fewest > wanted:
                raise ValueError(
                    f"sequences_per_step is {wanted} and one pack on each of {world_size} ranks "
                    f"holds {fewest:.1f} on average; choose more, or build shorter packs"
                )
        super().__init__(phases, start=start, world_size=world_size, each=1, fill=fill)

    @property
    def largest(self) -> int:
        """Most packs that a rank has in a step, 1 or more."""
        gaps = (int(np.diff(bounds).max(initial=1)) for bounds in self._bounds)
        return -(-max(gaps, default=1) // self.world_size)

    def _cut(self, first: int, begin: int, end: int) -> list[int]:
        bounds = self._bounds_from(first, end)
        if begin in bounds:
            return bounds[bounds.index(begin) :]
        return self._bounds_from(begin, end)

    def _bounds_from(self, first: int, end: int) -> list[int]:
        places = np.arange(first, end + 1, self.world_size)
        read = np.append(0, np.cumsum(self._sequences[first:end]))[places - first]
        most = len(places) - 1
        steps = min(int(read[-1]) // self._wanted, most)
        numbers = np.arange(1, steps + 1)
        above = np.searchsorted(read, numbers * self._wanted)
        below = np.searchsorted(read, read[np.maximum(above - 1, 0)])
        over, under = read[above] - numbers * self._wanted, numbers * self._wanted - read[below]
        nearest = np.where(over < under, above, below)
        # At least one place after the one before it, and as many before the end as steps follow.
        bounds = np.maximum.accumulate(np.maximum(nearest - numbers, 0)) + numbers
        bounds = np.append(0, np.minimum(bounds, most - steps + numbers))
        rest = [end] if self._fill and places[bounds[-1]] < end else []
        return [*places[bounds].tolist(), *rest]

    def places(
        self, rank: int, first: int, last: int
    ) -> Iterator[tuple[PhaseRun, NDArray[np.int64]]]:
        for step in range(first, last):
            run, start = self.at(step)[0], self.place(step)
            packs = -(-(self.end(step) - start) // self.world_size)
            yield run, rank_places(np.zeros(1, np.int64), packs, rank, self.world_size, start)


def next_fit_bounds(tokens: NDArray[np.int64], budget: int) -> list[int]:
    """Bounds of runs of at most `budget` tokens, each as long as fits: 0, ..., len(tokens).

    Example: tokens=[5, 3, 4, 4, 6], budget=8 -> [0, 2, 4, 5]
    """
    before = np.append(0, np.cumsum(tokens))
    following = np.searchsorted(before, before + budget, side="right").data
    bounds = [0]
    while bounds[-1] < len(tokens):
        bounds.append(int(following[bounds[-1]]) - 1)
    return bounds


def rank_places(
    steps: NDArray[np.int64], batch: int, rank: int, world_size: int, start: int = 0
) -> NDArray[np.int64]:
    """Places of a rank's packs in the global order: int64 [steps, batch], ascending.

    Global batch s is the batch * world_size places from start + s * batch * world_size. Rank r
    takes places r, r + world_size, ... of these.

    Example: steps [0, 1], batch 2, rank 0 of 3 -> [[0, 3], [6, 9]]
    """
    return start + rank + world_size * (steps[:, None] * batch + np.arange(batch))


def _permutation(values: NDArray[np.int64], key: int) -> NDArray[np.int64]:
    """Sort the values by a keyed hash: every order is equally likely, except for 2^-64 ties."""
    return values[np.argsort(_hash(values.astype(np.uint64) + np.uint64(key)), kind="stable")]


def _hash(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Output function of splitmix64.

    Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014.
    """
    x = x * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _mix(x: int) -> int:
    return int(_hash(np.array([x & _MASK], np.uint64))[0])
