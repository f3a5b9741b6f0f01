"""Metrics and sources of trainers: the numbers of the first edition."""

import time
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.torch_models import skip_without, tiny_llama

from . import outputs

skip_without("torch", "transformers")

import datasets  # noqa: E402
import grain  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from transformers import Trainer, TrainingArguments  # noqa: E402

import packprep.loaders as first  # noqa: E402
from packprep.next.loaders import (  # noqa: E402
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
from packprep.next.schemas.columns import STANDARD  # noqa: E402


@given(
    batches=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=5),
    filler=st.booleans(),
    form=st.sampled_from(["batch", "tensors", "hf", "axolotl", "padded"]),
)
def test_metrics_are_those_of_the_first_edition(
    batches: list[list[int]], filler: bool, form: str
) -> None:
    now = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: now[0])
        both: list[Any] = [PackMetrics(40), first.PackMetrics(40)]
        for lengths in batches:
            pack = outputs.pack(*lengths)
            if filler and len(lengths) > 1:
                pack["document_ids"][-1] = -1
            fields = {**pack, "cu_seqlens": pack["cu_seqlens"].astype(np.int32)}
            fields |= {"max_seqlen": max(lengths), "labels": np.where(pack["tokens"] % 3, 5, -100)}
            batch = PackedBatch(**fields)
            adapt: Any = {"hf": to_hf, "axolotl": to_axolotl, "padded": to_padded}.get(form)
            now[0] += 0.5
            if adapt is not None:
                for metrics in both:
                    metrics.update(adapt(batch))
            else:
                both[0].update(batch.torch() if form == "tensors" else batch)
                both[1].update(first.PackedBatch(**fields))
        found, expected = both[0].read(), both[1].read()
        assert [*found] == [*expected]
        assert found == pytest.approx(expected)
        assert both[0].read() == {}


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


class _Held(list[Any]):
    """Packs as the shards of the first edition."""

    has_trees, max_length = False, 64
    column_kinds: ClassVar[dict[str, str]] = {}


def test_records_of_grain_are_those_of_the_first_edition(tmp_path: Path) -> None:
    columns = (*outputs.COLUMNS, STANDARD["labels"], STANDARD["segment_lengths"])
    packs = []
    for lengths in ([3, 4], [5], [2, 2, 6]):
        pack = outputs.pack(*lengths)
        labels = np.where(pack["tokens"] % 4 == 2, -100, pack["tokens"])
        real = [length - (length > 3) for length in lengths]
        packs.append({**pack, "labels": labels, "segment_lengths": real})
    packs[2]["document_ids"][-1] = -1
    shards = PackedShards(outputs.write(tmp_path / "out", [packs], columns))
    source = MaxTextSource(shards, 80)
    held = [first.Pack({name: np.asarray(each) for name, each in pack.items()}) for pack in packs]
    before = first.MaxTextSource(cast(Any, _Held(held)), 80)
    for number in range(len(held)):
        record, expected = source[number], before[number]
        assert [*record] == [*expected]
        for name, values in record.items():
            assert (str(values.dtype), values.tolist()) == ("int32", expected[name].tolist())
    mixed = grain.MapDataset.source(source).shuffle(seed=3)
    assert len([*mixed]) == 3
    with pytest.raises(ValueError, match="packs of up to 64"):
        MaxTextSource(shards, 32)


def test_ranks_of_a_tensor_parallel_group_have_the_packs_of_their_data_parallel_rank(
    tmp_path: Path,
) -> None:
    """Of a mesh of two by two ranks, as each of them sees it."""
    out = outputs.write(tmp_path / "out", [[outputs.pack(3, document=n) for n in range(8)]])
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
    out = outputs.write(tmp_path / "out", [[outputs.pack(3, 2), outputs.pack(4, document=2)] * 3])
    for packs in (1, 2, 3):
        loader: Any = PackedLoader(out, packs)
        batches: Any = DataLoader(loader, batch_size=None)
        assert (getattr(loader, "batch_size", None), batches.batch_size) == (None, None)
        assert {to_hf(batch.torch())["input_ids"].shape[0] for batch in loader} == {1}
