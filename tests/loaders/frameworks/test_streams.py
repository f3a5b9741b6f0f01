"""Batches through the loaders of other libraries: each pack once, and exact resume.

torchdata's nodes, IterableDataset of datasets, Grain as MaxText and torchtitan call it.
"""

import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import grain
import numpy as np
import pytest
from datasets import IterableDataset
from grain.experimental import FirstFitPackIterDataset
from hypothesis import given
from hypothesis import strategies as st
from torchdata.nodes import Loader, ParallelMapper

from packprep.loaders import (
    MaxTextSource,
    PackedLoader,
    PackedShards,
    TorchtitanSource,
    batch_from_rows,
    to_iterable_dataset,
    to_node,
    to_torchtitan,
)
from packprep.schemas import STANDARD_COLUMNS
from tests.helpers.tiny_shards import GOLDEN, numbered_shards, row_of, write_output


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> PackedShards:
    return numbered_shards(tmp_path_factory.mktemp("few") / "out", 12)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> PackedShards:
    """200 packs, so a loader of one rank makes four shards of a dataset."""
    return numbered_shards(tmp_path_factory.mktemp("many") / "out", 200)


def firsts(batches: Any) -> list[int]:
    """The first token of each batch or row, which names its pack."""
    return [int((each["tokens"] if isinstance(each, dict) else each.tokens)[0]) for each in batches]


@dataclass
class Stream:
    """First tokens of the batches of a rank, and the state of the library's loader."""

    firsts: Iterator[int]
    state: Callable[[], Any]


def of_node(shards: PackedShards, rank: int, world_size: int, state: Any = None) -> Stream:
    graph = nodes(shards, rank, world_size)
    if state is not None:
        graph.load_state_dict(state)
    return Stream((int(batch.tokens[0]) for batch in graph), graph.state_dict)


def nodes(shards: PackedShards, rank: int = 0, world_size: int = 1) -> Any:
    """torchdata's loader over a graph of two nodes: the batches, and threads that map them."""
    loader = PackedLoader(shards, 1, seed=5, rank=rank, world_size=world_size)
    mapped = ParallelMapper(to_node(loader), lambda batch: batch, num_workers=2, method="thread")
    return Loader(mapped)


def of_datasets(shards: PackedShards, rank: int, world_size: int, state: Any = None) -> Stream:
    dataset = to_iterable_dataset(PackedLoader(shards, 1, rank=rank, world_size=world_size))
    if state is not None:
        dataset.load_state_dict(state)
    return Stream((int(row["tokens"][0]) for row in dataset), dataset.state_dict)


def of_grain(batches: Any, name: str, state: Any) -> Stream:
    iterator = iter(batches)
    if state is not None:
        iterator.set_state(state)
    return Stream((int(batch[name][0][0]) for batch in iterator), iterator.get_state)


def of_maxtext(shards: PackedShards, rank: int, world_size: int, state: Any = None) -> Stream:
    source = MaxTextSource(shards)
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    share = grain.MapDataset.source(source).shuffle(seed=3)[rank::world_size]
    return of_grain(share.batch(1).to_iter_dataset(), "inputs", state)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSequence:
    """That of torchtitan's main branch, which is on no package index; steps are of b5bcd76c."""

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


def collated(rows: Sequence[TextSequence]) -> dict[str, Any]:
    """Tokens of TextCollator, which pads with a document of zeros."""
    return {"tokens": [np.pad(row.input_ids, (0, 8 - len(row.input_ids))) for row in rows]}


def of_torchtitan(shards: PackedShards, rank: int, world_size: int, state: Any = None) -> Stream:
    source = TorchtitanSource(path=str(shards.path)).build(dataset_iteration_policy=None)
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    shuffled = grain.MapDataset.source(source).shuffle(seed=42)
    size, remainder = divmod(len(shuffled), world_size)
    start = rank * size + min(rank, remainder)
    share = shuffled[start : start + size + (rank < remainder)]
    return of_grain(share.to_iter_dataset().batch(1, batch_fn=collated), "tokens", state)


