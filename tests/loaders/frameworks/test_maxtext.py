"""Records for MaxText against Grain's own packer and the steps that MaxText adds to it."""

import pickle
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest
from grain.experimental import FirstFitPackIterDataset
from hypothesis import given
from hypothesis import strategies as st

from packprep.loaders import MaxTextSource, PackedShards
from packprep.schemas import STANDARD_COLUMNS
from tests.helpers.numbered_shards import numbered_shards
from tests.helpers.tiny_shards import GOLDEN, PLAIN, write_output

FIELDS = {
    "inputs",
    "inputs_position",
    "inputs_segmentation",
    "targets",
    "targets_position",
    "targets_segmentation",
}


def maxtext_record(documents: list[list[int]], length: int) -> dict[str, Any]:
    """MaxText's steps at e591f30c for one pack, in Grain's packer, then renamed and shifted."""
    rows = [
        {kind: np.array(document, np.int32) for kind in ("inputs", "targets")}
        for document in documents
    ]
    packer = FirstFitPackIterDataset(
        grain.MapDataset.source(rows).to_iter_dataset(),
        length_struct={"inputs": length, "targets": length},
        num_packing_bins=1,
    )
    (packed,) = packer
    record = {
        name.replace("_segment_ids", "_segmentation").replace("_positions", "_position"): value
        for name, value in packed.items()
    }
    for name in ("targets", "targets_segmentation"):
        record[name] = np.append(record[name][1:], np.int32(0))
    record["targets_segmentation"] = np.where(
        record["targets"] != 0, record["targets_segmentation"], 0
    )
    return record


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_a_record_is_that_of_grains_packer_but_no_target_crosses_the_end_of_a_document(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int]
) -> None:
    ends = np.cumsum([0, *lengths])
    tokens = [*range(1, int(ends[-1]) + 1)]
    row = {
        "tokens": tokens,
        "position_ids": [place for length in lengths for place in range(length)],
        "cu_seqlens": ends.tolist(),
        "document_ids": [*range(len(lengths))],
        "document_starts": [0] * len(lengths),
    }
    path = tmp_path_factory.mktemp("shards") / "out"
    write_output(path, {"train": [[row]]}, PLAIN, max_length=24)
    record = MaxTextSource(PackedShards(path))[0]
    documents = [tokens[first:last] for first, last in pairwise(ends)]
    expected = maxtext_record(documents, 24)
    for name in ("targets", "targets_segmentation"):
        expected[name][ends[1:] - 1] = 0
    assert record.keys() == expected.keys() == FIELDS
    for name, value in record.items():
        assert value.dtype == np.int32
        assert value.tolist() == expected[name].tolist(), name


def test_padding_filler_and_labels_without_loss_are_zero_in_the_segmentation() -> None:
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


def test_a_token_without_loss_is_no_target(tmp_path: Path) -> None:
    row = {"tokens": [7, 8, 9], "cu_seqlens": [0, 3], "labels": [-100, -100, 9]}
    columns = tuple(STANDARD_COLUMNS[name] for name in row)
    write_output(tmp_path / "out", {"train": [[row]]}, columns, max_length=4)
    record = MaxTextSource(PackedShards(tmp_path / "out"))[0]
    assert record["targets"].tolist() == [0, 9, 0, 0]
    assert record["targets_segmentation"].tolist() == [0, 1, 0, 0]
    assert record["inputs_segmentation"].tolist() == [1, 1, 1, 0]


def test_grain_shuffles_shards_batches_and_resumes_the_packs_exactly_once(tmp_path: Path) -> None:
    source = MaxTextSource(numbered_shards(tmp_path / "out", 14))
    assert isinstance(source, grain.sources.RandomAccessDataSource)

    def batches(rank: int) -> Any:
        shuffled = grain.MapDataset.source(source).shuffle(seed=3)
        return iter(shuffled[rank::2].batch(2).to_iter_dataset())

    seen: list[int] = []
    for rank in range(2):
        whole = [batch["inputs"].tolist() for batch in batches(rank)]
        assert [len(batch) for batch in whole] == [2, 2, 2, 1]
        seen += [row[0] for batch in whole for row in batch]
        for done in range(len(whole)):
            stopped = batches(rank)
            for _ in range(done):
                next(stopped)
            resumed = batches(rank)
            resumed.set_state(stopped.get_state())
            assert [batch["inputs"].tolist() for batch in resumed] == whole[done:]
    assert sorted(seen) == [int(pack.tokens[0]) for pack in source.shards]
    assert seen != sorted(seen)


def test_the_data_loader_of_grain_resumes_from_shards_at_another_path(tmp_path: Path) -> None:
    shards = numbered_shards(tmp_path / "out", 9)
    shutil.copytree(tmp_path / "out", tmp_path / "moved")

    def loader(source: MaxTextSource) -> Any:
        sampler = grain.samplers.IndexSampler(
            len(source),
            shard_options=grain.sharding.NoSharding(),
            shuffle=True,
            num_epochs=1,
            seed=1,
        )
        return iter(grain.DataLoader(data_source=source, sampler=sampler))

    first = loader(MaxTextSource(shards))
    next(first)
    state = first.get_state()
    rest = [record["inputs"].tolist() for record in first]
    second = loader(MaxTextSource(PackedShards(tmp_path / "moved")))
    second.set_state(state)
    assert [record["inputs"].tolist() for record in second] == rest
    assert len(rest) == 8


def test_the_source_pickles_for_grains_worker_processes_and_refuses_a_short_length(
    tmp_path: Path,
) -> None:
    shards = numbered_shards(tmp_path / "out", 4)
    source = MaxTextSource(shards, length=16)
    copy = pickle.loads(pickle.dumps(source))
    assert repr(copy) == repr(source)
    assert copy[3]["inputs"].tolist() == source[3]["inputs"].tolist()
    assert len(source[0]["targets"]) == 16
    with pytest.raises(ValueError, match=r"^length is 4; .*out has packs of up to 8 tokens$"):
        MaxTextSource(shards, length=4)


def test_the_shards_themselves_are_a_source_of_packs(tmp_path: Path) -> None:
    shards = numbered_shards(tmp_path / "out", 5)
    dataset = (
        grain.MapDataset.source(shards).seed(1).shuffle().map(lambda pack: int(pack.tokens[0]))
    )
    assert sorted(dataset) == [int(pack.tokens[0]) for pack in shards]
