"""Samples in memory become packs of even size, few and the same as those of `balanced`.

They come back from them unchanged.
"""

import sys
from itertools import count, product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.loaders import PackedBatch, compiling, context_slice, pack_sequences, unpack
from packprep.loaders.samples.partition import (
    even_packs,
    fewest_packs,
    most_packs,
    neighbours_together,
    packs_within,
)
from packprep.packing.kernels.balanced import even_out, longest_first
from tests.loaders.samples.containers import columns_of, rollouts

EXAMPLE: list[dict[str, Any]] = [
    {"tokens": [1, 2, 3, 4, 5], "loss_mask": [0, 0, 1, 1, 1], "reward": 1.0},
    {"tokens": [10, 11, 12], "loss_mask": [0, 1, 0], "reward": 0.0},
    {"tokens": [], "loss_mask": [], "reward": 2.0},
    {"tokens": [20, 21, 22, 23, 24, 25, 26], "loss_mask": [0, 0, 0, 0, 1, 1, 1], "reward": 3.0},
]


def same(first: Any, second: Any) -> bool:
    """True for equal values, whatever holds them."""
    return bool(np.array_equal(np.asarray(first), np.asarray(second)))


def assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert [*one] == [*other]
        assert {name for name in other if not same(one[name], other[name])} == set()


def test_packs_are_even_and_within_the_budget_and_weights_sum_to_their_units() -> None:
    packs = pack_sequences(EXAMPLE, max_tokens=8, loss_weights="segment")
    assert [pack.tokens.tolist() for pack in packs] == [
        [1, 2, 3, 4, 5, 10, 11, 12],
        [20, 21, 22, 23, 24, 25, 26],
    ]
    assert [pack.document_ids.tolist() for pack in packs] == [[0, 1], [2, 3]]
    assert_same(unpack(packs), EXAMPLE)
    assert [pack.loss_weights.sum() for pack in packs] == [2, 1]


@given(rollouts(), st.data())
def test_unpacked_packs_are_the_samples(samples: list[dict[str, Any]], data: Any) -> None:
    """Every column of any dtype, of tokens, of responses, and of samples; empty samples too."""
    layout = data.draw(st.sampled_from(["contiguous", "zigzag"]))
    size = data.draw(st.sampled_from([1, 2]))
    largest = max(len(sample["tokens"]) for sample in samples)
    settings = data.draw(
        st.sampled_from([{"max_tokens": largest + 4}, {"num_packs": 1}, {"num_packs": 5}])
    )
    packs = pack_sequences(samples, labels="shifted", cp_size=size, cp_layout=layout, **settings)
    assert_same(unpack(packs), samples)
    assert_same(unpack([pack.torch() for pack in packs]), samples)
    for pack in packs:
        check(pack, settings.get("max_tokens"))
        for name, kind in pack.kinds.items():
            if kind != "segment" and name != "tokens":
                assert pack.extra[name].dtype == samples[0][name].dtype


def check(pack: PackedBatch, max_tokens: int | None) -> None:
    """The laws of a pack: boundaries, positions, labels and lengths."""
    boundaries = pack.cu_seqlens.astype(int)
    assert boundaries[0] == 0
    assert boundaries[-1] == len(pack.tokens) == len(pack.labels) == len(pack.position_ids) > 0
    assert max_tokens is None or len(pack) <= max_tokens
    lengths = np.diff(boundaries)
    assert (lengths >= 0).all()
    assert pack.max_seqlen == lengths.max()
    assert pack.position_ids.tolist() == [place for length in lengths for place in range(length)]
    hf = pack.labels_as("hf")
    assert (hf[boundaries[:-1][lengths > 0]] == -100).all()
    assert ((hf == -100) | (hf == pack.tokens)).all()


