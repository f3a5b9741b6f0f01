from typing import Any

import pytest
from datasets import IterableDataset
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader

from packprep.loaders import PackedLoader, PackedShards, batch_from_rows, to_hf, to_iterable_dataset
from tests.helpers.numbered_shards import numbered_shards
from tests.helpers.tiny_shards import GOLDEN


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> PackedShards:
    """200 packs, so a loader of one rank makes four shards of a dataset."""
    return numbered_shards(tmp_path_factory.mktemp("shards") / "out", 200)


def firsts(rows: Any) -> list[int]:
    return [int(row["tokens"][0]) for row in rows]


def test_a_row_is_a_batch_of_the_loader_in_the_columns_that_adapters_read() -> None:
    loader = PackedLoader(PackedShards(GOLDEN / "v1-rich", split="train"), 2, columns=["weight"])
    dataset = to_iterable_dataset(loader)
    assert isinstance(dataset, IterableDataset)
    for row, batch in zip(dataset, loader, strict=True):
        again = batch_from_rows([row])
        for name in ("tokens", "position_ids", "cu_seqlens", "labels", "document_ids"):
            assert getattr(again, name).tolist() == getattr(batch, name).tolist(), name
        assert again.segment_lengths.tolist() == batch.segment_lengths.tolist()
        assert row["weight"].tolist() == batch.extra["weight"].tolist()


def test_shifted_labels_are_stored_unshifted() -> None:
    shards = PackedShards(GOLDEN / "v1-example")
    rows = [
        [
            row["labels"].tolist()
            for row in to_iterable_dataset(PackedLoader(shards, 1, labels=kind))
        ]
        for kind in ("hf", "shifted")
    ]
    assert rows[0] == rows[1]


def test_the_dataset_has_the_order_of_the_loader(shards: PackedShards) -> None:
    loader = PackedLoader(shards, 1, seed=2, epoch=3)
    dataset = to_iterable_dataset(loader)
    assert dataset.num_shards == 4
    assert firsts(dataset) == [int(batch.tokens[0]) for batch in loader]


@pytest.mark.parametrize("done", [0, 1, 63, 64, 65, 130, 199])
def test_the_datasets_state_resumes_exactly(shards: PackedShards, done: int) -> None:
    dataset = to_iterable_dataset(PackedLoader(shards, 1))
    rows = iter(dataset)
    begun = firsts(next(rows) for _ in range(done))
    resumed = to_iterable_dataset(PackedLoader(shards, 1))
    resumed.load_state_dict(dataset.state_dict())
    assert begun + firsts(resumed) == firsts(to_iterable_dataset(PackedLoader(shards, 1)))


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_workers_read_every_row_once(shards: PackedShards, workers: int) -> None:
    dataset = to_iterable_dataset(PackedLoader(shards, 1))
    loader = DataLoader(dataset, batch_size=1, num_workers=workers, collate_fn=to_hf)
    tokens = [int(fields["input_ids"][0, 0]) for fields in loader]
    assert sorted(tokens) == sorted(int(pack.tokens[0]) for pack in shards)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_of_the_loader_or_of_datasets_read_every_row_once(
    shards: PackedShards, world_size: int
) -> None:
    options: dict[str, Any] = {"world_size": world_size, "remainder": "fill"}
    ours = [
        to_iterable_dataset(PackedLoader(shards, 1, rank=rank, **options))
        for rank in range(world_size)
    ]
    whole = to_iterable_dataset(PackedLoader(shards, 1))
    theirs = [split_dataset_by_node(whole, rank, world_size) for rank in range(world_size)]
    every = [int(pack.tokens[0]) for pack in shards]
    filler = [0] * (-len(shards) % world_size)
    assert sorted(token for share in ours for token in firsts(share)) == filler + every
    assert sorted(token for share in theirs for token in firsts(share)) == every
