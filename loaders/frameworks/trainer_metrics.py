"""Metrics of packed batches in the logs of a transformers Trainer."""

from typing import Any

from packprep.schemas.plans.cost import ATTENTION_COST, Cost

from .metrics import PackMetrics


def log_pack_metrics(
    trainer: Any,
    max_length: int | None = None,
    *,
    cost: Cost | tuple[float, float] = ATTENTION_COST,
    peak_flops: float | None = None,
) -> PackMetrics:
    """Add the metrics of `PackMetrics` to what a Trainer logs, with "pack_" before their names.

    They are in the same entry as the loss, so every integration in `report_to` gets them. Adds a
    TrainerCallback, and counts each batch before `training_step`, in the main process: any collator
    and any number of dataloader workers will do. Evaluation and saving do not count as time.

    trainer: a Trainer of transformers, or of TRL, before `train`.
    max_length: tokens of a full pack, for the fill of batches of per_device_train_batch_size
    packs; None: no fill.
    cost, peak_flops: see `PackMetrics`. Returns the object that counts.
    """
    from transformers import TrainerCallback

    base: Any = TrainerCallback
    args = trainer.args
    metrics = PackMetrics(
        None if max_length is None else max_length * args.train_batch_size,
        batches_per_step=args.gradient_accumulation_steps,
        cost=cost,
        peak_flops=peak_flops,
    )
    step = trainer.training_step

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
            if control.should_log and metrics.batches:
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