@pytest.mark.parametrize("form", ["numpy", "lists", "torch", "arrow", "table", "jagged", "bf16"])
def test_columns_of_any_kind_give_the_same_packs(form: str) -> None:
    if form in ("torch", "jagged", "bf16"):
        pytest.importorskip("torch")
    samples = [
        {
            "tokens": np.arange(length),
            "advantages": np.arange(length, dtype=np.float32) / 2,
            "loss_mask": np.arange(length) % 2,
            "rewards": np.float32(length),
        }
        for length in (3, 1, 4, 0, 2)
    ]
    expected = pack_sequences(samples, max_tokens=5)
    found = pack_sequences(columns_of(samples, form), max_tokens=5)
    for pack, wanted in zip(found, expected, strict=True):
        assert pack.tokens.tolist() == wanted.tokens.tolist()
        assert pack.labels.tolist() == wanted.labels.tolist()
        assert pack.extra["advantages"].dtype == np.float32
        for name in ("advantages", "loss_mask", "rewards"):
            assert pack.extra[name].tolist() == wanted.extra[name].tolist()


def test_values_of_the_response_are_at_its_tokens() -> None:
    samples = {
        "input_ids": [[1, 2, 3, 4], [5, 6, 7]],
        "response_lengths": [2, 1],
        "advantages": [[0.5, 0.25], [1.0]],
    }
    (pack,) = pack_sequences(samples, max_tokens=7)
    assert pack.extra["advantages"].tolist() == [0, 0, 0.5, 0.25, 0, 0, 1]
    assert pack.labels.tolist() == [-100, -100, 3, 4, -100, -100, 7]
    assert [[*map(float, sample["advantages"])] for sample in unpack([pack])] == [[0.5, 0.25], [1]]


@st.composite
def columns_with_loss(draw: Any) -> dict[str, Any]:
    """Columns that decide the loss, in each form that they may have, as lists of Python."""
    lengths = draw(st.lists(st.integers(0, 6), min_size=1, max_size=6))
    columns: dict[str, Any] = {"tokens": [[*range(10, 10 + length)] for length in lengths]}
    responses = lengths
    forms: list[Any] = [None, "token"]
    if draw(st.booleans()):
        responses = [draw(st.integers(0, length)) for length in lengths]
        columns[draw(st.sampled_from(["response_length", "response_lengths"]))] = responses
        forms.append("response")
    for name, values in (("loss_mask", [0, 1]), ("labels", [-100, 7])):
        if form := draw(st.sampled_from(forms)):
            sizes = lengths if form == "token" else responses
            lists = st.sampled_from(values)
            columns[name] = [[draw(lists) for _ in range(size)] for size in sizes]
    if "loss_mask" in columns or draw(st.booleans()):
        masks = columns.get("loss_mask", [None] * len(lengths))
        columns["loss_mask"] = [None if draw(st.booleans()) else mask for mask in masks]
    return columns


def plain_labels(columns: dict[str, Any], sample: int) -> list[int]:
    """Labels of a sample, token by token."""
    tokens = columns["tokens"][sample]
    lengths = columns.get("response_lengths", columns.get("response_length"))
    response = len(tokens) if lengths is None else lengths[sample]
    mask = columns.get("loss_mask", {sample: None})[sample]
    given = columns.get("labels", {sample: None})[sample]
    labels = []
    for place, token in enumerate(tokens):
        to_end = len(tokens) - place  # values of the response are those of the last tokens
        label = token if to_end <= response else -100
        if given is not None:
            label = given[-to_end] if to_end <= len(given) else -100
        elif mask is not None:
            label = token if to_end <= len(mask) and mask[-to_end] else -100
        labels.append(label if place else -100)
    return labels


def held_by(columns: dict[str, Any], form: str) -> Any:
    """The columns in the containers of a library."""
    if form == "columns":
        return columns
    if form in ("dicts", "numpy", "torch"):
        change: Any = np.asarray
        if form == "torch":
            change = pytest.importorskip("torch").tensor
        if form == "dicts":
            change = list
        made = {
            name: [change(value) if isinstance(value, list) else value for value in values]
            for name, values in columns.items()
        }
        return [dict(zip(made, values, strict=True)) for values in zip(*made.values(), strict=True)]
    kinds = {"arrow": pa.list_(pa.int64()), "large": pa.large_list(pa.int8())}
    return pa.table(
        {
            name: pa.array(values, None if name.startswith("response") else kinds[form])
            for name, values in columns.items()
        }
    )


