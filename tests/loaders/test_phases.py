"""Batches of an output with phases: one phase after another, with the same tokens in each batch."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from packprep import build
from packprep.loaders import PackedLoader, PackedShards
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.files import config

LENGTHS = (16, 32, 64)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> PackedShards:
    """Three phases of packs of 16, 32 and 64 tokens, in several shards each."""
    folder = tmp_path_factory.mktemp("phases")
    for name in ("a", "b"):
        write_jsonl(folder / f"{name}.jsonl", texts(300, seed=ord(name)))
    build(
        config(
            sources=[folder / "a.jsonl", folder / "b.jsonl"],
            output=folder / "out",
            tokenizer=save_tokenizer(folder / "t"),
            phases=[
                {"tokens": "50%", "weights": [3, 1], "max_length": 16},
                {"tokens": "30%", "weights": [1, 1], "max_length": 32},
                {"tokens": "20%", "weights": [1, 3], "max_length": 64},
            ],
            shard_size=8_000,
            window=5_000,
            engine="hf",
        )
    )
    return PackedShards(folder / "out", verify=True)


def documents(batch: Any) -> list[int]:
    return batch.document_ids.tolist()  # type: ignore[no-any-return]


def first_pack_of_phase(shards: PackedShards, phase: int) -> int:
    return sum(each.packs for each in shards.phases[:phase])


def test_shards_name_their_phases(shards: PackedShards) -> None:
    assert [phase.max_length for phase in shards.phases] == [*LENGTHS]
    assert sum(phase.packs for phase in shards.phases) == len(shards)
    assert sum(phase.shards for phase in shards.phases) == len(shards.plans[0].packs_per_shard)
    assert min(phase.shards for phase in shards.phases) > 1
    at = 0
    for phase in shards.phases:
        lengths = [len(shards[number].tokens) for number in range(at, at + phase.packs)]
        assert phase.max_length / 2 < max(lengths) <= phase.max_length
        at += phase.packs


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("remainder", ["drop", "fill"])
def test_phases_follow_one_another_with_the_same_tokens_in_a_batch(
    shards: PackedShards, shuffle: bool, remainder: Any
) -> None:
    loader = PackedLoader(shards, 8, shuffle=shuffle, remainder=remainder, pad_to=128)
    phases, seen = [], 0
    for number, batch in enumerate(loader):
        phases.append(loader.phase)
        assert len(batch.tokens) == 128
        again = loader[number]
        np.testing.assert_array_equal(batch.tokens, again.tokens)
        seen += int((batch.document_ids >= 0).sum())
    assert len(phases) == len(loader)
    assert phases == sorted(phases)
    packs = [8, 4, 2]
    steps = [phases.count(phase) for phase in range(3)]
    assert steps == [
        phase.packs // batch if remainder == "drop" else -(-phase.packs // batch)
        for phase, batch in zip(shards.phases, packs, strict=True)
    ]
    if remainder == "fill":
        segments = shards.manifest.splits["train"].segments
        assert seen == segments


def test_packs_are_shuffled_within_their_phase_only(shards: PackedShards) -> None:
    loader = PackedLoader(shards, 8, remainder="fill", shuffle_window=100)
    packs = [
        pack
        for batch in loader._packs(loader._schedule(0), 0, len(loader))
        for pack in batch
        if pack >= 0
    ]
    assert sorted(packs) == list(range(len(shards)))
    firsts = [first_pack_of_phase(shards, phase) for phase in range(4)]
    for first, end in pairwise(firsts):
        of_phase = packs[first:end]
        assert sorted(of_phase) == list(range(first, end))
        assert of_phase != sorted(of_phase)


def stream(loaders: list[PackedLoader], steps: int | None = None) -> list[list[int]]:
    """Document ids of global batches, the packs of all ranks in the order of their places."""
    iterators = [iter(loader) for loader in loaders]
    batches: list[list[int]] = []
    while steps is None or len(batches) < steps:
        made = [next(iterator, None) for iterator in iterators]
        if made[0] is None:
            break
        batches.append(sorted(number for batch in made for number in documents(batch)))
    return batches


@pytest.mark.parametrize("before", [-1, 0, 2])
def test_a_state_resumes_at_any_world_size_across_the_end_of_a_phase(
    shards: PackedShards, before: int
) -> None:
    def ranks(world_size: int) -> list[PackedLoader]:
        return [
            PackedLoader(shards, 16 // world_size, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]

    whole = stream(ranks(1))
    end = shards.phases[0].packs // 16  # the last step of the first phase
    first = ranks(1)
    expected = stream(first, end - before)
    resumed = ranks(2)
    for loader in resumed:
        loader.load_state_dict(first[0].state_dict())
        assert loader.phase == (0 if before > 0 else 1)
    expected += stream(resumed, 3)
    last = ranks(4)
    for loader in last:
        loader.load_state_dict(resumed[1].state_dict())
    expected += stream(last)
    assert expected == whole


def test_torchs_dataloader_gives_the_same_batches(shards: PackedShards) -> None:
    pytest.importorskip("torch")
    plain = PackedLoader(shards, 8, remainder="fill", rank=3, world_size=4)
    loader = PackedLoader(shards, 8, remainder="fill", rank=3, world_size=4)
    for one, two in zip(plain, loader.dataloader(num_workers=0), strict=True):
        np.testing.assert_array_equal(one.tokens, two.tokens)
        assert plain.phase == loader.phase


def test_a_batch_that_does_not_divide_is_refused(shards: PackedShards) -> None:
    with pytest.raises(ValueError, match="choose a multiple of 4") as error:
        PackedLoader(shards, 6)
    assert str(error.value) == (
        f"packs_per_batch is 6: a batch has 96 tokens, and phase 3 of {shards.path} has packs of "
        "64, of which no whole number fits; choose a multiple of 4"
    )
    PackedLoader(shards, 4)


def test_a_phase_with_fewer_packs_than_ranks_is_refused(shards: PackedShards) -> None:
    packs = shards.phases[2].packs
    with pytest.raises(ValueError, match="too few") as error:
        PackedLoader(shards, 4, world_size=packs + 1)
    assert str(error.value) == (
        f"phase 3 of {shards.path} has {packs} packs, too few for one batch of 1 on each of "
        f"{packs + 1} ranks; choose remainder='fill' or a smaller batch"
    )
