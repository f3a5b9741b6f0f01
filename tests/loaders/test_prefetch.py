"""Batches made ahead of the reader, and the buffers that they are made in."""

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packprep.loaders import PackedLoader, PackedShards
from packprep.loaders.ahead import _Queue, prefetched
from packprep.loaders.buffers import BlockPool
from packprep.schemas import FormatError
from tests.helpers.tiny_shards import ROWS, write_output

from .test_batches import lists


@pytest.fixture
def shards(tmp_path: Path) -> PackedShards:
    write_output(tmp_path / "out", {"train": [ROWS]})
    return PackedShards(tmp_path / "out")


def test_batches_and_their_arrays_may_be_kept(shards: PackedShards) -> None:
    loader = PackedLoader(shards, 1, prefetch=2, shuffle=False)
    one_by_one = [lists(batch) for batch in loader]
    assert [lists(batch) for batch in [*loader]] == one_by_one
    kept = [batch.position_ids[:2] for batch in loader]
    assert len([*loader]) == 6
    assert [values.tolist() for values in kept] == [row["position_ids"][:2] for row in ROWS]


def test_a_buffer_comes_back_only_when_no_view_of_it_is_left() -> None:
    pool = BlockPool(8, keep=2)
    array, block = pool.lend()
    view = array[2:4][:1]
    del array
    gc.collect()
    other, other_block = pool.lend()
    assert other_block is not block
    assert not np.shares_memory(view, other)
    del view
    assert pool.lend()[1] is block


@pytest.mark.parametrize(("prefetch", "buffers"), [(0, 3), (1, 4)])
def test_buffers_are_used_again_when_batches_are_let_go(
    shards: PackedShards, prefetch: int, buffers: int
) -> None:
    loader = PackedLoader(shards, 1, prefetch=prefetch)
    used = [batch.tokens.ctypes.data for _ in range(5) for batch in loader]
    assert len(set(used)) <= buffers


def test_the_prefetch_thread_ends_with_the_iteration(shards: PackedShards) -> None:
    def prefetching() -> bool:
        return "packprep-prefetch" in {thread.name for thread in threading.enumerate()}

    loader = PackedLoader(shards, 1, prefetch=2)
    iterator: Any = iter(loader)
    next(iterator)
    assert prefetching()
    iterator.close()
    assert not prefetching()
    assert len([*loader]) == 6
    assert not prefetching()


def test_an_error_of_the_prefetch_thread_is_raised_in_order(tmp_path: Path) -> None:
    wrong = {**ROWS[1], "cu_seqlens": [0, 7]}
    write_output(tmp_path / "out", {"train": [[ROWS[0], wrong, ROWS[2]]]})
    iterator = iter(PackedLoader(PackedShards(tmp_path / "out"), 1, shuffle=False))
    assert next(iterator).tokens.tolist() == ROWS[0]["tokens"]
    with pytest.raises(FormatError, match=r"00000-of-00001\.arrow pack 1: cu_seqlens are \[0, 7\]"):
        next(iterator)


def test_batches_are_made_ahead_of_a_slow_reader_and_no_more_than_asked() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(9):
            made.append(number)
            yield number

    steps: list[int] = []
    iterator = prefetched(items(), 3, steps.append)
    for taken in range(5):
        assert next(iterator) == taken
        while len(made) < taken + 4:  # without a thread that works now this would never end
            time.sleep(0.001)
        time.sleep(0.03)
        assert made == [*range(taken + 4)]
        assert steps == [*range(taken + 1)]
    assert [*iterator] == [5, 6, 7, 8]


def test_a_reader_that_finds_no_batch_makes_it_itself() -> None:
    makers: set[str] = set()

    def items() -> Iterator[int]:
        for number in range(50):
            makers.add(threading.current_thread().name)
            yield number

    queue = _Queue(items(), 2)
    queue.take()
    assert queue.take() == [1]
    assert makers == {threading.current_thread().name}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("error", [None, RuntimeError("the disk is gone")])
def test_quick_and_slow_readers_see_the_same_batches_and_the_error_in_its_place(
    seed: int, error: RuntimeError | None
) -> None:
    random = np.random.default_rng(seed)

    def items() -> Iterator[int]:
        for number in range(200):
            if random.random() < 0.1:
                time.sleep(0.001)
            yield number
        if error:
            raise error

    seen: list[int] = []
    pauses = np.random.default_rng(seed + 10).choice([0, 0, 0, 0.0003, 0.003], 200)

    def read() -> None:
        for item in prefetched(items(), 2, lambda step: None):
            seen.append(item)
            if pauses[item]:
                time.sleep(pauses[item])

    with pytest.raises(RuntimeError, match="the disk is gone") if error else nullcontext():
        read()
    assert seen == [*range(200)]