@given(
    columns_with_loss(),
    st.sampled_from(["columns", "dicts", "numpy", "torch", "arrow", "large"]),
    st.sampled_from([(1, "contiguous"), (2, "contiguous"), (2, "zigzag")]),
    st.sampled_from(["hf", "shifted"]),
    st.booleans(),
)
def test_any_form_of_masks_and_labels_trains_what_the_samples_say(
    columns: dict[str, Any], form: str, context: tuple[int, Any], kind: Any, rename: bool
) -> None:
    size, layout = context
    samples = dict(columns)
    if rename:
        other = {"tokens": "input_ids", "loss_mask": "loss_masks"}
        samples = {other.get(name, name): values for name, values in columns.items()}
    packs = pack_sequences(
        held_by(samples, form),
        num_packs=2,
        labels="shifted" if size > 1 else kind,
        cp_size=size,
        cp_layout=layout,
    )
    found: dict[int, list[int]] = {}
    for pack in packs:
        labels = unpack(pack.labels_as("hf"), pack)
        numbers = [number for number in pack.document_ids.tolist() if number >= 0]
        found |= {n: each.tolist() for n, each in zip(numbers, labels, strict=True)}
        trained = sum(label != -100 for each in labels for label in each.tolist())
        assert trained == pack.num_items, "no label in padding"
    count = range(len(columns["tokens"]))
    assert found == {sample: plain_labels(columns, sample) for sample in count}
    for sample, whole in zip(count, unpack(packs), strict=True):
        for name in {"loss_mask", "labels"} & {*columns}:
            values = whole[name if name in whole else "loss_masks"].tolist()
            if (given := columns[name][sample]) is not None:
                assert values[len(values) - len(given) :] == given


WRONG: list[
    tuple[str, Any, str]
] = [  # of two samples of 3 and 2 tokens, with a response of 2 and 1
    (
        "loss_mask",
        [0, 1],
        "'loss_mask' of sample 0 is 0; expected a list .*, or None for the whole",
    ),
    ("loss_mask", np.array([1, 0]), "'loss_mask' of sample 0 is 1; expected a list"),
    ("loss_mask", pa.array([1, None]), "'loss_mask' of sample 0 is 1; expected a list"),
    ("loss_mask", [None, 0], "'loss_mask' of sample 1 is 0; expected a list"),
    ("loss_mask", [[1, 1], False], "'loss_mask' of sample 1 is False; expected a list"),
    ("loss_masks", ["all", "all"], "'loss_masks' of sample 0 is 'all'; expected a list"),
    (
        "loss_mask",
        [None, [[1], [0, 1]]],
        r"'loss_mask' of sample 1 is \[\[1\], \[0, 1\]\]; expected",
    ),
    (
        "loss_mask",
        [None, [1, 1, 1]],
        "'loss_mask' of sample 1 has 3 values, .* 2 tokens and its resp",
    ),
    ("loss_mask", pa.array([[1, 1], [None]]), "'loss_mask' has a null among the values"),
    ("loss_mask", pa.array([None, [None]], pa.list_(pa.int8())), "has a null among .* of sample 1"),
    ("loss_mask", None, "'loss_mask' is None; expected a list or an array with a value for each"),
    ("labels", [1, 0], "'labels' of sample 0 is 1; expected a list of numbers for every sample"),
    ("labels", [[1, 2], None], "'labels' of sample 1 is None; expected a list of numbers"),
    ("labels", [None, [2]], "'labels' of sample 0 is None; expected a list of numbers"),
    ("labels", [[0.5, 1], [1]], "'labels' has float64; expected integers, token ids"),
    ("labels", [[True, True], [True]], "'labels' has bool; expected integers, token ids"),
    (
        "response_length",
        [2, None],
        "length of sample 1 is None, .* 2 tokens; expected a whole number",
    ),
    (
        "response_length",
        [2, "1"],
        "response length of sample 1 is '1', .*; expected a whole number",
    ),
    (
        "response_length",
        [2.0, 1.0],
        "response length of sample 0 is 2.0, .*; expected a whole number",
    ),
    (
        "response_length",
        [[2], [1]],
        "'response_length' has lists; expected a whole number for each",
    ),
    ("tokens", [[1, 2, 3], None], "'tokens' of sample 1 is None; expected a list of numbers"),
    ("tokens", [None, [1, 2]], "'tokens' of sample 0 is None; expected a list of numbers"),
    ("input_ids", [[1], [2]], "the columns tokens and input_ids; expected one of them"),
    ("response_lengths", [2, 1], "the columns response_length and response_lengths; expected one"),
    ("advantages", [[0.5, 1], 0.5], "'advantages' of sample 1 is 0.5; expected a list of numbers"),
]


