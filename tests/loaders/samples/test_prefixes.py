"""Trees of samples: every column comes back, shared tokens are held once, and rules of sharing."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.loaders import PackedBatch, pack_sequences, unpack
from packprep.loaders.samples.prefixes import merge_rows
from packprep.schemas.index.runs import Pointers
from packprep.schemas.trees import path_starts
from packprep.trees.merge import merge_prefixes

from .test_packing import assert_same

_row = st.lists(st.integers(0, 2), min_size=1, max_size=9)
_rows = st.lists(st.tuples(_row, st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=9)


def rows_of(drawn: list[tuple[list[int], int, int]]) -> list[list[int]]:
    """Half of the rows go on from another one, so that deep trees are common."""
    rows: list[list[int]] = []
    for tail, of, kept in drawn:
        rows.append((rows[of % len(rows)][:kept] if rows and of % 2 else []) + tail)
    return rows


@given(_rows.map(rows_of), st.data())
def test_rows_merge_as_in_a_build(rows: list[list[int]], data: Any) -> None:
    """With a second column that may differ where tokens are equal."""
    marks = [[data.draw(st.integers(0, 5)) == 0 for _ in row] for row in rows]
    pairs = zip(rows, marks, strict=True)
    columns = [[np.array(each, np.int32)[:, None] for each in pair] for pair in pairs]

    def pointers(values: list[Any]) -> Pointers:
        flat = np.array([each for row in values for each in row], np.int32)
        return Pointers.into(flat, np.cumsum([0, *map(len, values)])[:-1])

    lengths = np.array([len(row) for row in rows], np.int32)
    whole = np.array([0, len(rows)])
    order, shared = merge_prefixes(pointers(rows), lengths, whole, [pointers(marks)])
    found = merge_rows(columns, lengths.tolist())
    assert found == [*zip(order.tolist(), shared.tolist(), strict=True)]


@st.composite
def prompts(draw: Any) -> list[dict[str, Any]]:
    """Samples of few prompts: prompts that begin alike, equal responses, and empty samples."""
    number = draw(st.integers(1, 8))
    samples = []
    for sample in range(number):
        prompt = draw(st.sampled_from([[1], [1, 2, 3], [1, 2, 4, 4], []]))
        response = draw(st.lists(st.integers(5, 6), max_size=4))
        advantages = [draw(st.sampled_from([0.5, 0.25])) for _ in response]
        samples.append(
            {
                "tokens": np.array(prompt + response, np.int64),
                "loss_mask": np.array([0] * len(prompt) + [1] * len(response), np.int8),
                "advantages": np.array(advantages, np.float32),
                "response_lengths": np.int64(len(response)),
                "reward": np.float64(sample),
                "prompt": str(prompt),
            }
        )
    return samples


@given(
    prompts(),
    st.sampled_from([True, "prompt"]),
    st.sampled_from([{"max_tokens": 8}, {"max_tokens": 30}, {"num_packs": 2}]),
    st.sampled_from(["hf", "none"]),
)
def test_unpacked_trees_are_the_samples(
    samples: list[dict[str, Any]], share: bool | str, settings: Any, labels: Any
) -> None:
    packs = pack_sequences(samples, share_prefixes=share, labels=labels, **settings)
    assert_same(unpack(packs), samples)
    assert_same(unpack([pack.torch() for pack in packs]), samples)
    for pack in packs:
        assert settings.get("max_tokens", 100) >= len(pack) > 0
        check_tree(pack)
        if labels == "hf":
            assert_rows(pack)


def check_tree(pack: PackedBatch) -> None:
    """Positions go on from the parent; `previous` is the token before on the path."""
    boundaries = pack.cu_seqlens.astype(int)
    lengths = np.diff(boundaries)
    assert boundaries[-1] == len(pack.tokens)
    assert (pack.segment_parents < np.arange(len(lengths))).all()
    above = path_starts(pack.segment_parents, lengths)
    starts = zip(above, lengths, strict=True)
    assert pack.position_ids.tolist() == [at + place for at, n in starts for place in range(n)]
    assert ((pack.previous < 0) == (pack.position_ids == 0)).all()
    inside = pack.previous >= 0
    assert (pack.position_ids[pack.previous[inside]] == pack.position_ids[inside] - 1).all()


def assert_rows(pack: PackedBatch) -> None:
    """The documents of `unshared` train the tokens that the weights count."""
    plain = pack.unshared()
    assert int((plain.labels != -100).sum()) == int(pack.label_weights.sum())
    assert plain.document_ids.tolist() == pack.rows["row_ids"].tolist()
    assert int(pack.rows["row_trained"].sum()) == int(pack.label_weights.sum())


def test_a_prompt_is_held_once_up_to_where_a_value_differs() -> None:
    samples = {
        "tokens": [[1, 2, 3, 4], [9, 9], [1, 2, 3, 5, 6]],
        "response_lengths": [1, 1, 2],
        "advantages": [[0.5], [1.0], [0.25, 0.25]],
        "reward": [1, 2, 3],
    }
    (pack,) = pack_sequences(samples, max_tokens=8, share_prefixes=True, loss_weights="segment")
    assert pack.tokens.tolist() == [1, 2, 3, 4, 5, 6, 9, 9]
    assert pack.segment_parents.tolist() == [-1, 0, 0, -1]
    assert pack.labels.tolist() == [-100, -100, -100, 4, 5, 6, -100, 9]
    assert pack.label_weights.tolist() == [0, 0, 0, 1, 1, 1, 0, 1]
    assert pack.loss_weights.tolist() == [0, 0, 0, 1, 0.5, 0.5, 0, 1]
    assert pack.extra["advantages"].tolist() == [0, 0, 0, 0.5, 0.25, 0.25, 0, 1]
    assert pack.rows["row_ids"].tolist() == [0, 2, 1]
    assert pack.rows["reward"].tolist() == [1, 3, 2]
    returns = [[0.0, 0.5, 0.0], [0.0, 0.25, 0.0]]  # values that differ are not shared
    others = {"tokens": [[1, 2, 3], [1, 2, 4]], "response_lengths": [1, 1], "returns": returns}
    (pack,) = pack_sequences(others, max_tokens=8, share_prefixes=True)
    assert pack.tokens.tolist() == [1, 2, 3, 2, 4]


UID = {"uid": ["a", "a"]}


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ({}, {"share_prefixes": True}, "by response_lengths, which are missing; pass them, or"),
        (UID, {"share_prefixes": "group"}, "'group'; expected True or a column .*: uid"),
        (UID, {"labels": "shifted"}, "labels='shifted' .* with share_prefixes: .*batch.previous"),
        (UID, {"lengths_of_all": [[2, 2]]}, "lengths_of_all cannot be used with share_prefixes"),
        (UID, {"max_tokens": 1}, "sample 0 has 2 tokens and max_tokens is 1"),
    ],
)
def test_settings_that_cannot_share(columns: Any, settings: Any, message: str) -> None:
    options = {"max_tokens": 8, "share_prefixes": "uid"} | settings
    with pytest.raises(ValueError, match=message):
        pack_sequences({"tokens": [[1, 2], [1, 3]], **columns}, **options)
