"""Plan one window: cut documents into segments, and segments into packs. No token moves."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config.options import PackOptions
from ..packing.api import pack_lengths
from ..packing.kernels.common import interpreted, shuffle
from ..packing.kernels.deal import emptiest, permuted
from ..packing.kernels.stream import sort_packs
from ..packing.plan import PackPlan
from ..schemas.arrays import Int32, Int64
from ..schemas.cost import Cost
from ..schemas.tokens import Documents
from ..support.hashing import Purpose, stream
from .account import BATCH, padding
from .cut import cut, padded, wrap
from .types import Cutting, Packs, Segments

Planner = Callable[[Int32, int], PackPlan]
"""A packer of the user: f(lengths int32 [segments], max_length) -> PackPlan. It is checked."""


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Rules of `plan_window`.

    options: in an epoch above 0 documents get other neighbours. batch: documents that are padded to
    their longest, in figures.
    """

    cutting: Cutting
    options: PackOptions
    batch: int = BATCH

    @property
    def cost(self) -> Cost:
        """Cost of a segment, of which ranks get equal parts."""
        return Cost(*self.options.pack_order.cost)

    def arranged(self, plan: PackPlan, seed: int) -> PackPlan:
        """The packs of a plan in the order that the options name."""
        order = self.options.pack_order
        return plan.arranged(order.name, seed, order.ranks, self.cost)


def window_seed(seed: int, number: int, split: str) -> int:
    """Seed of one window and split, which fits in int64. seed: of the build."""
    return int(stream(seed, Purpose.WINDOW, number, int(split == "validation"))) >> 1


def plan_window(
    documents: Documents, packing: Packing, seed: int, planner: Planner | None = None
) -> Packs:
    """Plan the documents of one window. Raises TooLongError with overflow error, or ConfigError."""
    tokens = int(documents.length.sum(dtype=np.int64))
    most = len(documents) + tokens // packing.cutting.max_length  # segments, but for strides
    with interpreted(most, packing.cutting.max_length):
        return _plan(documents, packing, seed, planner)


def _plan(documents: Documents, packing: Packing, seed: int, planner: Planner | None) -> Packs:
    stored: Int64 | slice = slice(None)  # the documents in their order before
    wrapped = packing.cutting.wrapped and planner is None
    if packing.options.epoch and (planner is not None or wrapped):
        visit: NDArray[Any] = np.arange(len(documents), dtype=np.int32)
        shuffle(visit, 0, len(visit), stream(seed, Purpose.WINDOW_ORDER))
        if packing.cutting.pairs:  # each pair where its first side is
            first = np.maximum.accumulate(np.where(documents.part != 1, np.arange(len(visit)), 0))
            visit = np.argsort(np.argsort(visit)[first], kind="stable")
        documents, stored = documents.take(visit), np.argsort(visit)
    segments, lost = cut(documents, packing.cutting)
    if wrapped:
        segments, offsets, lost = wrap(documents, segments, lost, packing.cutting.max_length)
        order = np.arange(len(segments))
        plan = PackPlan(segments.count, packing.cutting.max_length, order, offsets)
        plan = packing.arranged(plan, seed)
    elif planner is not None:
        plan = _planned_by(planner, segments, packing, seed)
    else:
        plan = _planned(segments, packing, seed)
    kept = np.where(lost.of_documents < documents.length, documents.length, 0)
    kept, part = kept[stored], documents.part[stored]
    if packing.cutting.pairs:  # a pair is one document
        kept = np.add.reduceat(kept, np.flatnonzero(part != 1))
    figures = {
        "bias": plan.bias,
        "straggler": plan.straggler(packing.options.pack_order.ranks, packing.cost),
        "padding_of_batch": padding(kept, plan.max_length, packing.batch),
    }
    large = _large(plan, segments, packing, seed) if packing.options.min_pack_tokens else plan
    return Packs(
        documents=documents,
        segments=segments,
        lost=lost,
        padded=plan.lengths,
        order=large.order,
        offsets=large.offsets,
        planned=plan.num_packs,
        bound=plan.bound,
        measured=figures,
    )


def _planned_by(planner: Planner, segments: Segments, packing: Packing, seed: int) -> PackPlan:
    multiple, most = packing.cutting.multiple, packing.cutting.max_length
    lengths = padded(segments.lengths, multiple).astype(np.int32)
    made = planner(lengths, most)
    rules = (segments.group, segments.atom, packing.options.max_segments)
    plan = PackPlan(lengths, most, made.order, made.offsets, *rules)
    plan.check()
    order, offsets = made.order.astype(np.int64), made.offsets.astype(np.int64)
    sort_packs(order, offsets)
    return packing.arranged(replace(plan, order=order, offsets=offsets), seed)


def _planned(segments: Segments, packing: Packing, seed: int) -> PackPlan:
    options = packing.options
    return pack_lengths(
        padded(segments.lengths, packing.cutting.multiple),
        packing.cutting.max_length,
        options.packer.name,
        seed,
        order=options.pack_order.name,
        shuffle_documents=options.shuffle_documents,
        max_segments_per_pack=options.max_segments,
        groups=segments.group,
        atoms=segments.atom,
        num_packs=options.packer.packs,
        balance_ranks=options.pack_order.ranks,
        cost=packing.cost,
        repack=options.epoch > 0,
    )


def _large(plan: PackPlan, segments: Segments, packing: Packing, seed: int) -> PackPlan:
    """The plan without packs of fewer than min_pack_tokens tokens, padding not counted."""
    if not plan.num_packs:
        return plan
    tokens = np.add.reduceat(segments.lengths[plan.order], plan.offsets[:-1], dtype=np.int64)
    enough = np.flatnonzero(tokens >= packing.options.min_pack_tokens)
    if len(enough) == plan.num_packs:
        return plan
    order, offsets = permuted(plan.order, plan.offsets, enough)
    plan = replace(plan, order=order, offsets=offsets)
    balanced = packing.options.pack_order.name == "balanced"
    return packing.arranged(plan, seed) if balanced else plan


def of_multiple(packs: Packs, multiple: int, fill: bool, order: str) -> Packs:
    """The packs as a multiple: the emptiest left out, or filler packs added.

    With order balanced the last packs are left out, so that groups of ranks stay together.
    """
    over = len(packs) % multiple
    if not over:
        return packs
    if fill:
        return packs.filled(multiple - over)
    if order == "balanced":
        return packs.take(np.arange(len(packs) - over))
    return packs.take(np.setdiff1d(np.arange(len(packs)), emptiest(packs.lengths, over)))