@pytest.mark.parametrize(("name", "values", "words"), WRONG)
@pytest.mark.parametrize("labels", ["hf", "none"])
def test_a_known_column_in_a_form_that_is_not_known_is_an_error(
    name: str, values: Any, words: str, labels: Any
) -> None:
    columns = {"tokens": [[1, 2, 3], [4, 5]], "response_length": [2, 1]}
    with pytest.raises(ValueError, match=words):
        pack_sequences(columns | {name: values}, max_tokens=8, labels=labels)


def test_every_rank_gets_the_same_number_of_packs() -> None:
    ranks = [[5, 5, 5], [8], [1, 1]]
    for lengths in ranks:
        samples = {"tokens": [np.ones(length, np.int64) for length in lengths]}
        packs = pack_sequences(samples, max_tokens=8, world_size=3, lengths_of_all=ranks)
        assert len(packs) == 3
        assert sorted(len(part["tokens"]) for part in unpack(packs)) == sorted(lengths)
        for pack in packs:
            check(pack, 8)
            if pack.document_ids.tolist() == [-1]:
                assert (pack.tokens.tolist(), pack.labels.tolist()) == ([0], [-100])
    filler = pack_sequences([], max_tokens=8, lengths_of_all=[[5, 5], []])
    assert [pack.document_ids.tolist() for pack in filler] == [[-1], [-1]]
    assert unpack(filler) == pack_sequences([], max_tokens=8) == []


def test_slices_of_packs_of_one_token_samples_keep_columns_of_samples() -> None:
    """As many samples as tokens: lengths cannot tell columns apart."""
    samples = {"tokens": [[number] for number in range(8)], "reward": np.arange(8.0)}
    (pack,) = pack_sequences(samples, num_packs=1, labels="shifted", cp_size=2)
    half = context_slice(pack, 1, 2)
    assert half.tokens.tolist() == [4, 5, 6, 7]
    assert half.extra["reward"].tolist() == [*range(8)]


TWO = {"tokens": [[1, 2], [1, 2, 3]]}
ONE = {"tokens": [[1]]}
CUT: dict[str, Any] = {"max_tokens": 7, "cp_size": 2, "cp_layout": "zigzag", "labels": "shifted"}
REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    ({"tokens": [[1, 2], [1] * 9310]}, {"max_tokens": 8192}, "sample 1 has 9,310 .* is 8,192; cut"),
    ({"tokens": [[1] * 8, [1] * 9]}, {}, "sample 1 has 9 tokens and max_tokens is 8"),
    ({"tokens": [[1] * 7]}, CUT, "sample 0 has 7 tokens, a multiple of 4 in a pack, and .* is 7;"),
    (
        TWO | {"advantages": [[0.5, 0.5], [0.5]]},
        {},
        "'advantages' of sample 1 has 1 values, .* has 3 tokens; .* pass response_lengths",
    ),
    (
        TWO | {"a": [[0.5], [0.5]], "response_lengths": [1, 2]},
        {},
        "'a' of sample 1 has 1 values, and the sample has 3 tokens and its response 2",
    ),
    ([{"tokens": [1], "reward": 1}, {"tokens": [1]}], {}, "sample 1 has the keys tokens, and .* 0"),
    (ONE | {"response_lengths": [2]}, {}, "the response length of sample 0 is 2, .* has 1 tokens"),
    ({"ids": [[1]]}, {}, "the samples have the columns ids; expected .* 'tokens' or 'input_ids'"),
    ({"tokens": [[0.5]]}, {}, "column 'tokens' has float32; expected integers"),
    ({"tokens": [[1], [2]], "reward": [1.0]}, {}, "'reward' has 1 samples and 'tokens' has 2"),
    (ONE | {"words": [["a"]]}, {}, "column 'words' has values of <U1; expected numbers"),
    ({"tokens": pa.array([[1], None])}, {}, "column 'tokens' of sample 1 is null"),
    (ONE, {"max_tokens": None}, "max_tokens and num_packs are both missing; pass one of them"),
    (ONE, {"max_tokens": 0}, "max_tokens is 0; expected 1 or more"),
    (ONE, {"cp_size": 2}, "labels='hf' loses a label at the end of each slice with cp_size > 1"),
    (ONE, {"lengths_of_all": [[2], [3]]}, "no rank with the lengths of these 1 samples"),
    (ONE, {"lengths_of_all": [[1], [9]]}, "sample 0 of rank 1 has 9 tokens and max_tokens is 8"),
]


