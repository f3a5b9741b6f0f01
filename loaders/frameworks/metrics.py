"""Metrics of packed batches while training: speed, fill, segments, trained tokens, straggler."""

import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packprep.schemas.columns import FILLER, NO_LOSS
from packprep.schemas.plans.cost import ATTENTION_COST, Cost

from ..batch import Array, PackedBatch, Tensor

_KEPT = 4096  # batches between two reads whose costs are kept for the straggler


class PackMetrics:
    """Count the batches of a training loop, and give metrics of the time between two reads.

    Call `update(batch)` with every batch and `read()` at logging steps. Batches on a GPU are
    counted there, and only `read` waits for them.

    capacity: tokens of a full batch, such as packs_per_batch * max_length; None: no fill.
    batches_per_step: batches before the ranks wait for each other (gradient accumulation).
    cost: of a segment, such as Cost.of_config("config.json"), or (a, b): a batch costs a * places +
        b * the sum of squared segment lengths.
    peak_flops: FLOPs that the accelerator of a rank can compute in a second, such as 989e12; adds
        mfu, whose FLOPs are those of `cost`.
    group: the process group of the ranks that train on different batches; None: all ranks.
    """

    def __init__(
        self,
        capacity: int | None = None,
        *,
        batches_per_step: int = 1,
        cost: Cost | tuple[float, float] = ATTENTION_COST,
        peak_flops: float | None = None,
        group: Any = None,
    ) -> None:
        for name, value in (("capacity", capacity), ("batches_per_step", batches_per_step)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; expected a number of 1 or more")
        self._capacity = capacity
        self._batches_per_step = batches_per_step
        self._cost = Cost(*cost)
        self._peak_flops = peak_flops
        self._group = group
        self.restart()

    def restart(self) -> None:
        """Forget what was counted, and start the clock."""
        self._batches = 0
        self._tokens: Any = 0
        self._segments: Any = 0
        self._trained: Any = 0
        self._pairs: Any = 0
        self._places: deque[int] = deque(maxlen=_KEPT)
        self._attended: deque[Any] = deque(maxlen=_KEPT)
        self._paused_at: float | None = None
        self._start = time.perf_counter()

    @property
    def batches(self) -> int:
        """Batches since the last read."""
        return self._batches

    def pause(self) -> None:
        """Stop the clock until the next update: before an evaluation or a checkpoint."""
        if self._paused_at is None:
            self._paused_at = time.perf_counter()

    def update(self, batch: PackedBatch | Mapping[str, object]) -> None:
        """Count a batch before its step.

        batch: a PackedBatch, or the arguments of a transformers model as torch tensors [B, T], as
        adapters and collators make them. Padding is then what attention_mask or segment_ids mark
        by 0; filler in the packs of an output is not marked there, and counts as tokens. Segments
        are those of cu_seq_lens_q, else a segment begins where position_ids restart. ValueError
        without input_ids.
        """
        if self._paused_at is not None:
            self._start += time.perf_counter() - self._paused_at
            self._paused_at = None
        count: Any = _of_batch if isinstance(batch, PackedBatch) else _of_call
        counts: _Counts = count(batch, self._cost)
        self._batches += 1
        self._tokens = self._tokens + counts.tokens
        self._segments = self._segments + counts.segments
        self._trained = self._trained + counts.trained
        self._pairs = self._pairs + counts.pairs
        self._places.append(counts.places)
        self._attended.append(counts.attended)

    def read(self) -> dict[str, float]:
        """Metrics since the last read, of all ranks; empty without a batch. Waits for a GPU.

        tokens_per_second: tokens without padding, of all ranks.
        fill: tokens / capacity, a mean over batches; only with a capacity.
        segments_per_batch: a mean.
        trained_share: share of the tokens that have a label; only if every batch has labels.
        straggler: the factor by which steps take longer than with equal costs on all ranks, if
            costs decide; only with several ranks that had the same number of batches.
        mfu: FLOPs of the tokens without padding, three times those of the forward pass, over those
            that the ranks can compute in that time; only with peak_flops.

        If torch.distributed is initialized, all ranks of the group must call this at the same step.
        """
        sums = [float(each) for each in (self._tokens, self._segments, self._trained)]
        pairs = _listed([self._pairs])[0] if self._batches else [0] * (1 + len(self._cost.windows))
        sums.append(float(self._cost.of_pairs(sums[0], pairs)))
        costs = self._costs_of_steps()
        seconds = (self._paused_at or time.perf_counter()) - self._start
        batches = self._batches
        was_paused = self._paused_at is not None
        self.restart()
        if was_paused:
            self.pause()
        ranks = _gather(np.array([batches, *sums, seconds]), self._group)
        total, tokens, segments, trained, flops = ranks[:, :5].sum(0).tolist()
        straggler = None
        if len(ranks) > 1 and (ranks[:, 0] == batches).all() and batches:
            straggler = _straggler(_gather(costs, self._group))
        if not total:
            return {}
        longest = max(float(ranks[:, 5].max()), 1e-9)
        metrics = {"tokens_per_second": tokens / longest}
        if self._capacity is not None:
            metrics["fill"] = tokens / (total * self._capacity)
        metrics["segments_per_batch"] = segments / total
        if tokens and not np.isnan(trained):
            metrics["trained_share"] = trained / tokens
        if straggler is not None:
            metrics["straggler"] = straggler
        if self._peak_flops is not None:
            metrics["mfu"] = 3 * flops / (longest * len(ranks) * self._peak_flops)
        return metrics

    def _costs_of_steps(self) -> NDArray[np.float64]:
        """Costs of the steps since the last read, float64 [steps]."""
        places = np.array(self._places, np.float64)
        if not len(places):
            return places
        attended = np.array(_listed([*self._attended]), np.float64)
        costs: NDArray[np.float64] = self._cost.of_pairs(places, attended.T)
        return np.add.reduceat(costs, np.arange(0, len(costs), self._batches_per_step))


class _Counts(NamedTuple):
    """Of one batch: numbers, or tensors of no dimension where it is; trained: nan if unknown.

    places: tokens and padding, always an int.
    pairs, attended: sums of `Cost.pairs` without padding, and as kernels attend, [1 + windows].
    """

    tokens: Any
    segments: Any
    trained: Any
    places: int
    pairs: Any
    attended: Any


def _of_batch(batch: PackedBatch, cost: Cost) -> _Counts:
    bounds, ids = _on_host(batch.cu_seqlens), _on_host(batch.document_ids)
    lengths = _int64(bounds[1:] - bounds[:-1])
    real = lengths if batch.segment_lengths is None else _int64(_on_host(batch.segment_lengths))
    if ids is not None:
        real = real * (ids != FILLER)
    starts = _on_host(batch.tokens_before())
    attended = _joined([each.sum() for each in cost.pairs(lengths, starts)])
    pairs = attended
    if real is not lengths:
        pairs = _joined([each.sum() for each in cost.pairs(real, starts)])
    trained = _trained(batch.labels)
    return _Counts(real.sum(), _count(real > 0), trained, len(batch), pairs, attended)


def _of_call(call: Mapping[str, object], cost: Cost) -> _Counts:
    ids: Tensor = call.get("input_ids")
    if ids is None:
        raise ValueError(
            f"the batch has {', '.join(call) or 'nothing'}; expected input_ids, or a PackedBatch"
        )
    trained, places = _trained(call.get("labels")), ids.numel()
    numbers = _segment_numbers(call)
    ends: Tensor = call.get("cu_seq_lens_q")
    positions: Tensor = call.get("position_ids")
    if numbers is None and ends is not None:
        ends = _on_host(ends)
        lengths = _int64(ends[1:] - ends[:-1])
        pairs = _joined([each.sum() for each in cost.pairs(lengths)])
        return _Counts(places, _count(lengths > 0), trained, places, pairs, pairs)
    if positions is not None:
        positions = (positions[0] if positions.dim() == 3 else positions).expand(len(ids), -1)
    if numbers is None and positions is not None:
        positions = _on_host(positions)
        # 0 + 1 + ... + (n - 1) of each segment, twice, and n: n squared.
        squares = 2 * positions.sum() + places
        windowed = cost.pairs_at(positions)[1:] if cost.windows else []
        pairs = _joined([squares, *(each.sum() for each in windowed)])
        return _Counts(places, _count(positions == 0), trained, places, pairs, pairs)
    return _of_rows(ids, numbers, positions, trained, cost)


def _of_rows(ids: Tensor, numbers: Tensor, positions: Tensor, trained: Any, cost: Cost) -> _Counts:
    """Of rows [B, T] with padding, or of rows that are one document each."""
    import torch

    real = torch.ones_like(ids, dtype=torch.bool) if numbers is None else numbers != 0
    begins = torch.zeros_like(real)
    begins[:, :1] = True
    if numbers is not None:
        begins[:, 1:] |= numbers[:, 1:] != numbers[:, :-1]
    if positions is not None:
        begins[:, 1:] |= positions[:, 1:] != positions[:, :-1] + 1
    place = torch.arange(ids.shape[1], device=ids.device)
    within = place - torch.where(begins, place, 0).cummax(1).values
    pairs = _joined([(each * real).sum() for each in cost.pairs_at(within)])
    return _Counts(real.sum(), (begins & real).sum(), trained, ids.numel(), pairs, pairs)


def _segment_numbers(call: Mapping[str, object]) -> Tensor:
    """Segments of the places [B, T], or ones, with 0 for padding; None if nothing marks padding."""
    numbers = call.get("segment_ids")
    mask: Any = call.get("attention_mask")
    if numbers is None and hasattr(mask, "dim") and mask.dim() == 2:
        numbers = mask
    return numbers


def _trained(labels: Array) -> Any:
    return float("nan") if labels is None else _count(_on_host(labels) != NO_LOSS)


def _on_host(values: Array) -> Array:
    """Tensors of the CPU as arrays of the same memory, which count faster; others as they are."""
    is_tensor = values is not None and not isinstance(values, np.ndarray)
    return values.numpy() if is_tensor and values.device.type == "cpu" else values


def _count(true: Array) -> Any:
    return np.count_nonzero(true) if isinstance(true, np.ndarray) else true.sum()


def _joined(sums: list[Any]) -> Array:
    """Numbers as an array, and tensors as a tensor."""
    if not hasattr(sums[0], "cpu"):
        return np.array(sums)
    import torch

    return torch.stack(sums)


def _listed(arrays: list[Array]) -> list[list[float]]:
    """Arrays of equal length as numbers, with one wait for a GPU."""
    if all(hasattr(array, "cpu") for array in arrays):
        import torch

        return torch.stack(arrays).tolist()
    return [array.tolist() for array in arrays]


def _int64(values: Array) -> Array:
    return values.astype(np.int64) if isinstance(values, np.ndarray) else values.long()


def _straggler(costs: NDArray[np.float64]) -> float:
    """Sum over steps of the largest cost of the ranks, over that of their mean; [ranks, steps]."""
    return float(costs.max(0).sum() / costs.mean(0).sum())


def _gather(values: NDArray[np.float64], group: Any) -> NDArray[np.float64]:
    """The values of all ranks, [ranks, values]; of this one unless torch.distributed is in use."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return values[None]
    import torch

    device = "cuda" if distributed.get_backend(group) == "nccl" else "cpu"
    own = torch.from_numpy(values).to(device)
    ranks = [torch.empty_like(own) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(ranks, own, group=group)
    return torch.stack(ranks).cpu().numpy()
