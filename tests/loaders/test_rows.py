"""Batches from rows that another tool packed: boundaries from ids or positions, and padding."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.loaders import PackedBatch, PackedShards, batch_from_rows
from packprep.schemas import FormatError
from packprep.schemas.boundaries import BoundaryKind
from tests.helpers.tiny_shards import GOLDEN

from .test_batches import example, lists

EOS, BOS, PAD = 2, 1, 0
ROWS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=1, max_size=4)


def plain_positions(row: list[int], token: int, *, ends: bool) -> list[int]:
    """Positions that begin again after each token (ends) or at each, one token at a time."""
    positions: list[int] = []
    for place, value in enumerate(row):
        restarts = place and (row[place - 1] == token if ends else value == token)
        positions.append(0 if not place or restarts else positions[-1] + 1)
    return positions


def spelled(batch: PackedBatch) -> dict[str, Any]:
    lengths = batch.segment_lengths
    return {
        "positions": batch.position_ids.tolist(),
        "labels": batch.labels.tolist(),
        "boundaries": batch.cu_seqlens.tolist(),
        "lengths": None if lengths is None else lengths.tolist(),
    }


@pytest.mark.parametrize(
    ("row", "positions", "boundaries"),
    [
        ([5, 6, 2, 7, 2], [0, 1, 2, 0, 1], [0, 3, 5]),
        ([5, 2, 2, 2, 7], [0, 1, 0, 0, 0], [0, 2, 3, 4, 5]),  # a run of EOS
        ([5, 2, 7, 8], [0, 1, 0, 1], [0, 2, 4]),  # no EOS at the end
        ([2, 5], [0, 0], [0, 1, 2]),  # EOS first
        ([5, 6], [0, 1], [0, 2]),  # no EOS
        ([5, 2, 0, 0, 0], [0, 1, 0, 1, 2], [0, 2, 5]),  # padding counts on, as a segment
        ([5, 6, 0, 0], [0, 1, 2, 3], [0, 4]),  # padding of a document that was cut
    ],
)
def test_positions_restart_after_each_eos(
    row: list[int], positions: list[int], boundaries: list[int]
) -> None:
    batch = batch_from_rows([{"input_ids": row}], boundaries="eos", token=EOS)
    assert (batch.position_ids.tolist(), batch.cu_seqlens.tolist()) == (positions, boundaries)


@given(ROWS, st.booleans())
def test_positions_of_rows_are_those_of_counting_token_by_token_and_give_the_boundaries(
    rows: list[list[int]], ends: bool
) -> None:
    kind: BoundaryKind = "eos" if ends else "bos"
    batch = batch_from_rows([{"input_ids": row} for row in rows], boundaries=kind, token=EOS)
    positions = [plain_positions(row, EOS, ends=ends) for row in rows]
    assert batch.position_ids.tolist() == [place for row in positions for place in row]
    assert batch.labels[batch.cu_seqlens[:-1]].tolist() == [-100] * batch.num_segments
    positioned = [
        {"input_ids": row, "position_ids": places}
        for row, places in zip(rows, positions, strict=True)
    ]
    assert spelled(batch_from_rows(positioned, boundaries="positions")) == spelled(batch)


MASKED = {"input_ids": [BOS, 5, BOS, 6, 9], "attention_mask": [1, 1, 2, 2, 0], "labels": [7] * 5}


@pytest.mark.parametrize(
    ("rows", "options", "positions", "labels", "boundaries", "lengths"),
    [
        (
            [{"input_ids": [5, 6, EOS, PAD, PAD]}, {"input_ids": [5, PAD, 7, PAD]}],
            {"boundaries": "eos", "token": EOS, "pad_token": PAD},
            [0, 1, 2, 0, 1, 0, 1, 2, 3],
            [-100, 6, EOS, -100, -100, -100, PAD, 7, -100],
            [0, 3, 5, 9],
            [3, 0, 3],
        ),
        (
            [{"input_ids": [5, 6, EOS, EOS, EOS]}],  # a document keeps its EOS
            {"boundaries": "eos", "token": EOS, "pad_token": EOS},
            [0, 1, 2, 0, 0],
            [-100, 6, EOS, -100, -100],
            [0, 3, 4, 5],
            [3, 0, 0],
        ),
        (
            [MASKED],  # the row itself says what is padding
            {"boundaries": "bos", "token": BOS},
            [0, 1, 0, 1, 2],
            [-100, 7, -100, 7, -100],
            [0, 2, 5],
            [2, 2],
        ),
    ],
)
def test_padding_has_no_loss_and_no_length(
    rows: Any, options: Any, positions: Any, labels: Any, boundaries: Any, lengths: Any
) -> None:
    batch = batch_from_rows(rows, **options)
    expected = {"positions": positions, "labels": labels, "boundaries": boundaries}
    assert spelled(batch) == expected | {"lengths": lengths}
    assert batch.num_real_tokens == sum(lengths)


def test_rows_make_the_batch_that_the_loader_makes() -> None:
    (batch,) = example()
    rows: Any = [dict(pack.columns) for pack in PackedShards(GOLDEN / "v1-example")]
    assert lists(batch_from_rows(rows)) == lists(batch)
    lengths = [np.diff(row["cu_seqlens"]).tolist() for row in rows]
    trl = [
        {"input_ids": row["tokens"], "seq_lengths": each}
        for row, each in zip(rows, lengths, strict=True)
    ]
    expected = {name: value for name, value in lists(batch).items() if name != "document_ids"}
    assert lists(batch_from_rows(trl)) == expected
    row = {"tokens": [5, 6, 7], "cu_seqlens": [0, 2, 3], "pair_ids": [4, 4], "pair_sides": [0, 1]}
    extra = batch_from_rows([row, row]).extra
    assert {name: (values.dtype.name, values.tolist()) for name, values in extra.items()} == {
        "pair_ids": ("int64", [4, 4, 4, 4]),
        "pair_sides": ("int8", [0, 1, 0, 1]),
    }


@pytest.mark.parametrize(
    ("kind", "token", "sentence"),
    [
        ("eod", 2, "boundaries is 'eod'; expected one of eos, bos, positions"),
        ("eos", None, "boundaries is 'eos' and token is None; pass the id of EOS"),
        ("bos", None, "boundaries is 'bos' and token is None; pass the id of BOS"),
        ("positions", 2, "boundaries is 'positions' and token is 2; positions need no token"),
        (None, 2, "token is 2 and pad_token is None without boundaries; pass boundaries='eos'"),
    ],
)
def test_wrong_arguments_are_a_sentence(kind: Any, token: int | None, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        batch_from_rows([{"input_ids": [1], "position_ids": [0]}], boundaries=kind, token=token)


TWO = {"tokens": [1, 2]}


@pytest.mark.parametrize(
    ("row", "kind", "words"),
    [
        ({"tokens": [1, 2], "cu_seqlens": [0, 1]}, None, r"row 0 of .*: cu_seqlens are \[0, 1\]"),
        ({"labels": [1]}, None, "columns labels; expected tokens .*remove_unused_columns=False"),
        ({"tokens": [1]}, None, "columns tokens; expected cu_seqlens or seq_lengths among them"),
        (TWO | {"cu_seqlens": [0, 2], "labels": [1]}, None, "have 1 labels for 2 tokens"),
        (TWO, "positions", "row 0 .* has the columns tokens; expected position_ids among them"),
        (TWO | {"position_ids": [0]}, "positions", "row 0 .* has 1 position_ids for 2 tokens"),
        (TWO | {"position_ids": [0, 4]}, "positions", "row 0 .* has position 4 at token 1, where"),
        (
            TWO | {"position_ids": [0, 1], "attention_mask": [0, 1]},
            "positions",
            "row 0 .* has an attention_mask of 2 values, 1 of them not 0, for 2 tokens",
        ),
    ],
)
def test_rows_that_do_not_fit_are_a_sentence(row: dict[str, Any], kind: Any, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        batch_from_rows([row], boundaries=kind)
