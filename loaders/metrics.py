"""Metrics of packed batches while training: speed, fill, segments, trained tokens, straggler."""

import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..schemas.arrays import Float64
from ..schemas.columns import NO_LOSS
from ..schemas.cost import ATTENTION_COST, Cost
from .batch import Array, PackedBatch, Tensor

_COUNTS = ("tokens", "segments", "trained", "places", "squares")


class PackMetrics:
    """Count the batches of a training loop, and give metrics of the time between two reads.

    Call `update(batch)` with every batch and `read()` at logging steps. Batches on a GPU are
    counted there, and only `read` waits for them.

    capacity: tokens of a full batch, such as packs_per_batch * max_length; None: no fill.
    batches_per_step: batches before the ranks wait for each other (gradient accumulation). cost:
    (a, b): a batch costs a * places + b * the sum of squared segment lengths. group: the process
    group of the ranks that train on different batches; None: all ranks.
    """

    def __init__(
        self,
        capacity: int | None = None,
        *,
        batches_per_step: int = 1,
        cost: tuple[float, float] = ATTENTION_COST,
        group: Any = None,
    ) -> None:
        if batches_per_step < 1 or (capacity is not None and capacity < 1):
            raise ValueError(
                f"capacity is {capacity} and batches_per_step {batches_per_step}; expected 1 or "
                "more"
            )
        self._capacity, self._batches_per_step = capacity, batches_per_step
        self._cost, self._group = Cost(*cost), group
        self.restart()

    def restart(self) -> None:
        """Forget what was counted, and start the clock."""
        self._counted = list[list[Any]]()
        self._paused_at: float | None = None
        self._start = time.perf_counter()

    def pause(self) -> None:
        """Stop the clock until the next update: before an evaluation or a checkpoint."""
        self._paused_at = self._paused_at or time.perf_counter()

    def update(self, batch: PackedBatch | Mapping[str, object]) -> None:
        """Count a batch before its step.

        batch: a PackedBatch, or the arguments of a transformers model as torch tensors [B, T], as
        adapters and collators make them. Padding is then what attention_mask or segment_ids mark
        by 0; filler in the packs of an output is not marked there, and counts as tokens. Segments
        are those of cu_seq_lens_q, else a segment begins where position_ids are 0. ValueError
        without input_ids.
        """
        if self._paused_at is not None:
            self._start += time.perf_counter() - self._paused_at
            self._paused_at = None
        if isinstance(batch, PackedBatch):
            self._counted.append(_of_batch(batch))
        else:
            self._counted.append(_of_call(batch))

    def read(self) -> dict[str, float]:
        """Metrics since the last read, of all ranks; empty without a batch. Waits for a GPU.

        tokens_per_second: tokens without padding, of all ranks.
        fill: tokens / capacity, a mean over batches; only with a capacity.
        segments_per_batch: a mean.
        trained_share: share of the tokens that have a label; only if every batch has labels.
        straggler: the factor by which steps take longer than with equal costs on all ranks, if
            costs decide; only with several ranks that had the same number of batches.

        If torch.distributed is initialized, all ranks of the group must call this at the same step.
        """
        seconds = (self._paused_at or time.perf_counter()) - self._start
        counts = np.array([[float(each) for each in batch] for batch in self._counted])
        counts = counts.reshape(-1, len(_COUNTS))
        was_paused = self._paused_at is not None
        self.restart()
        if was_paused:
            self.pause()
        own = np.array([len(counts), *counts[:, :3].sum(0), seconds])
        ranks = _gather(own, self._group)
        total, tokens, segments, trained, _ = ranks.sum(0).tolist()
        if not total:
            return {}
        metrics = {"tokens_per_second": tokens / max(float(ranks[:, 4].max()), 1e-9)}
        if self._capacity is not None:
            metrics["fill"] = tokens / (total * self._capacity)
        metrics["segments_per_batch"] = segments / total
        if tokens and not np.isnan(trained):
            metrics["trained_share"] = trained / tokens
        if len(ranks) > 1 and (ranks[:, 0] == len(counts)).all():
            costs = counts[:, 3:] @ np.array(self._cost)
            steps = np.add.reduceat(costs, np.arange(0, len(costs), self._batches_per_step))
            each = _gather(steps, self._group)
            metrics["straggler"] = float(each.max(0).sum() / each.mean(0).sum())
        return metrics


