"""Samples in memory: packs are those of a twin, and give the samples back."""

import hashlib
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from packprep.loaders import PackedBatch, loss_weights, pack_sequences, unpack  # noqa: E402
from packprep.loaders.call_documents import documents_of_batch  # noqa: E402
from tests.helpers import reference  # noqa: E402
from tests.helpers.containers import rollouts  # noqa: E402


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


def trained_tokens(row: dict[str, Any]) -> list[bool]:
    """Tokens of a sample that are trained, its first one too if nothing forbids it."""
    count = len(row["tokens"])
    response = row.get("response_lengths", count)
    mask = row.get("loss_mask", [0] * (count - response) + [1] * response)
    return [bool(value) for value in mask]


def assert_pack(pack: PackedBatch, rows: list[dict[str, Any]], settings: dict[str, Any]) -> None:
    """Compare a pack with its samples, which are written one after another."""
    zigzag, whole = settings["cp_layout"] == "zigzag", 2 * settings["cp_size"]
    whole = 1 if whole == 2 else whole
    each = whole if zigzag else 1
    own = [int(number) for number in pack.document_ids if number >= 0]
    tokens, trained, positions, sizes = list[int](), list[bool](), list[int](), list[int]()
    for number in own:
        row, count = rows[number], len(rows[number]["tokens"])
        size = -(-count // each) * each
        tokens += [*row["tokens"].tolist(), *[0] * (size - count)]
        trained += [*[False] * (count > 0), *trained_tokens(row)[1:], *[False] * (size - count)]
        positions += range(size)
        sizes.append(size)
    rest = -len(tokens) % whole if tokens else whole
    if rest:
        sizes, positions = [*sizes, rest], [*positions, *range(rest)]
        tokens, trained = [*tokens, *[0] * rest], [*trained, *[False] * rest]
    ends = np.cumsum([0, *sizes]).astype(np.int32)
    assert pack.document_ids.tolist() == own + [-1] * bool(rest)
    assert (pack.tokens.tolist(), pack.position_ids.tolist()) == (tokens, positions)
    assert pack.cu_seqlens.tolist() == ends.tolist()
    assert pack.max_seqlen == max(sizes)
    labels = [token if has else -100 for token, has in zip(tokens, trained, strict=True)]
    if settings["labels"] == "shifted":
        labels = [*labels[1:], *labels[:1]]
    assert pack.labels is None or pack.labels.tolist() == labels
    assert (pack.labels is None) == (settings["labels"] == "none")
    assert pack.label_kind == ("shifted" if settings["labels"] == "shifted" else "hf")
    if settings["loss_weights"] is not None:
        mode, ids = settings["loss_weights"], pack.document_ids
        weights = loss_weights(ends, np.array(labels) != -100, mode, ids)
        assert pack.loss_weights.tolist() == pytest.approx(weights.tolist())
    compared = [number >= 0 for number, size in zip(pack.document_ids, sizes, strict=True) if size]
    if any(compared[1:]):
        assert documents_of_batch(pack.torch()).compared == compared
    real = [len(rows[number]["tokens"]) for number in own] + [0] * bool(rest)
    assert pack.segment_lengths is None if each == 1 else pack.segment_lengths.tolist() == real
    for name, values in pack.extra.items():
        whole_column = np.zeros(len(tokens))
        for number, end in zip(own, np.cumsum(sizes), strict=False):
            begin, count = end - sizes[own.index(number)], len(rows[number]["tokens"])
            if pack.kinds[name] != "segment":
                run = rows[number][name]
                whole_column[begin + count - len(run) : begin + count] = run
        if pack.kinds[name] != "segment":
            assert np.allclose(values.astype(np.float64), whole_column)
        else:
            assert [*values[: len(own)]] == [rows[number][name] for number in own]


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
def test_packs_are_those_of_a_twin_and_unpack_to_the_samples(
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
    lengths = [len(sample["tokens"]) for sample in samples]
    if ranks and "max_tokens" in size:
        settings["lengths_of_all"] = [lengths, [12] * 3]
    packs = pack_sequences(held, **settings)
    members = [number for pack in packs for number in pack.document_ids.tolist() if number >= 0]
    assert sorted(members) == [*range(len(samples))]
    for pack in packs:
        assert_pack(pack, kept, settings)
    if "num_packs" in size:
        assert len(packs) == size["num_packs"]
    else:
        each = 4 if context[1] == "zigzag" else 1
        found = [max(each, -(-length // each) * each) for length in lengths]
        enough = len(reference.best_fit(found, 12))
        assert len(packs) <= (max(enough, 3) if ranks else enough)
        assert len(packs) >= (3 if ranks else 1)
        assert max(map(len, packs)) <= 12
        if ranks:  # another rank has three samples of 12 tokens, and as many packs
            others = pack_sequences([{"tokens": [5] * 12}] * 3, **settings)
            assert len(others) == len(packs)
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
    (pack,) = pack_sequences(columns | {name: lists}, num_packs=1)
    expected = list[int]()
    for length, response, given_values in zip(lengths, responses, lists, strict=True):
        labels = [1] * response if given_values is None else given_values
        labels = [-100 if name == "labels" else 0] * (length - len(labels)) + labels
        if name == "loss_mask":
            labels = [5 if each else -100 for each in labels]
        expected += ([-100, *labels[1:]])[:length]
    assert pack.labels.tolist() == (expected or [-100])


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


def test_packs_of_samples_are_the_same_on_every_machine() -> None:
    rows = [{"tokens": [5] * length} for length in np.arange(97) * 7919 % 61 + 1]
    sizes: Any = ({"max_tokens": 130}, {"max_tokens": 128}, {"num_packs": 30})
    packs = [pack.document_ids.tolist() for size in sizes for pack in pack_sequences(rows, **size)]
    assert hashlib.sha256(json.dumps(packs).encode()).hexdigest()[:8] == "208dd77d"


def test_no_samples_are_no_packs_or_filler() -> None:
    assert pack_sequences([], max_tokens=8) == unpack([]) == []
    for names in (["tokens"], ["tokens", "labels"], ["tokens", "loss_mask", "rewards"]):
        none = {name: list[int]() for name in names}
        packs = pack_sequences(none, max_tokens=8, lengths_of_all=[[5, 5], []])
        assert [pack.document_ids.tolist() for pack in packs] == [[-1], [-1]]
        assert [pack.labels.tolist() for pack in packs] == [[-100], [-100]]
        assert unpack(packs) == []
