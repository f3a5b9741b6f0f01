"""Outputs with a packing for each epoch, and with phases: one run after another."""

import json
import pickle
from dataclasses import replace
from itertools import accumulate, islice, pairwise
from typing import Any

import numpy as np
import pytest

from packprep import build
from packprep.loaders import PackedLoader, PackedShards
from packprep.schemas import FormatError, read_manifest
from packprep.schemas.storage.writing import write_manifest
from tests.helpers.zoo import Zoo

from .test_order import numbered, packs_in, packs_of, ranks, stream

# Packs 0 to 6, 7 to 14 and 15 to 20 are those of three epochs.
PLANS = [range(7), range(7, 15), range(15, 21)]
EPOCHS = [0, 0, 1, 1, 2]  # of the shards


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> PackedShards:
    output = tmp_path_factory.mktemp("epochs") / "out"
    numbered(output, [4, 3, 5, 3, 6])
    manifest = read_manifest(output)
    data = json.loads(json.dumps(manifest.data)) | {"epochs": 3}
    listed = [entry for entry in data["files"] if "packs" in entry]
    for entry, epoch in zip(listed, EPOCHS, strict=True):
        entry["epoch"] = epoch
    write_manifest(output, data, manifest.run)
    return PackedShards(output)


def pack_numbers(shards: PackedShards) -> list[int]:
    return [int(np.asarray(pack.document_ids)[0]) for pack in shards]