@pytest.mark.parametrize(("samples", "settings", "message"), REFUSED)
def test_samples_that_cannot_be_packed_are_named(
    samples: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        pack_sequences(samples, **{"max_tokens": 8} | settings)


LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=40).map(np.array)


def fills(pack_of: Any, lengths: Any, packs: int) -> list[int]:
    return [int(fill) for fill in np.bincount(pack_of, lengths, packs)]


@given(LENGTHS, st.integers(1, 9))
def test_even_packs_are_those_of_the_compiled_kernels(lengths: Any, packs: int) -> None:
    short = lengths.astype(np.int32)
    longest = np.argsort(-lengths, kind="stable")
    expected = longest_first(short, np.zeros(0, np.int32), longest, packs, 2**31 - 1)
    even_out(short, expected, packs, 10_000)
    assert even_packs(lengths, packs).tolist() == expected.tolist()


def test_a_large_plan_is_the_same_with_and_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = np.random.default_rng(0).integers(1, 200, 5000)
    compiled = fewest_packs(lengths, 1000)
    compiling.compiled.cache_clear()
    monkeypatch.setitem(sys.modules, "numba", None)
    plain = fewest_packs(lengths, 1000)
    compiling.compiled.cache_clear()
    assert compiled[1] == plain[1]
    assert compiled[0].tolist() == plain[0].tolist()


@given(LENGTHS, st.integers(30, 80))
def test_no_pack_is_over_the_budget_and_none_is_needless(lengths: Any, budget: int) -> None:
    pack_of, packs = fewest_packs(lengths, budget)
    assert max(fills(pack_of, lengths, packs)) <= budget
    assert packs >= max(1, -(-int(lengths.sum()) // budget))
    # Two packs that fit into one would show that there are too many.
    apart = sorted(fills(pack_of, lengths, packs))
    assert packs == 1 or apart[0] + apart[1] > budget


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6).map(np.array), st.integers(12, 20))
def test_few_samples_are_in_the_fewest_packs_or_one_more(lengths: Any, budget: int) -> None:
    def fit(packs: int) -> bool:
        choices = product(range(packs), repeat=len(lengths))
        return any(max(fills([*choice], lengths, packs)) <= budget for choice in choices)

    fewest = next(filter(fit, count(1)))
    assert fewest <= fewest_packs(lengths, budget)[1] <= fewest + 1


@given(st.lists(LENGTHS, min_size=1, max_size=4), st.integers(30, 80), st.integers(0, 3))
def test_the_number_for_all_ranks_is_enough_on_each(
    ranks: list[Any], budget: int, more: int
) -> None:
    packs = most_packs(ranks, budget)
    assert packs <= max(fewest_packs(lengths, budget)[1] for lengths in ranks)
    for lengths in ranks:
        pack_of = packs_within(lengths, budget, packs + more)
        assert max(fills(pack_of, lengths, packs + more)) <= budget


def test_a_number_of_packs_that_is_too_small_is_an_error() -> None:
    with pytest.raises(
        ValueError, match="num_packs is 2 but no plan with fewer than 3 packs of 8 tokens was found"
    ):
        packs_within(np.array([5, 5, 5]), 8, 2)


@given(LENGTHS, st.integers(1, 9))
def test_samples_of_equal_length_are_dealt_in_input_order(lengths: Any, packs: int) -> None:
    before = even_packs(lengths, packs)
    after = neighbours_together(lengths, before)
    for length in {*lengths.tolist()}:
        of_length = after[lengths == length].tolist()
        assert of_length == sorted(before[lengths == length].tolist())
