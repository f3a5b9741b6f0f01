"""Samples in memory: packs are those of the first edition, and give the samples back."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import packprep.loaders as first  # noqa: E402
from packprep.next.loaders import PackedBatch, pack_sequences, unpack  # noqa: E402
from tests.loaders.samples.containers import rollouts  # noqa: E402

FIELDS = ("tokens", "position_ids", "cu_seqlens", "max_seqlen", "labels", "label_kind")
MORE = ("document_ids", "segment_lengths", "loss_weights", "kinds")


def same(one: Any, other: Any) -> bool:
    """True for equal values of equal types."""
    if isinstance(one, np.ndarray) and one.dtype != object:
        return one.dtype == other.dtype and bool(np.array_equal(one, other, equal_nan=True))
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else one == other


def held_by(rows: list[dict[str, Any]], form: str) -> Any:
    """The samples as rows, or as columns of arrays, lists or tensors."""
    if form == "rows":
        return rows
    change: Any = {"columns": np.asarray, "lists": np.ndarray.tolist, "torch": torch.from_numpy}
    return {
        name: [
            change[form](row[name]) if isinstance(row[name], np.ndarray) else row[name]
            for row in rows
        ]
        for name in rows[0]
    }


def assert_same(batch: PackedBatch, other: first.PackedBatch) -> None:
    for name in (*FIELDS, *MORE):
        assert same(getattr(batch, name), getattr(other, name)), name
    assert [*batch.extra] == [*other.extra]
    for name, values in batch.extra.items():
        assert same(values, other.extra[name]), name


@given(
    samples=rollouts(),
    form=st.sampled_from(["rows", "columns", "lists", "torch"]),
    missing=st.sets(st.sampled_from(["loss_mask", "response_lengths", "advantages"])),
    labels=st.sampled_from(["hf", "shifted", "none"]),
    weights=st.sampled_from([None, "token", "segment", 2]),
    context=st.sampled_from([(1, "contiguous"), (2, "contiguous"), (2, "zigzag")]),
    size=st.sampled_from([{"max_tokens": 12}, {"num_packs": 1}, {"num_packs": 3}]),
    ranks=st.booleans(),
)
def test_packs_are_those_of_the_first_edition_and_unpack_to_the_samples(
    samples: list[dict[str, Any]],
    form: str,
    missing: set[str],
    labels: Any,
    weights: Any,
    context: tuple[int, Any],
    size: dict[str, int],
    ranks: bool,
) -> None:
    if "response_lengths" in missing:
        missing |= {"advantages"}
    kept = [{name: row[name] for name in row if name not in missing} for row in samples]
    held = held_by(kept, form)
    settings: dict[str, Any] = {"cp_size": context[0], "cp_layout": context[1], **size}
    settings["labels"] = "shifted" if context[0] > 1 else labels
    settings["loss_weights"] = None if settings["labels"] == "none" else weights
    if ranks and "max_tokens" in size:
        lengths = [len(sample["tokens"]) for sample in samples]
        settings["lengths_of_all"] = [lengths, [12] * 3]
    packs = pack_sequences(held, **settings)
    for pack, other in zip(packs, first.pack_sequences(held, **settings), strict=True):
        assert_same(pack, other)
    for again, sample in zip(unpack(packs), kept, strict=True):
        assert [*again] == [*sample]
        assert again.pop("uid") == sample.pop("uid")
        assert all(np.allclose(again[name], sample[name]) for name in sample)  # lists are float32


@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    data=st.data(),
    name=st.sampled_from(["loss_mask", "labels"]),
)
def test_a_mask_or_labels_of_the_response_or_of_all_tokens_or_none_decides_the_loss(
    lengths: list[int], data: st.DataObject, name: str
) -> None:
    responses = [data.draw(st.integers(0, length)) for length in lengths]
    sizes = data.draw(st.sampled_from([lengths, responses]))
    values = [-100, 7] if name == "labels" else [0, 1]
    lists: list[Any] = [[data.draw(st.sampled_from(values)) for _ in range(n)] for n in sizes]
    if name == "loss_mask":
        lists = [None if data.draw(st.booleans()) else each for each in lists]
    columns = {"tokens": [[5] * length for length in lengths], "response_length": responses}
    settings: dict[str, Any] = {"num_packs": 1}
    (pack,) = pack_sequences(columns | {name: lists}, **settings)
    (other,) = first.pack_sequences(columns | {name: lists}, **settings)
    assert pack.labels.tolist() == other.labels.tolist()


COLUMNS = {"tokens": [[1, 2, 3], [4, 5]], "response_length": [2, 1]}
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"loss_mask": [0, 1]}, {}, "'loss_mask' of sample 0 is 0; expected a list"),
    ({"loss_mask": [[[1], [0, 1]], [1]]}, {}, "'loss_mask' has lists in lists"),
    ({"loss_mask": [[1, 1], [1, 1, 1]]}, {}, "'loss_mask' of sample 1 has 3 values, .* 2 tokens"),
    ({"labels": [[0.5, 1], [1]]}, {}, "'labels' has float32; expected integers"),
    ({"tokens": [[1, 2, 3], None]}, {}, "'tokens' of sample 1 is None; expected a list"),
    ({"input_ids": [[1], [2]]}, {}, "tokens and input_ids; expected one"),
    ({"words": [["a"] * 3, ["b"] * 2]}, {}, "'words' has <U1; expected numbers"),
    ({"response_length": [4, 1]}, {}, "length of sample 0 is 4, .* 3 tokens"),
    ({"response_length": [1.0, 1.0]}, {}, "length of sample 0 is 1.0, .* expected a whole number"),
    ({"reward": [1]}, {}, "'reward' is .*; expected a value for each of the 2 samples"),
    ({}, {"max_tokens": 2}, "sample 0 has 3 tokens and max_tokens is 2; cut"),
    ({}, {"max_tokens": None}, "both missing; pass one"),
    ({}, {"max_tokens": 0}, "max_tokens is 0; expected 1"),
    ({}, {"cp_size": 2}, "loses a label"),
    ({}, {"labels": "other"}, "labels is 'other'"),
    ({}, {"num_packs": 1, "max_tokens": 4}, "no plan with fewer than 2 packs"),
    ({}, {"lengths_of_all": [[2], [3]]}, "no rank with the lengths of these 2"),
    ({}, {"lengths_of_all": [[3, 2], [9]]}, "sample 0 of rank 1 has 9 tokens"),
    ({}, {"world_size": 2}, "no group of as many ranks"),
]


@pytest.mark.parametrize(("columns", "settings", "words"), REFUSED)
def test_samples_and_settings_that_cannot_be_packed_are_named(
    columns: dict[str, Any], settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        pack_sequences(COLUMNS | columns, **{"max_tokens": 8} | settings)


def test_no_samples_are_no_packs_or_filler() -> None:
    assert pack_sequences([], max_tokens=8) == unpack([]) == []
    packs = pack_sequences([], max_tokens=8, lengths_of_all=[[5, 5], []])
    assert [pack.document_ids.tolist() for pack in packs] == [[-1], [-1]]
    assert [pack.labels.tolist() for pack in packs] == [[-100], [-100]]
    assert unpack(packs) == []
