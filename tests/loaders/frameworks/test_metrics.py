"""Metrics of batches: counts against a plain twin, the clock, ranks, and the logs of Trainers."""

import multiprocessing
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.loaders import Cost, PackedBatch, PackMetrics
from tests.helpers.tiny_shards import write_output
from tests.helpers.torch_models import VOCABULARY, documents, pack_of, skip_without, tiny_llama

skip_without("torch", "transformers")

import torch  # noqa: E402
from datasets import load_from_disk  # noqa: E402
from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402

from packprep.loaders import log_pack_metrics, to_flattening, to_hf, to_padded  # noqa: E402


def batch_of(lengths: list[int], labels: list[bool] | None = None, filler: int = 0) -> PackedBatch:
    """A pack with segments of these lengths, one segment of filler, and labels where True."""
    whole = [*lengths, filler] if filler else lengths
    total = sum(whole)
    values = None
    if labels is not None:
        values = np.where(np.resize(np.array(labels), total), np.arange(total), -100)
        values[np.cumsum([0, *whole[:-1]])] = -100
    return PackedBatch(
        tokens=np.arange(total),
        position_ids=np.concatenate([np.arange(length) for length in whole]),
        cu_seqlens=np.cumsum([0, *whole]).astype(np.int32),
        max_seqlen=max(whole),
        labels=values,
        document_ids=np.array([*range(len(lengths)), *([-1] if filler else [])]),
    )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, which a test sets."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_metrics_are_those_of_the_batches_since_the_last_read(clock: list[float]) -> None:
    metrics = PackMetrics(capacity=10, cost=(100, 1), peak_flops=2000.0)
    metrics.update(batch_of([3, 4], [True], filler=3))  # labels: 2 + 3, and 2 of filler
    metrics.update(batch_of([9], [False]))
    clock[0] = 4.0
    whole = {"tokens_per_second": 16 / 4, "fill": 16 / 20, "segments_per_batch": 3 / 2}
    mfu = 3 * (100 * 16 + 9 + 16 + 81) / (4 * 2000)
    assert metrics.read() == whole | {"trained_share": 7 / 16, "mfu": mfu}
    metrics.update(batch_of([5]))
    clock[0] = 5.0
    # No labels, so no share of them.
    last = {"tokens_per_second": 5, "fill": 0.5, "segments_per_batch": 1}
    assert metrics.read() == last | {"mfu": 3 * 525 / 2000}
    assert metrics.read() == {}


def test_a_pause_is_no_training_time(clock: list[float]) -> None:
    metrics = PackMetrics()
    metrics.update(batch_of([6]))
    for clock[0] in (1.0, 50.0):  # an evaluation, and a checkpoint after it
        metrics.pause()
    clock[0] = 100.0
    metrics.update(batch_of([6]))
    clock[0] = 102.0
    assert metrics.read()["tokens_per_second"] == 12 / 3
    metrics.pause()
    clock[0] = 200.0
    metrics.update(batch_of([8]))
    clock[0] = 202.0
    assert metrics.read()["tokens_per_second"] == 8 / 2


PACKS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4)


@pytest.mark.parametrize("on_host", [True, False])
@given(PACKS, st.lists(st.booleans(), min_size=1, max_size=5))
def test_every_form_of_a_batch_gives_the_counts_of_its_documents(
    on_host: bool, packs: list[list[int]], trained: list[bool]
) -> None:
    rows = [
        {"tokens": [1] * sum(pack), "seq_lengths": pack, "loss_mask": np.resize(trained, sum(pack))}
        for pack in packs
    ]
    lengths = [length for pack in packs for length in pack]
    seen = [2 * place + 1 for length in lengths for place in range(length)]
    pairs = [sum(seen), sum(min(each, 2 * 3) for each in seen)]
    expected = [sum(lengths), len(lengths), pairs[0] + 10 * pairs[1]]
    hf: dict[str, Any] = to_hf(rows)
    labels = int((hf["labels"] != -100).sum())
    singles = to_padded(rows, rows="segments", mask="padding")
    # Rows without positions are a document each; padding is on either side.
    bare = {name: singles[name] for name in ("input_ids", "attention_mask", "labels")}
    calls: list[Any] = [
        hf,
        bare,
        {name: values.flip(1) for name, values in bare.items()},
        {name: hf[name] for name in ("input_ids", "position_ids", "labels")},
        to_flattening(rows),
        to_padded(rows, mask="segments"),
        to_padded(rows, mask="segments", positions="continue"),
        to_padded(rows, attention_mask="segments", positions="continue"),
        singles,
        batch_of(lengths),
        batch_of(lengths).torch(),
    ]
    name = "packprep.loaders.frameworks.metrics._on_host"
    with nullcontext() if on_host else patch(name, lambda values: values):  # as on a GPU
        for call in calls:
            metrics = PackMetrics(cost=Cost(0, 1, ((3, 10),)))
            metrics.update(call)
            (cost,) = metrics._costs_of_steps()
            assert [int(metrics._tokens), int(metrics._segments), int(cost)] == expected
            assert metrics._pairs.tolist() == pairs
            assert isinstance(call, PackedBatch) or int(metrics._trained) == labels