@pytest.mark.parametrize("read", [of_node, of_datasets, of_maxtext, of_torchtitan])
def test_ranks_share_every_pack_and_each_resumes_exactly_after_any_batch(
    shards: PackedShards, read: Callable[..., Stream]
) -> None:
    seen = []
    for rank in range(3):
        whole = [*read(shards, rank, 3).firsts]
        for done in range(len(whole)):
            stopped = read(shards, rank, 3)
            begun = [next(stopped.firsts) for _ in range(done)]
            assert [*begun, *read(shards, rank, 3, stopped.state()).firsts] == whole
        seen += whole
    assert sorted(seen) == firsts(shards)
    assert seen != sorted(seen)


def test_each_pass_over_nodes_is_an_epoch_of_the_loader_and_resumes_in_it(
    shards: PackedShards,
) -> None:
    epochs = [firsts(PackedLoader(shards, 1, seed=5, epoch=epoch)) for epoch in range(3)]
    graph = nodes(shards)
    assert [firsts(graph), firsts(graph)] == epochs[:2]
    resumed = nodes(shards)
    resumed.load_state_dict(graph.state_dict())  # at the end of an epoch: with the next
    assert firsts(resumed) == epochs[2]
    left = nodes(shards)
    next(iter(left))  # a pass that was left begins again
    assert firsts(left) == epochs[0]
    batches = iter(left)
    begun = firsts(next(batches) for _ in range(5))
    middle = nodes(shards)
    middle.load_state_dict(left.state_dict())
    assert [begun + firsts(middle), firsts(middle)] == epochs[1:]


def test_a_row_of_a_dataset_is_a_batch_of_the_loader_in_the_columns_that_adapters_read() -> None:
    loader = PackedLoader(PackedShards(GOLDEN / "v1-rich", split="train"), 2, columns=["weight"])
    dataset = to_iterable_dataset(loader)
    assert isinstance(dataset, IterableDataset)
    names = ("tokens", "position_ids", "cu_seqlens", "labels", "document_ids", "segment_lengths")
    for row, batch in zip(dataset, loader, strict=True):
        again = batch_from_rows([row])
        for name in names:
            assert getattr(again, name).tolist() == getattr(batch, name).tolist(), name
        assert row["weight"].tolist() == batch.extra["weight"].tolist()
    example = PackedShards(GOLDEN / "v1-example")
    hf, shifted = (
        [row["labels"].tolist() for row in to_iterable_dataset(PackedLoader(example, 1, labels=k))]
        for k in ("hf", "shifted")
    )
    assert hf == shifted  # stored unshifted


@pytest.mark.parametrize("done", [0, 1, 63, 64, 65, 130, 199])
def test_a_dataset_has_the_order_of_the_loader_and_resumes_within_any_of_its_shards(
    many: PackedShards, done: int
) -> None:
    dataset, resumed = (to_iterable_dataset(PackedLoader(many, 1, epoch=3)) for _ in range(2))
    assert dataset.num_shards == 4
    rows = iter(dataset)
    begun = firsts(next(rows) for _ in range(done))
    resumed.load_state_dict(dataset.state_dict())
    assert begun + firsts(resumed) == firsts(PackedLoader(many, 1, epoch=3))


