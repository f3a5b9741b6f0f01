"""The result of packing: which documents are in which pack, and how good the plan is.

Figures are computed when they are first used, in one pass over the plan. Sums of fractions are
taken from left to right, so they are the same on every machine. Lower bounds on the packs of any
plan are proven from the lengths alone, in a few milliseconds for thousands of distinct lengths.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..schemas.arrays import Float64, Int32, Int64
from ..schemas.cost import ATTENTION_COST, Cost
from ..support.errors import ConfigError, brief
from .kernels.deal import by_first_document, permuted, sequence

_FAMILIES = 20  # dual feasible functions tried; the first few nearly always decide
_CELLS = 16_000  # kinds times functions that are tried at once; their arrays fit the caches


@dataclass(frozen=True)
class PackPlan:
    """Pack p holds the documents order[offsets[p]:offsets[p + 1]].

    lengths: int32 [documents], tokens.
    max_length: maximum tokens in a pack.
    order: int64 [documents], document numbers, ascending inside a pack in plans of pack_lengths.
    offsets: int64 [packs + 1].
    groups, atoms, max_segments_per_pack: constraints of the plan, see pack_lengths; the bound
    respects them.

    >>> plan = pack_lengths([5, 6, 2, 3], 8, order="input")
    >>> [plan.order[a:b].tolist() for a, b in zip(plan.offsets, plan.offsets[1:])]
    [[0, 3], [1, 2]]
    """

    lengths: Int32
    max_length: int
    order: Int64
    offsets: Int64
    groups: NDArray[np.integer] | None = field(default=None, repr=False)
    atoms: NDArray[np.integer] | None = field(default=None, repr=False)
    max_segments_per_pack: int | None = None

    @property
    def num_packs(self) -> int:
        return self.offsets.size - 1

    @property
    def fills(self) -> Int64:
        """Tokens in each pack, int64 [packs]."""
        return np.diff(np.append(0, np.cumsum(self._placed, dtype=np.int64))[self.offsets])

    @property
    def utilization(self) -> float:
        """Tokens / (packs x max_length), 0..1; 1 for a plan without packs."""
        places = self.num_packs * self.max_length
        return int(self.lengths.sum(dtype=np.int64)) / places if places else 1.0

    @cached_property
    def _placed(self) -> Int32:
        """Lengths in the order of packs, int32 [documents]."""
        return self.lengths[self.order]

    @cached_property
    def bound(self) -> int:
        """Lower bound on the packs of any plan: that of their tokens, or a better one."""
        full = -(-int(self.lengths.sum(dtype=np.int64)) // self.max_length)
        return full if full == self.num_packs else self._proven()

    def _proven(self) -> int:
        """See `bound_of_counts`, summed over groups."""
        lengths, groups = self.lengths, self.groups
        documents = np.ones(lengths.size, np.int64)
        if self.atoms is not None and lengths.size:
            first = np.flatnonzero(np.diff(self.atoms, prepend=self.atoms[0] - 1))
            lengths = np.add.reduceat(lengths, first).astype(np.int32)
            documents = np.diff(np.append(first, self.atoms.size))
            groups = None if groups is None else groups[first]
        members: list[Any] = [slice(None)]
        if groups is not None:
            by_group = np.argsort(groups, kind="stable")
            members = np.split(by_group, np.flatnonzero(np.diff(groups[by_group])) + 1)
        bound = 0
        for some in members:
            counts = np.bincount(lengths[some])
            kinds = np.flatnonzero(counts)[::-1].astype(np.int32)
            total, slots = int(documents[some].sum()), self.max_segments_per_pack
            bound += bound_of_counts(kinds, counts[kinds], self.max_length, total, slots)
        return bound

    @property
    def gap(self) -> int:
        """Packs above the bound; 0 means that the plan is proven optimal."""
        return self.num_packs - self.bound

    @property
    def gap_share(self) -> float:
        """gap / bound; 0.0001 is a hundredth of a percent."""
        return self.gap / self.bound if self.bound else 0.0

    @cached_property
    def bias(self) -> float:
        """Share of the variance of log length explained by the pack, adjusted for their number.

        0: documents of a pack are like a random draw; 1: packs have equal lengths only; negative:
        packs combine long and short ones. Epsilon squared: 1 - (within / (documents - packs)) /
        (total / (documents - 1)); 0 if that is undefined.
        """
        lengths, documents = self._placed, self.lengths.size
        free = documents - self.num_packs
        if free <= 0:
            return 0.0
        # A logarithm costs more than all other work, and many documents have few different lengths.
        table = np.zeros(int(lengths.max()) + 1)
        different = np.flatnonzero(np.bincount(lengths))
        table[different] = [math.log(length) for length in different.tolist()]
        table -= _sums(table, lengths, np.array([0, documents]))[0] / documents
        sums, squares = (_sums(each, lengths, self.offsets) for each in (table, table * table))
        within = np.maximum(0.0, squares - sums * sums / np.maximum(np.diff(self.offsets), 1))
        total = float(np.cumsum(squares)[-1])
        if total <= 1e-24 * documents:  # equal lengths, but for rounding
            return 0.0
        return 1.0 - (float(np.cumsum(within)[-1]) / free) / (total / (documents - 1))

    def costs(self, cost: Cost | tuple[float, float] = ATTENTION_COST) -> Float64:
        """Cost of each pack, float64 [packs].

        cost: a `packprep.loaders.Cost`, or (a, b) for a * tokens + b * sum(length**2).
        """
        table = Cost(*cost).flops(np.arange(self.lengths.max(initial=0) + 1))
        return _sums(table, self._placed, self.offsets)

    def straggler(self, ranks: int, cost: Cost | tuple[float, float] = ATTENTION_COST) -> float:
        """Factor by which steps take longer than with equal work; 1 is perfect.

        max / mean cost of `ranks` consecutive packs, averaged over steps. Packs after the last full
        step are not counted, unless there is no full step.
        """
        if ranks < 1:
            raise ConfigError(f"ranks is {ranks}, expected at least 1")
        costs = self.costs(cost)
        if not costs.size:
            return 1.0
        ranks = min(ranks, costs.size)
        steps = costs[: costs.size // ranks * ranks].reshape(-1, ranks)
        return float((steps.max(axis=1) / steps.mean(axis=1)).mean())

    def arranged(self, order: str, seed: int, ranks: int, cost: Cost) -> "PackPlan":
        """The same packs in the order `order`, see `pack_lengths`."""
        if order == "input":
            packs = by_first_document(self.order, self.offsets)
        else:
            longest, work = np.zeros(0, np.int32), np.zeros(0)
            if order == "length" and self.num_packs:
                longest = np.maximum.reduceat(self._placed, self.offsets[:-1])
            if order == "balanced":
                work = self.costs(cost)
            once = np.ones(self.num_packs, np.int64)
            sorted_packs = sequence(order, once, longest, work, seed, ranks)
            packs = permuted(self.order, self.offsets, sorted_packs)
        return replace(self, order=packs[0], offsets=packs[1])

    def check(self) -> None:
        """Raise ConfigError unless every document is in one pack, and packs keep the constraints.

        These are max_length, max_segments_per_pack, groups and atoms.
        """
        order, offsets, documents = self.order, self.offsets, self.lengths.size
        for name, values in (("order", order), ("offsets", offsets)):
            if getattr(values, "ndim", 0) != 1 or values.dtype.kind not in "iu":
                raise ConfigError(
                    f"{name} of the plan is {brief(values)}, expected a 1-D array of integers"
                )
        if [*offsets[:1], *offsets[-1:]] != [0, documents] or order.size != documents:
            raise ConfigError(
                f"the plan orders {order.size:,} documents, with offsets {brief(offsets)}; "
                f"expected all {documents:,}, and offsets from 0 to their number"
            )
        sizes = np.diff(offsets).astype(np.int64)
        if (sizes < 1).any():
            raise ConfigError(
                f"pack {np.argmax(sizes < 1)} of the plan has no documents: offsets must rise"
            )
        missing = np.setdiff1d(np.arange(documents), order)
        if missing.size:
            raise ConfigError(
                f"document {missing[0]} is in no pack of the plan; each of 0..{documents - 1} must "
                "be there once"
            )
        for values, unit, most in (
            (self.fills, "tokens", self.max_length),
            (sizes, "documents", self.max_segments_per_pack),
        ):
            if most is not None and values.max(initial=0) > most:
                pack = int(np.argmax(values > most))
                raise ConfigError(
                    f"pack {pack} of the plan has {values[pack]:,} {unit} but a pack holds {most:,}"
                )
        pack_of = np.empty(documents, np.int64)
        pack_of[order] = np.repeat(np.arange(self.num_packs), sizes)
        if self.groups is not None:
            mixed = self.groups[order] != np.repeat(self.groups[order[offsets[:-1]]], sizes)
            if mixed.any():
                document = order[np.argmax(mixed)]
                raise ConfigError(
                    f"pack {pack_of[document]} of the plan has document {document}, which is of "
                    "another group than its first; expected packs of one group"
                )
        if self.atoms is not None:
            parted = (self.atoms[1:] == self.atoms[:-1]) & (pack_of[1:] != pack_of[:-1])
            if parted.any():
                first = int(np.argmax(parted))
                raise ConfigError(
                    f"the plan puts documents {first} and {first + 1} into two packs; they are one "
                    "atom, such as the sides of a pair: expected the same pack"
                )


def _sums(table: Float64, lengths: Int32, offsets: Int64) -> Float64:
    """Sum of table[length] over the documents of each pack; lengths in the order of packs."""
    pack_of = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    # bincount adds one after another, so that the sums are the same on every machine.
    sums = np.bincount(pack_of, table[lengths], minlength=offsets.size - 1)
    return sums.astype(np.float64, copy=False)


def bound_of_counts(
    kinds: Int32, counts: Int64, capacity: int, documents: int, slots: int | None
) -> int:
    """Lower bound for counts[i] items of length kinds[i]; together `documents` documents.

    kinds: descending, equal ones allowed.
    """
    best = max(
        feasible_bound(kinds, counts, capacity, _FAMILIES), over_a_third(kinds, counts, capacity)
    )
    return max(int(best), -(-int(documents) // slots) if slots else 0)


def feasible_bound(kinds: Int32, counts: Int64, capacity: int, families: int) -> int:
    """Best lower bound from dual feasible functions f: in a pack, the f of documents sum to <= 1.

    kinds: distinct lengths, descending. counts: documents of each. f_0 is length / capacity; f_k
    maps lengths between i / (k + 1) and (i + 1) / (k + 1) of the capacity to i / k. Each is tried
    with every threshold: documents shorter than the threshold count 0, those that leave no room for
    it count 1. With families = 1 this is L2.
    """
    documents, lengths = int(counts.sum()), kinds.astype(np.int64)
    # Thresholds from the shortest kind up to half of the capacity, and the kinds that leave no
    # room for each: the first `full` ones.
    thresholds = lengths[::-1][: int(np.count_nonzero(2 * lengths <= capacity))]
    full = lengths.size - np.searchsorted(lengths[::-1], capacity - thresholds, side="right")
    best = 0
    most = (1 << 62) // max(documents, 1) // max(capacity, 1)  # so that no sum overflows
    every = np.arange(min(families, most) + 1)
    rows = max(1, _CELLS // max(lengths.size, 1))
    for k in (every[first : first + rows, None] for first in range(0, every.size, rows)):
        units = capacity * np.maximum(k, 1)
        parts = lengths * (k + 1)
        # f in 1 / unit. On the border between two parts, f_k is length / capacity.
        floors = parts // capacity * capacity
        on_border = (k == 0) | (parts == floors)
        shares = np.where(on_border, lengths * np.maximum(k, 1), floors)
        sums = shares * counts
        totals = sums.sum(1, keepdims=True)
        raised = _from_zero((units - shares) * counts)[:, full]
        dropped = _from_zero(sums[:, ::-1])[:, : thresholds.size + 1]
        last = raised[:, -1:] if thresholds.size else np.zeros_like(totals)
        most_of_row = (totals + np.concatenate([raised, last], 1) - dropped).max(1, keepdims=True)
        best = max(best, int((-(-most_of_row // units)).max()))
    return best


def _from_zero(values: Int64) -> Int64:
    """Sums of the first 0, 1, 2, ... values of each row."""
    sums = np.zeros((values.shape[0], values.shape[1] + 1), np.int64)
    np.cumsum(values, axis=1, out=sums[:, 1:])
    return sums


def over_a_third(kinds: Int32, counts: Int64, capacity: int) -> int:
    """Exact number of packs for documents longer than capacity / 3; no pack holds three of them.

    Documents over capacity / 2 need a pack each. Longest first, each is combined with one of the
    others if any fits: any that fits now also fits into all later packs. The rest goes in pairs.
    """
    lengths = kinds.astype(np.int64)
    long, mid = 2 * lengths > capacity, 3 * lengths > capacity
    large, small = lengths[long], lengths[mid & ~long]
    alone, others = counts[long], _from_zero(counts[mid & ~long][None, ::-1])[0]
    # Others that fit beside each kind of long documents: those that are left of the kinds before,
    # and the new ones. An excess of long documents is not carried over.
    fit = others[np.searchsorted(small[::-1], capacity - large, side="right")]
    balance = np.append(0, fit - np.cumsum(alone))
    left = int(balance[-1] - min(0, balance.min()))
    waiting = left + int(others[-1] - (fit[-1] if fit.size else 0))
    return int(alone.sum()) + (waiting + 1) // 2
