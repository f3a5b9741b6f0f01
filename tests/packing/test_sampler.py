"""Sampler of packs.

Ranks agree without talking, documents come once per epoch, and a run resumes in its place.
"""

from typing import Any

import numpy as np
import pytest

from packprep.packing.api import pack_lengths
from packprep.packing.sampler import MultipackSampler
from packprep.support.errors import ConfigError
from packprep.support.hashing import Purpose, stream

LENGTHS = np.random.default_rng(0).integers(1, 100, 1000)


def samplers(world: int, **options: Any) -> list[MultipackSampler]:
    return [
        MultipackSampler(LENGTHS, 256, 2, rank=rank, world_size=world, **options)
        for rank in range(world)
    ]


def documents(batches: list[list[list[int]]]) -> list[int]:
    return [document for batch in batches for pack in batch for document in pack]


def test_sequential_is_first_fit_in_input_order_and_ranks_take_turns() -> None:
    """As in axolotl's allocate_sequentially: first fit without sorting, bins dealt round robin."""
    sampler = MultipackSampler([5, 3, 4, 1, 2, 6], max_length=8, sequential=True)
    assert (len(sampler), sampler.efficiency) == (3, 21 / 24)
    assert list(sampler) == [[[0, 1]], [[2, 3, 4]], [[5]]]
    lengths, bins = [100, 2000, 200, 1800, 300, 1700], [[0, 2, 4], [1], [3], [5]]
    both: Any = {"lengths": lengths, "max_length": 2048, "sequential": True}
    by_rank = [list(MultipackSampler(**both, rank=rank, world_size=2)) for rank in range(2)]
    assert by_rank == [[[bins[0]], [bins[2]]], [[bins[1]], [bins[3]]]]
    assert list(MultipackSampler(**both, batch_size=4)) == [bins]


@pytest.mark.parametrize("group_size", [None, 100])
@pytest.mark.parametrize("strategy", ["stream", "best_fit", "optimal"])
def test_ranks_divide_the_epoch(strategy: str, group_size: int | None) -> None:
    ranks = samplers(3, strategy=strategy, group_size=group_size)
    lengths = {len(sampler) for sampler in ranks}
    by_rank = [list(sampler) for sampler in ranks]
    assert lengths == {len(batches) for batches in by_rank}
    seen = [document for batches in by_rank for document in documents(batches)]
    assert len(set(seen)) == len(seen) > 900
    assert all(len(batch) == 2 for batches in by_rank for batch in batches)
    packs = [pack for batches in by_rank for batch in batches for pack in batch]
    assert max(LENGTHS[pack].sum() for pack in packs) <= 256
    filled = sum(int(LENGTHS[pack].sum()) for pack in packs)
    assert {sampler.efficiency for sampler in ranks} == {filled / (len(packs) * 256)}


def test_no_pack_is_dropped_when_the_last_batches_are_filled_up() -> None:
    by_rank = [list(sampler) for sampler in samplers(3, drop_last=False)]
    assert len({len(batches) for batches in by_rank}) == 1
    assert {document for batches in by_rank for document in documents(batches)} == set(range(1000))


def test_a_world_larger_than_the_epoch_gets_nothing_or_repeats() -> None:
    alone: dict[str, Any] = {"lengths": [5, 3], "max_length": 8, "batch_size": 4, "world_size": 2}
    assert (len(MultipackSampler(**alone)), list(MultipackSampler(**alone))) == (0, [])
    assert MultipackSampler(**alone).efficiency == 1.0
    assert list(MultipackSampler(**alone, drop_last=False)) == [[[0, 1]] * 4]


def test_every_epoch_is_packed_again_and_equally_for_the_same_seed() -> None:
    first, again = (MultipackSampler(LENGTHS, 256, seed=5) for _ in range(2))
    epochs = []
    for epoch in range(3):
        first.set_epoch(epoch)
        again.set_epoch(epoch)
        epochs.append(list(first))
        assert epochs[-1] == list(again)
    together = [{tuple(pack) for batch in batches for pack in batch} for batches in epochs]
    assert len(together[0] & together[1]) < 0.1 * len(together[0])
    again.set_epoch(0)
    assert list(again) == epochs[0]


def test_group_size_and_max_segments_limit_which_documents_share_a_pack() -> None:
    sampler = MultipackSampler(LENGTHS, 256, group_size=50, max_segments_per_pack=4)
    groups = sampler.plan.groups
    assert groups is not None
    assert np.bincount(groups).tolist() == [50] * 20
    packs = [pack for batch in sampler for pack in batch]
    assert all(len(set(groups[pack])) == 1 for pack in packs)
    assert max(map(len, packs)) <= 4


def test_order_ranks_cost_and_number_of_packs_are_those_of_pack_lengths() -> None:
    options: dict[str, Any] = {"order": "balanced", "balance_ranks": 3, "cost": (1.0, 2.0)}
    options["num_packs"] = 250
    sampler = MultipackSampler(LENGTHS, 256, world_size=4, strategy="balanced", **options)
    seed = int(stream(0, Purpose.EPOCH, 0))
    expected = pack_lengths(LENGTHS, 256, "balanced", seed, shuffle_documents=True, **options)
    assert sampler.plan.num_packs == 250
    assert sampler.plan.order.tolist() == expected.order.tolist()
    assert sampler.plan.offsets.tolist() == expected.offsets.tolist()
    assert MultipackSampler(LENGTHS, 256, world_size=4).balance_ranks == 4
    reordered = MultipackSampler([5, 3, 4, 1, 2, 6], 8, sequential=True, order="length")
    assert list(reordered) == [[[5]], [[0, 1]], [[2, 3, 4]]]


def test_resumes_mid_epoch_at_another_world_size() -> None:
    everything = list(MultipackSampler(LENGTHS, 256, 1))
    before = samplers(2)
    for sampler in before:
        batches = iter(sampler)
        for _ in range(5):
            next(batches)
    state = before[0].state_dict()
    assert state == before[1].state_dict() == {"epoch": 0, "packs": 20, "seed": 0}
    after = MultipackSampler(LENGTHS, 256, 1)
    after.load_state_dict(state)
    after.set_epoch(0)  # trainers say so again after loading
    assert len(after) == len(everything) - 20
    assert list(after) == everything[20:]
    assert list(after) == everything  # the next time round starts at the beginning


def test_wrong_arguments_epochs_and_states_are_refused() -> None:
    usual: dict[str, Any] = {"lengths": [1], "max_length": 8}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"rank": 2, "world_size": 2}, "rank is 2, expected 0 to 1, world_size - 1"),
        ({"batch_size": 0}, "batch_size is 0, expected at least 1"),
        ({"group_size": 0}, "group_size is 0, expected at least 1"),
        ({"balance_ranks": 0}, "balance_ranks is 0 but must be a whole number"),
        ({"lengths": [9]}, r"lengths\[0\] is 9 but a pack holds 8"),
    ]
    for options, words in wrong:
        with pytest.raises(ConfigError, match=words):
            len(MultipackSampler(**usual | options))
    sampler = MultipackSampler([1], 8)
    with pytest.raises(ConfigError, match="epoch is -1, expected at least 0"):
        sampler.set_epoch(-1)
    with pytest.raises(ConfigError, match="saved with seed 1 but this sampler has seed 0"):
        sampler.load_state_dict({"epoch": 0, "packs": 0, "seed": 1})
