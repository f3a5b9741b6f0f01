from pathlib import Path
from typing import Any

import pytest
from torchdata.nodes import Loader, ParallelMapper

from packprep.loaders import PackedLoader, PackedShards, to_node
from tests.helpers.numbered_shards import numbered_shards


@pytest.fixture
def shards(tmp_path: Path) -> PackedShards:
    return numbered_shards(tmp_path / "out", 13)


def firsts(batches: Any) -> list[int]:
    return [int(batch.tokens[0]) for batch in batches]


def nodes(shards: PackedShards, rank: int = 0, world_size: int = 1) -> Any:
    """torchdata's loader over a graph of two nodes: the batches, and threads that map them."""
    loader = PackedLoader(shards, 1, seed=5, rank=rank, world_size=world_size)
    return Loader(
        ParallelMapper(to_node(loader), lambda batch: batch, num_workers=2, method="thread")
    )


def test_each_pass_is_an_epoch_of_the_loader(shards: PackedShards) -> None:
    graph = nodes(shards)
    for epoch in range(3):
        expected = PackedLoader(shards, 1, seed=5, epoch=epoch)
        assert firsts(graph) == firsts(expected)


def test_the_ranks_read_every_pack_once(shards: PackedShards) -> None:
    shares = [firsts(nodes(shards, rank, 2)) for rank in range(2)]
    assert [len(share) for share in shares] == [6, 6]
    order = firsts(PackedLoader(shards, 1, seed=5))[:12]
    assert shares == [order[0::2], order[1::2]]


@pytest.mark.parametrize("done", [0, 1, 7, 12])
def test_a_graph_resumes_in_the_middle_of_any_epoch(shards: PackedShards, done: int) -> None:
    graph = nodes(shards)
    first = firsts(graph)
    batches = iter(graph)
    second = firsts(next(batches) for _ in range(done))
    resumed = nodes(shards)
    resumed.load_state_dict(graph.state_dict())
    rest, third = firsts(resumed), firsts(resumed)
    expected = [firsts(PackedLoader(shards, 1, seed=5, epoch=epoch)) for epoch in range(3)]
    assert [first, second + rest, third] == expected


def test_a_state_at_the_end_of_an_epoch_resumes_with_the_next(shards: PackedShards) -> None:
    graph = nodes(shards)
    firsts(graph)
    resumed = nodes(shards)
    resumed.load_state_dict(graph.state_dict())
    assert firsts(resumed) == firsts(PackedLoader(shards, 1, seed=5, epoch=1))


def test_a_pass_that_was_left_begins_again(shards: PackedShards) -> None:
    graph = nodes(shards)
    next(iter(graph))
    assert firsts(graph) == firsts(PackedLoader(shards, 1, seed=5))
