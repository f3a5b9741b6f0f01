"""Outputs with a packing for each epoch, read by the loader epoch after epoch."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packprep.loaders import PackedLoader, PackedShards
from packprep.schemas import FormatError, read_manifest
from packprep.schemas.storage.writing import write_manifest
from tests.loaders.test_order import numbered, packs_of, ranks, stream

# Packs 0 to 6, 7 to 14 and 15 to 20 are those of three epochs.
PLANS = [range(7), range(7, 15), range(15, 21)]


def with_epochs(output: Path, epochs: list[int]) -> PackedShards:
    """The output with these epochs of its shards."""
    manifest = read_manifest(output)
    data = json.loads(json.dumps(manifest.data)) | {"epochs": 1 + max(epochs)}
    shards = [entry for entry in data["files"] if "packs" in entry]
    for entry, epoch in zip(shards, epochs, strict=True):
        entry["epoch"] = epoch
    write_manifest(output, data, manifest.run)
    return PackedShards(output)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> PackedShards:
    output = tmp_path_factory.mktemp("epochs") / "out"
    numbered(output, [4, 3, 5, 3, 6])
    return with_epochs(output, [0, 0, 1, 1, 2])


def pack_numbers(shards: PackedShards) -> list[int]:
    return [int(np.asarray(pack.document_ids)[0]) for pack in shards]


def test_shards_are_the_packs_of_one_epoch(shards: PackedShards) -> None:
    assert pack_numbers(shards) == [*PLANS[0]]
    for epoch, plan in enumerate(PLANS):
        one = PackedShards(shards.path, epoch=epoch)
        assert pack_numbers(one) == [*plan]
        assert np.asarray(one[-1].document_ids).tolist() == [plan[-1]]
        assert pack_numbers(pickle.loads(pickle.dumps(one))) == [*plan]
    with pytest.raises(IndexError, match=r"index 7 is out of range; .* has 7 packs"):
        shards[7]


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_epoch_reads_its_packing_and_the_first_follows_the_last(
    shards: PackedShards, shuffle: bool
) -> None:
    loader = PackedLoader(shards, 1, shuffle=shuffle, seed=3)
    orders = []
    for epoch in range(6):
        loader.set_epoch(epoch)
        orders.append([packs_of(batch)[0] for batch in loader])
        assert sorted(orders[-1]) == [*PLANS[epoch % 3]]
        assert len(loader) == len(PLANS[epoch % 3])
        assert [packs_of(loader[step])[0] for step in range(len(loader))] == orders[-1]
    assert (orders[0] == orders[3]) != shuffle


def test_shards_of_one_epoch_are_read_in_every_epoch(shards: PackedShards) -> None:
    loader = PackedLoader(PackedShards(shards.path, epoch=1), 1)
    for epoch in (0, 1, 5):
        loader.set_epoch(epoch)
        assert sorted(packs_of(batch)[0] for batch in loader) == [*PLANS[1]]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_state_resumes_in_its_epoch_at_any_world_size(shards: PackedShards, world: int) -> None:
    for epoch in range(3):
        whole = stream(ranks(shards, 1, 1, epoch=epoch))
        loader = PackedLoader(shards, 1, epoch=epoch)
        for batch, _ in zip(loader, range(3), strict=False):
            assert packs_of(batch)
        state = loader.state_dict()
        resumed = ranks(shards, world, 1)
        for each in resumed:
            each.load_state_dict(state)
            assert each.epoch == epoch
        rest = whole[state["packs"] :]
        assert stream(resumed) == rest[: len(rest) // world * world]


def test_the_state_of_one_epoch_is_not_that_of_all(shards: PackedShards) -> None:
    state = PackedLoader(shards, 1).state_dict()
    other = PackedLoader(PackedShards(shards.path, epoch=0), 1)
    with pytest.raises(FormatError, match="belongs to shards with fingerprint"):
        other.load_state_dict(state)


def test_worker_processes_read_the_packing_of_the_epoch(shards: PackedShards) -> None:
    pytest.importorskip("torch")
    loader = PackedLoader(shards, 2, remainder="fill")
    batches: Any = loader.dataloader(num_workers=2, persistent_workers=True)
    for epoch in (0, 1, 2):
        loader.set_epoch(epoch)
        taken = [pack for batch in batches for pack in packs_of(batch) if pack >= 0]
        assert sorted(taken) == [*PLANS[epoch]], "also in workers that were started before"


def test_a_batch_that_one_epoch_does_not_fill_is_refused_at_once(shards: PackedShards) -> None:
    with pytest.raises(ValueError, match="has 6 packs, too few for one batch of 7"):
        PackedLoader(shards, 7)
    assert len(PackedLoader(shards, 6)) == 1


def test_shards_describe_themselves(shards: PackedShards) -> None:
    assert repr(shards).endswith("split='train': 3 epochs of 7 packs)")
    assert repr(PackedShards(shards.path, epoch=2)).endswith("epoch 2 of 3 epochs of 6 packs)")
