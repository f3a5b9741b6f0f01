"""The result of packing: which documents stand in which pack, and how good that is.

Nothing but the four fields is stored; every figure is computed when first asked for, in one pass
over the plan.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from packprep.packing.account import Sums
from packprep.support.arrays import Int32, Int64
from packprep.support.errors import ConfigError

ATTENTION_COST = (24576.0, 1.0)
"""a, b of a pack's cost a * tokens + b * sum(segment**2): a 7B transformer, a = 6 x its width."""


@dataclass(frozen=True)
class PackPlan:
    """Pack p holds the documents order[offsets[p]:offsets[p + 1]].

    lengths: int32 [documents], tokens. max_length: tokens a pack may hold. order: int64
    [documents], document numbers, rising inside a pack in the plans pack_lengths returns. offsets:
    int64 [packs + 1]. groups, atoms, max_segments_per_pack: constraints the plan obeys, as given to
    pack_lengths; the bound respects them.

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
        from packprep.packing.kernels.measure import pack_fills

        return pack_fills(self.lengths, self.order, self.offsets)

    @property
    def utilization(self) -> float:
        """Tokens / (packs x max_length), 0..1; 1 for a plan without packs."""
        tokens = int(self.lengths.sum(dtype=np.int64))
        return Sums(
            tokens_packed=tokens, packs=self.num_packs, max_length=self.max_length
        ).utilization

    @cached_property
    def _placed(self) -> Int32:
        """int32 [documents], lengths in the order of packs."""
        from packprep.packing.kernels.measure import placed

        return placed(self.lengths, self.order)

    @cached_property
    def bound(self) -> int:
        """A number of packs that no plan can go below.

        The best lower bound packprep.packing.bounds can prove.
        """
        from packprep.packing.bounds import lower_bound

        return lower_bound(
            self.lengths, self.max_length, self.max_segments_per_pack, self.groups, self.atoms
        )

    @property
    def gap(self) -> int:
        """Packs over the bound; 0 means that the plan is proven optimal."""
        return self._sums.gap

    @property
    def gap_share(self) -> float:
        """gap / bound; 0.0001 is a hundredth of a percent."""
        return self._sums.gap_share

    @property
    def _sums(self) -> Sums:
        return Sums(planned=self.num_packs, bound=self.bound)

    @cached_property
    def bias(self) -> float:
        """Share of the variance of log length that the pack explains.

        Adjusted for the number of packs.

        0: documents meet as if drawn at random; 1: packs hold equal lengths only; negative: long
        ones meet short ones. Epsilon squared: 1 - (within / (documents - packs)) / (total /
        (documents - 1)); 0 where that is undefined.
        """
        from packprep.packing.kernels.measure import log_variances

        within, total = log_variances(self._placed, self.offsets)
        free = self.lengths.size - self.num_packs
        if free <= 0 or total <= 1e-24 * self.lengths.size:  # equal lengths, but for rounding
            return 0.0
        return 1.0 - (within / free) / (total / (self.lengths.size - 1))

    def costs(self, cost: tuple[float, float] = ATTENTION_COST) -> NDArray[np.float64]:
        """a * tokens + b * sum(length**2) of each pack for cost = (a, b), float64 [packs]."""
        from packprep.packing.kernels.measure import placed_costs

        return placed_costs(self._placed, self.offsets, float(cost[0]), float(cost[1]))

    def straggler(self, ranks: int, cost: tuple[float, float] = ATTENTION_COST) -> float:
        """Factor by which steps take longer than with equal work.

        max / mean cost of `ranks` neighbours, averaged over steps.

        1 is perfect. Packs past the last whole step are not counted, unless there is no whole step.
        """
        if ranks < 1:
            raise ConfigError(f"ranks is {ranks} but at least 1 rank steps")
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
        """Raises ConfigError with the first thing wrong, if any.

        Every document in one pack, none over max_length.
        """
        from packprep.packing.kernels.measure import first_fault

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
            self.lengths,
            self.order.astype(np.int64, copy=False),
            self.offsets.astype(np.int64, copy=False),
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


def _describe(values: object) -> str:
    if isinstance(values, np.ndarray):
        return f"{values.dtype} of shape {values.shape}"
    return type(values).__name__
