"""The source for torchtitan in the steps of its dataset, dataloader and collator.

Its main branch is on no package index; the steps are those of b5bcd76c.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import grain
import numpy as np
import pytest

from packprep.loaders import PackedLoader, PackedShards, TorchtitanSource, to_torchtitan
from tests.helpers.numbered_shards import numbered_shards
from tests.helpers.tiny_shards import GOLDEN


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSequence:
    input_ids: Any
    labels: Any
    positions: Any = None


@pytest.fixture(autouse=True)
def torchtitan(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("torchtitan.components.data.dataset")
    module.TextSequence = TextSequence  # type: ignore[attr-defined]
    for name in ("torchtitan", "torchtitan.components", "torchtitan.components.data"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


def collated(rows: Sequence[TextSequence], num_tokens: int) -> tuple[Any, Any, Any]:
    """Tokens, positions and labels of TextCollator, which pads with a document of zeros."""
    (row,) = rows
    room = num_tokens - len(row.input_ids)
    return (
        np.pad(row.input_ids, (0, room)),
        np.concatenate([row.positions, np.arange(room)]),
        np.pad(row.labels, (0, room), constant_values=-100),
    )


def dataset(path: Path, rank: int, world_size: int) -> Any:
    """The dataset of a rank, shuffled and for one epoch, with rows of 8 tokens."""
    source = TorchtitanSource(path=str(path)).build(dataset_iteration_policy=None)
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    shuffled = grain.MapDataset.source(source).shuffle(seed=42)
    size, remainder = divmod(len(shuffled), world_size)
    start = rank * size + min(rank, remainder)
    share = shuffled[start : start + size + (rank < remainder)]
    return share.to_iter_dataset().batch(1, batch_fn=lambda rows: collated(rows, 8))


def test_a_batch_is_that_of_to_torchtitan() -> None:
    source = TorchtitanSource(path=str(GOLDEN / "v1-rich"), split="train").build()
    shards = PackedShards(GOLDEN / "v1-rich", split="train")
    loader = PackedLoader(shards, 1, shuffle=False, labels="shifted")
    for row, batch in zip((source[index] for index in range(len(source))), loader, strict=True):
        fields, labels = to_torchtitan(batch, version="main")
        assert row.input_ids.tolist() == fields["input"].tolist()
        assert row.positions.tolist() == fields["positions"].tolist()
        assert row.labels.tolist() == labels.tolist()
        assert {value.dtype for value in (row.input_ids, row.positions, row.labels)} == {
            np.dtype(np.int64)
        }


def test_every_pack_is_a_batch_of_one_rank_and_each_rank_resumes_exactly(tmp_path: Path) -> None:
    shards = numbered_shards(tmp_path / "out", 11)
    firsts = []
    for rank in range(3):
        whole = [tokens.tolist() for tokens, _, _ in dataset(tmp_path / "out", rank, 3)]
        firsts += [tokens[0] for tokens in whole]
        for done in range(len(whole)):
            stopped = iter(dataset(tmp_path / "out", rank, 3))
            for _ in range(done):
                next(stopped)
            resumed = iter(dataset(tmp_path / "out", rank, 3))
            resumed.set_state(stopped.get_state())
            assert [tokens.tolist() for tokens, _, _ in resumed] == whole[done:]
    assert sorted(firsts) == [int(pack.tokens[0]) for pack in shards]
