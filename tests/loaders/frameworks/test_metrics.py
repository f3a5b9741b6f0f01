"""Metrics of batches: counts against a plain twin, the clock, and ranks of different costs."""

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

from packprep.loaders import PackedBatch, PackMetrics
from tests.helpers.torch_models import skip_without

skip_without("torch", "transformers")

from packprep.loaders import to_flattening, to_hf, to_padded  # noqa: E402


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
    metrics = PackMetrics(capacity=10)
    metrics.update(batch_of([3, 4], [True], filler=3))  # labels: 2 + 3, and 2 of filler
    metrics.update(batch_of([9], [False]))
    clock[0] = 4.0
    assert metrics.read() == {
        "tokens_per_second": 16 / 4,
        "fill": 16 / 20,
        "segments_per_batch": 3 / 2,
        "trained_share": 7 / 16,
    }
    metrics.update(batch_of([5]))
    clock[0] = 5.0
    # No labels, so no share of them.
    assert metrics.read() == {"tokens_per_second": 5, "fill": 0.5, "segments_per_batch": 1}
    assert metrics.read() == {}


def test_a_pause_is_no_training_time(clock: list[float]) -> None:
    metrics = PackMetrics()
    metrics.update(batch_of([6]))
    clock[0] = 1.0
    metrics.pause()
    clock[0] = 50.0
    metrics.pause()  # a checkpoint after an evaluation
    clock[0] = 100.0
    metrics.update(batch_of([6]))
    clock[0] = 102.0
    assert metrics.read()["tokens_per_second"] == 12 / 3
    metrics.pause()
    clock[0] = 200.0
    metrics.update(batch_of([8]))
    clock[0] = 202.0
    assert metrics.read()["tokens_per_second"] == 8 / 2


@pytest.mark.parametrize("on_host", [True, False])
@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=1, max_size=5),
)
def test_every_form_of_a_batch_gives_the_counts_of_its_documents(
    on_host: bool, packs: list[list[int]], trained: list[bool]
) -> None:
    as_on_gpu = (
        nullcontext() if on_host else patch("packprep.loaders.frameworks.metrics._on_host", same)
    )
    with as_on_gpu:
        check_forms(packs, trained)


def same(values: Any) -> Any:
    return values


def check_forms(packs: list[list[int]], trained: list[bool]) -> None:
    rows = [
        {"tokens": [1] * sum(pack), "seq_lengths": pack, "loss_mask": np.resize(trained, sum(pack))}
        for pack in packs
    ]
    lengths = [length for pack in packs for length in pack]
    expected = (sum(lengths), len(lengths), sum(length * length for length in lengths))
    hf: dict[str, Any] = to_hf(rows)
    without_lengths = {name: hf[name] for name in ("input_ids", "position_ids", "labels")}
    padded = [
        to_padded(rows, mask="segments"),
        to_padded(rows, mask="segments", positions="continue"),
        to_padded(rows, attention_mask="segments", positions="continue"),
        to_padded(rows, rows="segments", mask="padding"),
    ]
    labels = int((hf["labels"] != -100).sum())
    for call in (hf, without_lengths, to_flattening(rows), *padded):
        metrics = PackMetrics(cost=(0, 1))
        metrics.update(call)
        (squares,) = metrics._costs_of_steps()
        assert (int(metrics._tokens), int(metrics._segments), int(squares)) == expected
        assert int(metrics._trained) == labels
    for batch in (batch_of(lengths), batch_of(lengths).torch()):
        metrics = PackMetrics(cost=(0, 1))
        metrics.update(batch)
        assert (int(metrics._tokens), int(metrics._segments)) == expected[:2]
        assert metrics._costs_of_steps().tolist() == [expected[2]]


def test_rows_without_positions_are_a_document_each() -> None:
    import torch

    metrics = PackMetrics(capacity=12, cost=(1, 1))
    mask = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1]])  # padding on either side
    metrics.update({"input_ids": torch.ones(2, 4, dtype=torch.int64), "attention_mask": mask})
    assert metrics._costs_of_steps().tolist() == [8 + 9 + 4]
    values = metrics.read()
    assert (values["fill"], values["segments_per_batch"]) == (5 / 12, 2)


def test_positions_of_one_row_are_those_of_all_rows() -> None:
    import torch

    metrics = PackMetrics(cost=(0, 1))
    ids = torch.ones(2, 4, dtype=torch.int64)
    metrics.update({"input_ids": ids, "position_ids": torch.tensor([[0, 1, 2, 0]])})
    assert metrics._costs_of_steps().tolist() == [2 * (9 + 1)]
    assert metrics.read()["segments_per_batch"] == 4


def test_costs_are_those_of_whole_steps() -> None:
    metrics = PackMetrics(batches_per_step=2, cost=(1, 10))
    for length in (1, 2, 3):
        metrics.update(batch_of([length]))
    assert metrics._costs_of_steps().tolist() == [11 + 42, 93]


def test_errors_say_what_is_wrong() -> None:
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


def test_ranks_are_summed_and_the_straggler_is_of_each_step(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    address = f"file://{tmp_path / 'ranks'}"
    ranks = [context.Process(target=_rank, args=(rank, address, queue)) for rank in range(2)]
    for process in ranks:
        process.start()
    results = sorted((queue.get(timeout=120) for _ in ranks), key=lambda result: int(result[0]))
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0, 0]
    for _, values, uneven in results:
        # Costs by step: 4 and 8, then 10 and 6. Both ranks have 14 together.
        assert values["straggler"] == (8 + 10) / (6 + 8)
        assert (values["fill"], values["segments_per_batch"]) == (28 / 40, 1)
        assert "straggler" not in uneven
    assert results[0][1] == results[1][1]
