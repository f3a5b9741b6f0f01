"""The result of packing: which documents are in which pack, and how good the plan is.

Figures are computed when they are first used, in one pass over the plan.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..schemas.arrays import Int32, Int64
from ..schemas.cost import ATTENTION_COST, Cost
from ..support.errors import ConfigError


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

    @cached_property
    def fills(self) -> Int64:
        """Tokens in each pack, int64 [packs]."""
        from .kernels.measure import placed_fills

        return placed_fills(self._placed, self.offsets)

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
        """Lower bound on the packs of any plan, the best that packprep.packing.bounds proves."""
        from .bounds import lower_bound

        return lower_bound(
            self.lengths, self.max_length, self.max_segments_per_pack, self.groups, self.atoms
        )

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
        from .kernels.measure import log_variances

        within, total = log_variances(self._placed, self.offsets)
        free = self.lengths.size - self.num_packs
        if free <= 0 or total <= 1e-24 * self.lengths.size:  # equal lengths, but for rounding
            return 0.0
        return 1.0 - (within / free) / (total / (self.lengths.size - 1))

    def costs(self, cost: Cost | tuple[float, float] = ATTENTION_COST) -> NDArray[np.float64]:
        """Cost of each pack, float64 [packs].

        cost: a `packprep.loaders.Cost`, or (a, b) for a * tokens + b * sum(length**2).
        """
        from .kernels.measure import placed_costs

        return placed_costs(self._placed, self.offsets, Cost(*cost))

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
        steps = (
            costs[: costs.size // ranks * ranks].reshape(-1, ranks)
            if costs.size >= ranks
            else costs[None]
        )
        return float((steps.max(axis=1) / steps.mean(axis=1)).mean())

    def check(self) -> None:
        """Raise ConfigError unless every document is in one pack, and packs keep the constraints.

        These are max_length, max_segments_per_pack, groups and atoms.
        """
        from .kernels.measure import first_fault

        documents = self.lengths.size
        for name, values in (("order", self.order), ("offsets", self.offsets)):
            if (
                not isinstance(values, np.ndarray)
                or values.ndim != 1
                or values.dtype.kind not in "iu"
            ):
                raise ConfigError(
                    f"{name} of the plan must be a 1-D integer array; got {_describe(values)}"
                )
        if self.order.size != documents:
            raise ConfigError(
                f"the plan orders {self.order.size:,} documents but there are {documents:,}"
            )
        if not self.offsets.size or self.offsets[0] != 0 or self.offsets[-1] != documents:
            ends = f"{self.offsets[0]}..{self.offsets[-1]}" if self.offsets.size else "nothing"
            raise ConfigError(
                f"offsets of the plan go {ends} but must go from 0 to {documents}, the number of "
                "documents"
            )
        fault, pack, value = first_fault(
            np.ascontiguousarray(self.lengths, np.int32),
            np.ascontiguousarray(self.order, np.int64),
            np.ascontiguousarray(self.offsets, np.int64),
            self.max_length,
        )
        if fault == 1:
            raise ConfigError(f"pack {pack} of the plan has no documents: offsets must rise")
        if fault == 2:
            raise ConfigError(
                f"pack {pack} of the plan names document {value}; documents are 0..{documents - 1}"
            )
        if fault == 3:
            raise ConfigError(
                f"document {value} is in the plan twice, the second time in pack {pack}"
            )
        if fault == 4:
            raise ConfigError(
                f"pack {pack} of the plan has {value:,} tokens but a pack holds {self.max_length:,}"
            )
        self._check_constraints()

    def _check_constraints(self) -> None:
        sizes = np.diff(self.offsets)
        limit = self.max_segments_per_pack
        if limit is not None and (over := np.flatnonzero(sizes > limit)).size:
            raise ConfigError(
                f"pack {over[0]} of the plan has {sizes[over[0]]:,} documents but a pack holds "
                f"{limit:,}"
            )
        pack = np.repeat(np.arange(self.num_packs), sizes)  # of each place in the order
        if self.groups is not None:
            group = self.groups[self.order]
            mixed = np.flatnonzero((pack[1:] == pack[:-1]) & (group[1:] != group[:-1]))
            if mixed.size:
                first, second = self.order[mixed[0] : mixed[0] + 2]
                raise ConfigError(
                    f"pack {pack[mixed[0]]} of the plan has documents {first} and {second}; they "
                    "are of two groups: expected packs of one group"
                )
        if self.atoms is not None:
            pack[self.order] = pack.copy()  # of each document
            parted = (self.atoms[1:] == self.atoms[:-1]) & (pack[1:] != pack[:-1])
            if parted.any():
                first = int(np.argmax(parted))
                raise ConfigError(
                    f"the plan puts documents {first} and {first + 1} into two packs; they are one "
                    "atom, such as the sides of a pair: expected the same pack"
                )


def _describe(values: object) -> str:
    if isinstance(values, np.ndarray):
        return f"{values.dtype} of shape {values.shape}"
    return type(values).__name__
