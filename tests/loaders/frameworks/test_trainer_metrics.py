"""Metrics in the logs of transformers' own Trainer and TRL's: what reporters get, and when."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import load_from_disk

from tests.helpers.tiny_shards import write_output
from tests.helpers.torch_models import VOCABULARY, documents, pack_of, skip_without, tiny_llama

skip_without("torch", "transformers")

from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402

from packprep.loaders import log_pack_metrics, to_hf  # noqa: E402


class Reporter(TrainerCallback):  # type: ignore[misc]
    """Notes what a reporter gets."""

    def __init__(self) -> None:
        self.logs: list[dict[str, float]] = []

    def on_log(self, _args: Any, _state: Any, _control: Any, logs: Any, **_: Any) -> None:
        self.logs.append(dict(logs))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Eight packs of one to three documents."""
    directory = tmp_path_factory.mktemp("metrics") / "out"
    packs = [pack_of(3 * n, documents([5 + n, 9, 30 - n][: 1 + n % 3], seed=n)) for n in range(8)]
    write_output(directory, {"train": [packs]}, max_length=64, vocab_size=VOCABULARY)
    return load_from_disk(str(directory))


def trainer_of(rows: Any, folder: Path, **options: Any) -> tuple[Trainer, Reporter]:
    reporter = Reporter()
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 2,
        "train_sampling_strategy": "sequential",
        "num_train_epochs": 1,
        "logging_steps": 1,
        "remove_unused_columns": False,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
    }
    trainer = Trainer(
        tiny_llama(),
        TrainingArguments(str(folder), **settings | options),
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=to_hf,
        callbacks=[reporter],
    )
    return trainer, reporter


def expected(rows: Any, first: int, count: int, batches: int) -> list[float]:
    """Fill, segments a batch and trained share of `count` packs from `first` on."""
    packs = [rows[number] for number in range(first, first + count)]
    tokens = sum(len(pack["tokens"]) for pack in packs)
    segments = sum(len(pack["cu_seqlens"]) - 1 for pack in packs)
    return [tokens / (batches * 2 * 64), segments / batches, (tokens - segments) / tokens]


def figures(entry: dict[str, float]) -> list[float]:
    return [entry[f"pack_{name}"] for name in ("fill", "segments_per_batch", "trained_share")]


@pytest.mark.parametrize("workers", [0, 1])
def test_reporters_get_the_metrics_with_the_loss_of_the_same_steps(
    rows: Any, tmp_path: Path, workers: int
) -> None:
    trainer, reporter = trainer_of(rows, tmp_path, dataloader_num_workers=workers)
    log_pack_metrics(trainer, max_length=64)
    trainer.train()
    entries = [entry for entry in reporter.logs if "loss" in entry]
    assert len(entries) == 4
    for number, entry in enumerate(entries):
        np.testing.assert_allclose(figures(entry), expected(rows, 2 * number, 2, 1))
        assert entry["pack_tokens_per_second"] > 0
        assert "pack_straggler" not in entry  # one rank
    kept = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [{**entry, "step": step} for step, entry in enumerate(entries, 1)] == kept
    others = [entry for entry in reporter.logs if "loss" not in entry]
    assert others
    assert not [name for entry in others for name in entry if name.startswith("pack_")]


def test_batches_of_an_evaluation_are_not_counted_and_those_of_accumulation_are(
    rows: Any, tmp_path: Path
) -> None:
    trainer, reporter = trainer_of(
        rows, tmp_path, gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=1
    )
    log_pack_metrics(trainer, max_length=64)
    trainer.evaluate()
    trainer.train()
    entries = [entry for entry in reporter.logs if "loss" in entry]
    assert len(entries) == 2
    for number, entry in enumerate(entries):
        np.testing.assert_allclose(figures(entry), expected(rows, 4 * number, 4, 2))
    assert not [entry for entry in reporter.logs if "eval_loss" in entry and "pack_fill" in entry]


def test_metrics_are_logged_by_epoch_and_without_a_length_have_no_fill(
    rows: Any, tmp_path: Path
) -> None:
    trainer, reporter = trainer_of(rows, tmp_path, logging_strategy="epoch", num_train_epochs=2)
    metrics = log_pack_metrics(trainer)
    trainer.train()
    entries = [entry for entry in reporter.logs if "loss" in entry]
    assert len(entries) == 2
    for entry in entries:
        assert entry["pack_segments_per_batch"] == expected(rows, 0, 8, 4)[1]
        assert "pack_fill" not in entry
    assert metrics.batches == 0
