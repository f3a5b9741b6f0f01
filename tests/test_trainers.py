"""Metrics of batches, records of Grain, and ranks of trainers."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import written
from tests.helpers.torch_models import skip_without, tiny_llama

skip_without("torch", "transformers")

import datasets  # noqa: E402
import grain  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from transformers import Trainer, TrainingArguments  # noqa: E402

from packprep.loaders import (  # noqa: E402
    MaxTextSource,
    PackedBatch,
    PackedLoader,
    PackedShards,
    PackMetrics,
    log_pack_metrics,
    to_axolotl,
    to_hf,
    to_padded,
)
from packprep.schemas.columns import STANDARD  # noqa: E402


@given(
    batches=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=5),
    filler=st.booleans(),
    form=st.sampled_from(["batch", "tensors", "hf", "axolotl", "padded"]),
)
def test_metrics_are_those_of_the_batches_since_the_last_read(
    batches: list[list[int]], filler: bool, form: str
) -> None:
    """Filler is not marked in the arguments of a model: it counts as tokens there."""
    now = [0.0]
    tokens, segments, trained, places = 0, 0, 0, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: now[0])
        metrics = PackMetrics(40)
        for lengths in batches:
            pack = written.pack(*lengths)
            hidden = filler and len(lengths) > 1
            if hidden:
                pack["document_ids"][-1] = -1
            labels = np.where(pack["tokens"] % 3, 5, -100)
            fields = {**pack, "cu_seqlens": pack["cu_seqlens"].astype(np.int32)}
            batch = PackedBatch(**fields, max_seqlen=max(lengths), labels=labels)
            counted = hidden and form not in ("hf", "axolotl")
            real = lengths[:-1] if counted else lengths
            tokens, segments = tokens + sum(real), segments + len(real)
            given = labels[: sum(real)] if form == "padded" else labels
            trained, places = trained + int((given != -100).sum()), places + 40
            now[0] += 0.5
            adapt: Any = {"hf": to_hf, "axolotl": to_axolotl, "padded": to_padded}.get(form)
            tensors = batch.torch() if form == "tensors" else batch
            metrics.update(batch if form == "batch" else adapt(batch) if adapt else tensors)
        assert metrics.read() == pytest.approx(
            {
                "tokens_per_second": tokens / (len(batches) * 0.5),
                "fill": tokens / places,
                "segments_per_batch": segments / len(batches),
                "trained_share": trained / tokens,
            }
        )
        assert metrics.read() == {}


def test_a_pause_is_no_training_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    metrics, fields = PackMetrics(), to_hf([{"input_ids": [1] * 6, "seq_lengths": [6]}])
    metrics.update(fields)
    for now[0] in (1.0, 50.0):  # an evaluation, and a checkpoint after it
        metrics.pause()
    now[0] = 100.0
    metrics.update(fields)
    now[0] = 102.0
    assert metrics.read()["tokens_per_second"] == 12 / 3


def test_metrics_are_in_the_logs_of_a_trainer(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_list(
        [{"input_ids": [1, 2, 3, 4, 5], "seq_lengths": [2, 3]} for _ in range(4)]
    )
    settings: dict[str, Any] = {"per_device_train_batch_size": 1, "logging_steps": 2}
    settings |= {"max_steps": 4, "remove_unused_columns": False, "report_to": []}
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, **settings)
    trainer = Trainer(tiny_llama(), arguments, data_collator=to_hf, train_dataset=rows)
    log_pack_metrics(trainer, 10)
    trainer.train()
    (one, two) = (log for log in trainer.state.log_history if "loss" in log)
    for log in (one, two):
        assert (log["pack_fill"], log["pack_segments_per_batch"]) == (0.5, 2)
        assert log["pack_trained_share"] == pytest.approx(3 / 5)


def test_records_of_grain_have_targets_of_the_next_token_of_the_same_document(
    tmp_path: Path,
) -> None:
    columns = (*written.COLUMNS, STANDARD["labels"], STANDARD["segment_lengths"])
    packs = []
    for lengths in ([3, 4], [5], [2, 2, 6]):
        pack = written.pack(*lengths)
        labels = np.where(pack["tokens"] % 4 == 2, -100, pack["tokens"])
        real = [length - (length > 3) for length in lengths]
        packs.append({**pack, "labels": labels, "segment_lengths": real})
    packs[2]["document_ids"][-1] = -1
    shards = PackedShards(written.write(tmp_path / "out", [packs], columns))
    source = MaxTextSource(shards, 80)
    for number, pack in enumerate(packs):
        expected = np.zeros((6, 80), int)
        ends = pack["cu_seqlens"].tolist()
        for at, first in enumerate(ends[:-1]):
            kept = 0 if pack["document_ids"][at] < 0 else pack["segment_lengths"][at]
            for place in range(first, first + kept):
                token, position = pack["tokens"][place], place - first
                expected[:3, place] = token, position, at + 1
                expected[4, place] = position
                label = pack["labels"][place + 1] if position + 1 < kept else -100
                if label != -100:
                    expected[[3, 5], place] = label, at + 1
        record = source[number]
        assert [*record] == NAMES
        assert {str(values.dtype) for values in record.values()} == {"int32"}
        assert [values.tolist() for values in record.values()] == expected.tolist()
    mixed = grain.MapDataset.source(source).shuffle(seed=3)
    assert len([*mixed]) == 3
    with pytest.raises(ValueError, match="packs of up to 64"):
        MaxTextSource(shards, 32)


NAMES = ["inputs", "inputs_position", "inputs_segmentation"]
NAMES += ["targets", "targets_position", "targets_segmentation"]


def test_ranks_of_a_tensor_parallel_group_have_the_packs_of_their_data_parallel_rank(
    tmp_path: Path,
) -> None:
    """Of a mesh of two by two ranks, as each of them sees it."""
    out = written.write(tmp_path / "out", [[written.pack(3, document=n) for n in range(8)]])
    packs: dict[tuple[int, int], list[list[int]]] = {}
    for rank in range(4):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
        try:
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            place, size = mesh["dp"].get_local_rank(), mesh["dp"].size()
            loader = PackedLoader(out, 2, rank=place, world_size=size)
            batches = [batch.pack_numbers.tolist() for batch in loader]
            packs[place, mesh["tp"].get_local_rank()] = batches
        finally:
            dist.destroy_process_group()
    assert [packs[place, 0] for place in range(2)] == [packs[place, 1] for place in range(2)]
    both = [number for place in range(2) for batch in packs[place, 0] for number in batch]
    assert sorted(both) == [*range(8)]


def test_a_micro_batch_is_one_sequence_and_no_batch_size_says_so(tmp_path: Path) -> None:
    """So DeepSpeed needs train_micro_batch_size_per_gpu, and it is 1 for any number of packs."""
    out = written.write(tmp_path / "out", [[written.pack(3, 2), written.pack(4, document=2)] * 3])
    for packs in (1, 2, 3):
        loader: Any = PackedLoader(out, packs)
        batches: Any = DataLoader(loader, batch_size=None)
        assert (getattr(loader, "batch_size", None), batches.batch_size) == (None, None)
        assert {to_hf(batch.torch())["input_ids"].shape[0] for batch in loader} == {1}