def test_shards_are_the_packs_of_one_epoch(shards: PackedShards) -> None:
    assert pack_numbers(shards) == [*PLANS[0]]
    assert repr(shards).endswith("split='train': 3 epochs of 7 packs)")
    for epoch, plan in enumerate(PLANS):
        one = PackedShards(shards.path, epoch=epoch)
        assert pack_numbers(one) == pack_numbers(pickle.loads(pickle.dumps(one))) == [*plan]
        assert np.asarray(one[-1].document_ids).tolist() == [plan[-1]]
        assert repr(one).endswith(f"epoch {epoch} of 3 epochs of {len(plan)} packs)")
        loader = PackedLoader(one, 1)  # in every epoch of the training
        for number in (0, 1, 5):
            loader.set_epoch(number)
            assert sorted(packs_in(loader)) == [[pack] for pack in plan]
    with pytest.raises(IndexError, match=r"index 7 is out of range; .* has 7 packs"):
        shards[7]
    with pytest.raises(ValueError, match="has no epoch 3; expected 0 to 2"):
        PackedShards(shards.path, epoch=3)


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_epoch_reads_its_packing_and_the_first_follows_the_last(
    shards: PackedShards, shuffle: bool
) -> None:
    loader = PackedLoader(shards, 1, shuffle=shuffle, seed=3)
    orders = []
    for epoch in range(6):
        loader.set_epoch(epoch)
        orders.append([pack for (pack,) in packs_in(loader)])
        assert sorted(orders[-1]) == [*PLANS[epoch % 3]]
        assert packs_in(loader[step] for step in range(len(loader))) == [[n] for n in orders[-1]]
    assert (orders[0] == orders[3]) != shuffle


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_state_resumes_in_its_epoch_at_any_world_size(shards: PackedShards, world: int) -> None:
    for epoch in range(3):
        loader = PackedLoader(shards, 1, epoch=epoch)
        assert len(packs_in(islice(loader, 3))) == 3
        resumed = ranks(shards, world, 1)
        for each in resumed:
            each.load_state_dict(loader.state_dict())
            assert each.epoch == epoch
        rest = stream(ranks(shards, 1, 1, epoch=epoch))[3:]
        assert stream(resumed) == rest[: len(rest) // world * world]
    with pytest.raises(FormatError, match="belongs to shards with fingerprint"):
        PackedLoader(PackedShards(shards.path, epoch=0), 1).load_state_dict(loader.state_dict())


@pytest.fixture(scope="module")
def phased(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> PackedShards:
    """Three phases of packs of 32, 64 and 128 tokens, in several shards each."""
    output = tmp_path_factory.mktemp("phases") / "out"
    build(replace(zoo.config("phases"), output=str(output), shard_size=4_000))
    return PackedShards(output, split="train", verify=True)


def bounds(phased: PackedShards) -> list[int]:
    return [*accumulate((phase.packs for phase in phased.phases), initial=0)]


def test_shards_name_their_phases(phased: PackedShards) -> None:
    assert [phase.max_length for phase in phased.phases] == [32, 64, 128]
    assert bounds(phased)[-1] == len(phased)
    assert min(phase.shards for phase in phased.phases) > 1
    assert sum(phase.shards for phase in phased.phases) == len(phased.plans[0].packs_per_shard)
    for phase, places in zip(phased.phases, pairwise(bounds(phased)), strict=True):
        lengths = [len(phased[number].tokens) for number in range(*places)]
        assert phase.max_length / 2 < max(lengths) <= phase.max_length


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("remainder", ["drop", "fill"])
def test_phases_follow_one_another_with_the_same_tokens_in_a_batch(
    phased: PackedShards, shuffle: bool, remainder: Any
) -> None:
    loader = PackedLoader(phased, 4, shuffle=shuffle, remainder=remainder, pad_to=128)
    again = PackedLoader(phased, 4, shuffle=shuffle, remainder=remainder, pad_to=128)
    batches = again.dataloader() if pytest.importorskip("torch") else []
    phases, seen = [], 0
    for number, (batch, other) in enumerate(zip(loader, batches, strict=True)):
        phases.append(loader.phase)
        assert again.phase == loader.phase
        assert len(batch.tokens) == 128
        assert batch.tokens.tolist() == other.tokens.tolist() == again[number].tokens.tolist()
        seen += int((batch.document_ids >= 0).sum())
    assert len(phases) == len(loader)
    assert phases == sorted(phases)
    for phase, size, number in zip(phased.phases, (4, 2, 1), range(3), strict=True):
        whole, rest = divmod(phase.packs, size)
        assert phases.count(number) == whole + (remainder == "fill" and rest > 0)
    if remainder == "fill":
        assert seen == phased.manifest.splits["train"].segments


def test_packs_are_shuffled_within_their_phase_only(phased: PackedShards) -> None:
    loader = PackedLoader(phased, 4, remainder="fill", shuffle_window=100)
    batches = loader._packs(loader._schedule(0), 0, len(loader))
    packs = [pack for batch in batches for pack in batch if pack >= 0]
    for first, end in pairwise(bounds(phased)):
        assert sorted(packs[first:end]) == list(range(first, end)) != packs[first:end]


@pytest.mark.parametrize("before", [-1, 0, 2])
def test_a_state_resumes_at_any_world_size_across_the_end_of_a_phase(
    phased: PackedShards, before: int
) -> None:
    def loaders(world_size: int, state: Any = None) -> list[PackedLoader]:
        made = ranks(phased, world_size, 16 // world_size)
        for loader in made:
            if state is not None:
                loader.load_state_dict(state)
        return made

    def global_batches(loaders: list[PackedLoader], steps: int | None = None) -> list[list[int]]:
        batches = islice(zip(*loaders, strict=True), steps)
        return [sorted(pack for batch in step for pack in packs_of(batch)) for step in batches]

    end = phased.phases[0].packs // 16  # the last step of the first phase
    first = loaders(1)
    found = global_batches(first, end - before)
    resumed = loaders(2, first[0].state_dict())
    assert {loader.phase for loader in resumed} == {0 if before > 0 else 1}
    found += global_batches(resumed, 3)
    found += global_batches(loaders(4, resumed[1].state_dict()))
    assert found == global_batches(loaders(1))


def test_batches_that_an_epoch_or_a_phase_cannot_fill_are_refused_at_once(
    shards: PackedShards, phased: PackedShards
) -> None:
    assert len(PackedLoader(shards, 6)) == 1
    with pytest.raises(ValueError, match="has 6 packs, too few for one batch of 7"):
        PackedLoader(shards, 7)
    with pytest.raises(ValueError, match=r"6: a batch has 192 tokens, .* a multiple of 4$"):
        PackedLoader(phased, 6)
    packs = phased.phases[2].packs
    with pytest.raises(
        ValueError, match=rf"phase 3 of .* has {packs} packs, .* on each of {packs + 1}"
    ):
        PackedLoader(phased, 4, world_size=packs + 1)
