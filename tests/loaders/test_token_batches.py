"""Batches of at most so many tokens: equal steps on all ranks, the same stream on any number."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import load_from_disk
from hypothesis import given
from hypothesis import strategies as st

from packprep import build
from packprep.loaders import Pack, PackedBatch, PackedLoader, PackedShards, batch_from_rows
from packprep.loaders.order import next_fit_bounds
from packprep.schemas import FormatError
from tests.helpers.numbered_shards import numbered_shards
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
            runs.append([])
            room = budget
        runs[-1].append(pack)
        room -= size
    return [sorted(run) for run in runs]


@given(st.lists(st.integers(1, 9), max_size=30), st.integers(9, 40))
def test_runs_are_those_of_next_fit_also_from_any_of_their_bounds(
    tokens: list[int], budget: int
) -> None:
    lengths = np.array(tokens, np.int64)
    bounds = next_fit_bounds(lengths, budget)
    runs = [lengths[first:last].sum() for first, last in itertools.pairwise(bounds)]
    assert bounds[0] == 0
    assert bounds[-1] == len(tokens)
    for run, end in zip(runs, bounds[1:], strict=True):
        assert run <= budget
        assert end == len(tokens) or run + tokens[end] > budget
    for number, bound in enumerate(bounds):
        later = [bound + each for each in next_fit_bounds(lengths[bound:], budget)]
        assert later == bounds[number:]


@given(
    budget=st.integers(8, 40),
    size=st.integers(1, 3),
    remainder=st.sampled_from(["drop", "fill"]),
    shuffle=st.booleans(),
    epoch=st.integers(0, 2),
)
def test_ranks_share_the_runs_of_the_order(
    shards: PackedShards, budget: int, size: int, remainder: Any, shuffle: bool, epoch: int
) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "epoch": epoch, "prefetch": 0}
    runs = runs_by_hand(shards, order_of(shards, **options), budget)
    options |= {"max_tokens": budget, "world_size": size, "remainder": remainder}
    loaders = [PackedLoader(shards, rank=rank, **options) for rank in range(size)]
    steps = -(-len(runs) // size) if remainder == "fill" else len(runs) // size
    assert [len(loader) for loader in loaders] == [steps] * size
    batches = [[*loader] for loader in loaders]
    assert {len(of_rank) for of_rank in batches} == {steps}
    found = [packs_of(of_rank[step]) for step in range(steps) for of_rank in batches]
    assert found == (runs + [[]] * size)[: steps * size]
    assert all(len(batch) <= budget for of_rank in batches for batch in of_rank)
    assert [packs_of(loaders[0][step]) for step in range(steps)] == found[::size]


@given(
    first=st.integers(1, 3),
    second=st.integers(1, 3),
    stop=st.integers(0, 4),
    budget=st.integers(8, 20),
)
def test_a_state_resumes_the_stream_at_another_number_of_ranks(
    shards: PackedShards, first: int, second: int, stop: int, budget: int
) -> None:
    def loader(rank: int, size: int) -> PackedLoader:
        return PackedLoader(shards, max_tokens=budget, rank=rank, world_size=size, seed=5)

    before = [list[list[int]]() for _ in range(first)]
    states: list[dict[str, int]] = []
    for rank in range(first):
        one = loader(rank, first)
        stop = min(stop, len(one))
        before[rank] = [packs_of(batch) for batch in itertools.islice(one, stop)]
        states.append(one.state_dict())
    assert all(state == states[0] for state in states)
    assert all(isinstance(value, int) for value in states[0].values())
    after = []
    for rank in range(second):
        one = loader(rank, second)
        one.load_state_dict(states[0])
        after.append([packs_of(batch) for batch in one])
    stream = [packs for step in zip(*before, strict=True) for packs in step]
    stream += [packs for step in zip(*after, strict=True) for packs in step]
    assert stream == runs_by_hand(shards, order_of(shards, seed=5), budget)[: len(stream)]


def test_workers_and_threads_give_the_same_batches(shards: PackedShards) -> None:
    plain = [packs_of(batch) for batch in PackedLoader(shards, max_tokens=16, prefetch=0)]
    assert [packs_of(batch) for batch in PackedLoader(shards, max_tokens=16)] == plain
    pytest.importorskip("torch")
    loader = PackedLoader(shards, max_tokens=16, prefetch=0)
    assert [packs_of(batch.numpy()) for batch in loader.dataloader()] == plain


def test_shapes_are_fixed_with_pad_to_and_padding_counts(shards: PackedShards) -> None:
    fixed = PackedLoader(shards, max_tokens=30, pad_to=32, labels="shifted")
    assert {len(batch) for batch in fixed} == {32}
    sliced = PackedLoader(shards, max_tokens=30, cp_size=2, labels="shifted")
    sizes = {len(batch) for batch in sliced}
    assert max(sizes) <= 28
    assert {size % 4 for size in sizes} == {0}


def test_settings_that_cannot_work(shards: PackedShards) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"max_tokens": 0}, "max_tokens is 0; expected 1 or more"),
        ({"max_tokens": 7}, "max_tokens is 7 and a pack of .* has up to 8; choose 8 or more"),
        ({"max_tokens": 16, "pad_to": 12}, "pad_to is 12 and max_tokens 16; expected 16 or more"),
        ({"max_tokens": 100, "world_size": 9}, "23 packs, too few for one .* 100 tokens on .* 9"),
    ]
    for options, message in refused:
        with pytest.raises(ValueError, match=message):
            PackedLoader(shards, **options)
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