def test_costs_are_those_of_whole_steps_and_errors_say_what_is_wrong() -> None:
    metrics = PackMetrics(batches_per_step=2, cost=(1, 10))
    for length in (1, 2, 3):
        metrics.update(batch_of([length]))
    assert metrics._costs_of_steps().tolist() == [11 + 42, 93]
    shared = {"input_ids": torch.ones(2, 4), "position_ids": torch.tensor([[0, 1, 2, 0]])}
    metrics.update(shared)  # positions of one row are those of all rows
    assert metrics._costs_of_steps().tolist() == [11 + 42, 93 + 8 + 10 * 2 * (9 + 1)]
    with pytest.raises(ValueError, match=r"^the batch has prompt; expected input_ids, or a Packed"):
        PackMetrics().update({"prompt": "a"})
    with pytest.raises(ValueError, match=r"^capacity is 0; expected a number of 1 or more$"):
        PackMetrics(0)


def _rank(rank: int, address: str, queue: Any) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    metrics = PackMetrics(capacity=10, cost=(1, 0))
    for length in ([4, 10], [8, 6])[rank]:
        metrics.update(batch_of([length]))
    values = metrics.read()
    for _ in range(rank + 1):  # another number of batches: no steps to compare
        metrics.update(batch_of([5]))
    queue.put((rank, values, metrics.read()))
    dist.destroy_process_group()


@pytest.mark.long
def test_ranks_are_summed_and_the_straggler_is_of_each_step(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    queue, address = context.Queue(), f"file://{tmp_path / 'ranks'}"
    ranks = [context.Process(target=_rank, args=(rank, address, queue)) for rank in range(2)]
    for process in ranks:
        process.start()
    results = sorted((queue.get(timeout=600) for _ in ranks), key=lambda result: int(result[0]))
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0, 0]
    for _, values, uneven in results:
        # Costs by step: 4 and 8, then 10 and 6. Both ranks have 14 together.
        assert values["straggler"] == (8 + 10) / (6 + 8)
        assert (values["fill"], values["segments_per_batch"]) == (28 / 40, 1)
        assert "straggler" not in uneven
    assert results[0][1] == results[1][1]


class Reporter(TrainerCallback):  # type: ignore[misc]
    """Notes what a reporter gets."""

    def __init__(self) -> None:
        self.logs: list[dict[str, float]] = []

    def on_log(self, _args: Any, _state: Any, _control: Any, logs: Any, **_: Any) -> None:
        self.logs.append(dict(logs))

    @property
    def losses(self) -> list[dict[str, float]]:
        return [entry for entry in self.logs if "loss" in entry]


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
    args = TrainingArguments(str(folder), **settings | options)
    data = {"train_dataset": rows, "eval_dataset": rows, "data_collator": to_hf}
    return Trainer(tiny_llama(), args, callbacks=[reporter], **data), reporter


def assert_figures(
    entry: dict[str, float], rows: Any, first: int, count: int, batches: int
) -> None:
    """Fill, segments a batch and trained share are those of `count` packs from `first` on."""
    packs = [rows[number] for number in range(first, first + count)]
    tokens = sum(len(pack["tokens"]) for pack in packs)
    segments = sum(len(pack["cu_seqlens"]) - 1 for pack in packs)
    wanted = [tokens / (batches * 2 * 64), segments / batches, (tokens - segments) / tokens]
    found = [entry[f"pack_{name}"] for name in ("fill", "segments_per_batch", "trained_share")]
    np.testing.assert_allclose(found, wanted)


def test_batches_of_an_evaluation_are_not_counted_and_those_of_accumulation_are(
    rows: Any, tmp_path: Path
) -> None:
    steps: dict[str, Any] = {"gradient_accumulation_steps": 2, "eval_steps": 1}
    trainer, reporter = trainer_of(rows, tmp_path, eval_strategy="steps", **steps)
    log_pack_metrics(trainer, max_length=64)
    trainer.evaluate()
    trainer.train()
    assert len(reporter.losses) == 2
    for number, entry in enumerate(reporter.losses):
        assert_figures(entry, rows, 4 * number, 4, 2)
    assert not [entry for entry in reporter.logs if "eval_loss" in entry and "pack_fill" in entry]