def _of_batch(batch: PackedBatch) -> list[Any]:
    """Numbers by _COUNTS; trained is nan if unknown."""
    real, ends = batch.real_lengths(), batch.cu_seqlens
    squares = _squares(ends[1:] - ends[:-1])
    return [real.sum(), (real > 0).sum(), _trained(batch.labels), len(batch), squares]


def _of_call(call: Mapping[str, Any]) -> list[Any]:
    ids: Tensor = call.get("input_ids")
    if ids is None:
        raise ValueError(
            f"the batch has {', '.join(call) or 'nothing'}; expected input_ids, or a PackedBatch"
        )
    trained, places = _trained(call.get("labels")), ids.numel()
    numbers = call.get("segment_ids", call.get("attention_mask"))
    if getattr(numbers, "shape", None) != ids.shape:
        numbers = None
    real = ids >= 0 if numbers is None else numbers != 0
    ends, positions = call.get("cu_seq_lens_q"), call.get("position_ids")
    if ends is not None and numbers is None:
        lengths = ends[1:] - ends[:-1]
        return [places, (lengths > 0).sum(), trained, places, _squares(lengths)]
    if positions is None:
        positions = real.cumsum(1) - 1  # rows of one document
    positions = (positions[0] if positions.dim() == 3 else positions).expand_as(ids) * real
    # 0 + 1 + ... + (n - 1) of each segment, twice, and n: n squared.
    tokens = real.sum()
    return [tokens, ((positions == 0) & real).sum(), trained, places, 2 * positions.sum() + tokens]


def _trained(labels: Array) -> Any:
    return float("nan") if labels is None else (labels != NO_LOSS).sum()


def _squares(lengths: Array) -> Any:
    wide = lengths.astype(np.int64) if isinstance(lengths, np.ndarray) else lengths.long()
    return (wide * wide).sum()


def _gather(values: Float64, group: Any) -> Float64:
    """The values of all ranks, [ranks, values]; of this one unless torch.distributed is in use."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return values[None]
    import torch

    device = "cuda" if distributed.get_backend(group) == "nccl" else "cpu"
    own = torch.from_numpy(values).to(device)
    ranks = [torch.empty_like(own) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(ranks, own, group=group)
    every: Float64 = torch.stack(ranks).cpu().numpy()
    return every


def log_pack_metrics(
    trainer: Any, max_length: int | None = None, *, cost: tuple[float, float] = ATTENTION_COST
) -> PackMetrics:
    """Add the metrics of `PackMetrics` to what a Trainer logs, with "pack_" before their names.

    They are in the same entry as the loss, so every integration in `report_to` gets them. Adds a
    TrainerCallback, and counts each batch before `training_step`, in the main process: any collator
    and any number of dataloader workers will do. Evaluation and saving do not count as time.

    trainer: a Trainer of transformers, or of TRL, before `train`. max_length: tokens of a full
    pack, for the fill of batches of per_device_train_batch_size packs; None: no fill. cost: see
    `PackMetrics`. Returns the object that counts.
    """
    from transformers import TrainerCallback

    base: Any = TrainerCallback
    args, step = trainer.args, trainer.training_step
    metrics = PackMetrics(
        None if max_length is None else max_length * args.train_batch_size,
        batches_per_step=args.gradient_accumulation_steps,
        cost=cost,
    )

    def counted(model: Any, inputs: Any, *more: Any, **options: Any) -> Any:
        metrics.update(inputs)
        return step(model, inputs, *more, **options)

    class PackMetricsCallback(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self.unlogged: dict[str, float] = {}

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            metrics.restart()

        def on_step_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> None:
            # On all ranks alike, as on_log need not be: read() waits for the other ranks.
            if control.should_log:
                values = metrics.read()
                self.unlogged = {f"pack_{name}": value for name, value in values.items()}
            if control.should_evaluate or control.should_save:
                metrics.pause()

        on_epoch_end = on_step_end

        def on_log(
            self, _args: Any, state: Any, _control: Any, logs: dict[str, float], **_: Any
        ) -> None:
            logs.update(self.unlogged)
            state.log_history[-1].update(self.unlogged)
            self.unlogged = {}

    trainer.training_step = counted
    # After the callback that decides when to log, before those that report.
    trainer.callback_handler.callbacks.insert(1, PackMetricsCallback())
    return metrics