def maxtext_record(documents: list[list[int]], length: int) -> dict[str, Any]:
    """MaxText's steps at e591f30c for one pack, in Grain's packer, then renamed and shifted."""
    rows = [dict.fromkeys(("inputs", "targets"), np.array(each, np.int32)) for each in documents]
    source = grain.MapDataset.source(rows).to_iter_dataset()
    sizes = {"inputs": length, "targets": length}
    (packed,) = FirstFitPackIterDataset(source, length_struct=sizes, num_packing_bins=1)
    record = {
        name.replace("_segment_ids", "_segmentation").replace("_positions", "_position"): value
        for name, value in packed.items()
    }
    for name in ("targets", "targets_segmentation"):
        record[name] = np.append(record[name][1:], np.int32(0))
    record["targets_segmentation"] *= record["targets"] != 0
    return record


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_a_record_is_that_of_grains_packer_but_no_target_crosses_the_end_of_a_document(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int]
) -> None:
    ends = np.cumsum([0, *lengths])
    tokens = [*range(1, int(ends[-1]) + 1)]
    path = tmp_path_factory.mktemp("shards") / "out"
    write_output(path, {"train": [[{**row_of(0, *lengths), "tokens": tokens}]]}, max_length=24)
    record = MaxTextSource(PackedShards(path))[0]
    expected = maxtext_record([tokens[first:last] for first, last in pairwise(ends)], 24)
    for name in ("targets", "targets_segmentation"):
        expected[name][ends[1:] - 1] = 0
    assert {value.dtype for value in record.values()} == {np.dtype(np.int32)}
    found, wanted = ({name: each[name].tolist() for name in each} for each in (record, expected))
    assert found == wanted


def test_padding_filler_and_labels_without_loss_are_zero_in_the_segmentation(
    tmp_path: Path,
) -> None:
    """Documents of 3 and 4 tokens, padded to 4 each, a filler of 4, and nothing behind it."""
    record = MaxTextSource(PackedShards(GOLDEN / "v1-rich", split="train"))[0]
    assert {name: value.tolist() for name, value in record.items()} == {
        "inputs": [5, 5, 5, 0, 5, 5, 5, 5] + [0] * 8,
        "inputs_position": [0, 1, 2, 0, 0, 1, 2, 3] + [0] * 8,
        "inputs_segmentation": [1, 1, 1, 0, 2, 2, 2, 2] + [0] * 8,
        "targets": [5, 5, 0, 0, 5, 5, 5, 0] + [0] * 8,
        "targets_position": [0, 1, 2, 0, 0, 1, 2, 3] + [0] * 8,
        "targets_segmentation": [1, 1, 0, 0, 2, 2, 2, 0] + [0] * 8,
    }
    row = {"tokens": [7, 8, 9], "cu_seqlens": [0, 3], "labels": [-100, -100, 9]}
    columns = [STANDARD_COLUMNS[name] for name in row]
    write_output(tmp_path / "out", {"train": [[row]]}, columns, max_length=4)
    record = MaxTextSource(PackedShards(tmp_path / "out"))[0]
    assert record["targets"].tolist() == [0, 9, 0, 0]
    assert record["targets_segmentation"].tolist() == [0, 1, 0, 0]
    assert record["inputs_segmentation"].tolist() == [1, 1, 1, 0]


def test_a_source_pickles_for_worker_processes_and_refuses_a_short_length(
    shards: PackedShards,
) -> None:
    source = MaxTextSource(shards, length=16)
    copy = pickle.loads(pickle.dumps(source))
    assert repr(copy) == repr(source)
    assert str(shards.path) not in repr(source)  # Grain resumes from shards at another path
    assert copy[3]["inputs"].tolist() == source[3]["inputs"].tolist()
    assert len(source[0]["targets"]) == 16
    with pytest.raises(ValueError, match=r"^length is 4; .*out has packs of up to 8 tokens$"):
        MaxTextSource(shards, length=4)
    packs = grain.MapDataset.source(shards).seed(1).shuffle()  # the shards are a source too
    assert sorted(packs.map(lambda pack: int(pack.tokens[0]))) == firsts(shards)


def test_a_row_for_torchtitan_is_the_batch_of_to_torchtitan() -> None:
    source = TorchtitanSource(path=str(GOLDEN / "v1-rich"), split="train").build()
    shards = PackedShards(GOLDEN / "v1-rich", split="train")
    loader = PackedLoader(shards, 1, shuffle=False, labels="shifted")
    for row, batch in zip((source[index] for index in range(len(source))), loader, strict=True):
        fields, labels = to_torchtitan(batch, version="main")
        given = (row.input_ids, row.positions, row.labels)
        for found, wanted in zip(given, (*fields.values(), labels), strict=True):
            assert (found.dtype, found.tolist()) == (np.int64, wanted.tolist())
