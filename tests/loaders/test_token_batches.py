"""Batches of at most so many tokens: equal steps on all ranks, the same stream on any number."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import load_from_disk
from hypothesis import given
from hypothesis import strategies as st

from packprep import build
from packprep.loaders import Pack, PackedBatch, PackedLoader, PackedShards, batch_from_rows
from packprep.loaders.shape import BatchShape, ShapeSettings
from packprep.schemas import FormatError
from tests.helpers.tiny_shards import numbered_shards
from tests.helpers.zoo import Zoo


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> PackedShards:
    """23 packs of 6, 7 and 8 tokens in three shards."""
    return numbered_shards(tmp_path_factory.mktemp("numbered") / "out", 23)


def packs_of(batch: PackedBatch) -> list[int]:
    """Numbers of the packs of a batch, from its documents; [] for filler."""
    return sorted({int(document) // 3 for document in batch.document_ids if document >= 0})


def order_of(shards: PackedShards, **options: Any) -> list[int]:
    return [packs_of(batch)[0] for batch in PackedLoader(shards, 1, **options)]


def runs_by_hand(shards: PackedShards, order: list[int], budget: int) -> list[list[int]]:
    """Next fit, one pack after another."""
    runs: list[list[int]] = []
    room = -1
    for pack in order:
        size = len(shards[pack].tokens)
        if size > room:
            runs, room = [*runs, []], budget
        runs[-1].append(pack)
        room -= size
    return [sorted(run) for run in runs]


def loaders_of(shards: PackedShards, size: int, **options: Any) -> list[PackedLoader]:
    options |= {"world_size": size, "prefetch": 0}
    return [PackedLoader(shards, rank=rank, **options) for rank in range(size)]


def packs_in(loaders: list[PackedLoader], steps: int | None = None) -> list[list[int]]:
    """The packs of each batch, of the first `steps` steps, rank after rank."""
    batches = itertools.islice(zip(*loaders, strict=True), steps)
    return [packs_of(batch) for step in batches for batch in step]


BUDGETS, RANKS = st.integers(8, 40), st.integers(1, 3)


@given(BUDGETS, RANKS, st.sampled_from(["drop", "fill"]), st.booleans(), st.integers(0, 2))
def test_ranks_share_the_runs_of_the_order(
    shards: PackedShards, budget: int, size: int, remainder: Any, shuffle: bool, epoch: int
) -> None:
    order: dict[str, Any] = {"shuffle": shuffle, "epoch": epoch}
    runs = runs_by_hand(shards, order_of(shards, **order), budget)
    loaders = loaders_of(shards, size, max_tokens=budget, remainder=remainder, **order)
    steps = -(-len(runs) // size) if remainder == "fill" else len(runs) // size
    assert [len(loader) for loader in loaders] == [steps] * size
    found = packs_in(loaders)
    assert found == (runs + [[]] * size)[: steps * size]
    assert all(len(batch) <= budget for loader in loaders for batch in loader)
    assert [packs_of(loaders[0][step]) for step in range(steps)] == found[::size]


@given(RANKS, RANKS, st.integers(1, 4), st.integers(8, 20))
def test_a_state_resumes_the_stream_at_another_number_of_ranks(
    shards: PackedShards, first: int, second: int, stop: int, budget: int
) -> None:
    before = loaders_of(shards, first, max_tokens=budget, seed=5)
    stream = packs_in(before, stop)
    states = [loader.state_dict() for loader in before]
    assert all(state == states[0] for state in states)
    assert all(isinstance(value, int) for value in states[0].values())
    after = loaders_of(shards, second, max_tokens=budget)
    for loader in after:
        loader.load_state_dict(states[0])
    stream += packs_in(after)
    assert stream == runs_by_hand(shards, order_of(shards, seed=5), budget)[: len(stream)]


def test_threads_give_the_same_batches_and_padding_counts(shards: PackedShards) -> None:
    plain = packs_in(loaders_of(shards, 1, max_tokens=16))
    loader = PackedLoader(shards, max_tokens=16)
    assert [packs_of(batch) for batch in loader] == plain
    pytest.importorskip("torch")
    assert [packs_of(batch.numpy()) for batch in loader.dataloader()] == plain
    shape = BatchShape(max_tokens=30, pad_to=32)
    fixed = PackedLoader(shards, shape=shape, labels="shifted")
    assert {len(batch) for batch in fixed} == {32}
    free = PackedLoader(shards, shape=shape, pad_to=None, cp_size=2, labels="shifted")
    assert {len(batch) for batch in free} <= {*range(0, 29, 4)}
    assert {*ShapeSettings.__annotations__, "packs_per_batch"} == {*vars(shape)}


def test_shards_that_are_not_mapped_have_no_batches_of_tokens(shards: PackedShards) -> None:
    unmapped = PackedShards(shards.path, mmap=False)  # would be read whole
    with pytest.raises(ValueError, match="batches of max_tokens need the lengths of all packs"):
        PackedLoader(unmapped, max_tokens=16)


def test_an_index_gives_the_batches_and_packs_of_its_shards(zoo: Zoo, tmp_path: Path) -> None:
    full = tmp_path / "full"
    build(replace(zoo.config("index"), output=str(full), materialize="shards"))
    for split in ("train", "validation"):
        of_shards, of_index = (PackedShards(path, split=split) for path in (full, zoo["index"]))
        for settings in ({"max_tokens": 150}, {"packs_per_batch": 2}):
            assert tokens_of(of_shards, settings) == tokens_of(of_index, settings)
        for one, two in zip(of_shards, of_index, strict=True):
            assert plain(one) == plain(two)
    rows = load_from_disk(zoo["index"] / "train")
    with pytest.raises(FormatError, match=r"an index .*which has no tokens; read it with PackedSh"):
        batch_from_rows([rows[0]])


def tokens_of(shards: PackedShards, settings: Any) -> list[list[int]]:
    batches = [batch.tokens.tolist() for batch in PackedLoader(shards, **settings)]
    assert len(batches) > 3
    return batches


def plain(pack: Pack) -> dict[str, Any]:
    return {name: (str(each.dtype), each.tolist()) for name, each in pack.columns.items()}
