"""Contents of packs are the sequences that PackedLoader counts, and survive JSON."""

from typing import Any

import numpy as np
import pytest

from packprep.inspect.contents import (
    PackContents,
    joined_contents,
    read_contents,
    training_split,
)
from packprep.inspect.histograms import counts_of
from packprep.loaders import PackedShards
from tests.helpers.zoo import NAMES, Zoo


@pytest.mark.parametrize("member", NAMES)
def test_packs_hold_the_sequences_that_packed_loader_counts(zoo: Zoo, member: str) -> None:
    shards = PackedShards(zoo[member], split="train")
    counts, first = shards.pack_sequences(shards.plans[0]), 0
    found = read_contents(zoo[member])
    sizes = [phase.packs for phase in shards.phases] or [len(counts)]
    assert [*found] == [*range(len(sizes))]
    for contents, packs in zip(found.values(), sizes, strict=True):
        expected = counts_of(counts[first : first + packs])
        for name in ("values", "counts"):
            np.testing.assert_array_equal(
                getattr(contents.counts, name), getattr(expected, name), name
            )
        assert PackContents.of_json(contents.as_dict()).as_dict() == contents.as_dict()
        first += packs


def contents_of(*sequences: int, **fields: Any) -> PackContents:
    made: dict[str, Any] = {"split": "train", "unit": "segment", "max_length": 8, "tokens": 30}
    counts = counts_of(np.array(sequences, np.int64))
    return PackContents(counts=counts, **made | {"later_pieces": 1} | fields)


def test_contents_add_up_and_scale_to_a_whole() -> None:
    joined = joined_contents([contents_of(2, 0, 3, 3), contents_of(3, 7, tokens=10)])
    assert joined is not None
    assert joined.as_dict()["counts"] == {"0": 1, "2": 1, "3": 3, "7": 1}
    assert (joined.packs, joined.total, joined.later_pieces, joined.tokens) == (6, 18, 2, 40)
    whole = joined.scaled(2.5)
    assert whole.as_dict()["counts"] == {"0": 2, "2": 3, "3": 7, "7": 3}
    assert (whole.packs, whole.tokens, whole.mean) == (15, 100, 48 / 15)
    assert joined_contents([]) is None


def test_the_training_split_is_train_or_the_first_one() -> None:
    assert training_split(["validation", "train"]) == "train"
    assert training_split(["b", "a"]) == "b"
    assert training_split([]) == "train"
