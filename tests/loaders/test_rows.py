"""Batches from rows that another tool packed: boundaries from ids or positions, and padding."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.loaders import PackedBatch, batch_from_rows
from packprep.schemas import FormatError
from packprep.schemas.boundaries import BoundaryKind

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


def test_padding_has_no_loss_and_no_length() -> None:
    rows = [{"input_ids": [5, 6, EOS, PAD, PAD]}, {"input_ids": [5, PAD, 7, PAD]}]
    batch = batch_from_rows(rows, boundaries="eos", token=EOS, pad_token=PAD)
    assert spelled(batch) == {
        "positions": [0, 1, 2, 0, 1, 0, 1, 2, 3],
        "labels": [-100, 6, EOS, -100, -100, -100, PAD, 7, -100],
        "boundaries": [0, 3, 5, 9],
        "lengths": [3, 0, 3],
    }
    assert batch.num_real_tokens == 6


def test_a_document_keeps_its_eos_if_eos_is_the_padding_too() -> None:
    row = {"input_ids": [5, 6, EOS, EOS, EOS]}
    batch = batch_from_rows([row], boundaries="eos", token=EOS, pad_token=EOS)
    assert spelled(batch) == {
        "positions": [0, 1, 2, 0, 0],
        "labels": [-100, 6, EOS, -100, -100],
        "boundaries": [0, 3, 4, 5],
        "lengths": [3, 0, 0],
    }


def test_an_attention_mask_of_the_row_says_what_is_padding() -> None:
    row = {"input_ids": [BOS, 5, BOS, 6, 9], "attention_mask": [1, 1, 2, 2, 0], "labels": [7] * 5}
    batch = batch_from_rows([row], boundaries="bos", token=BOS)
    assert spelled(batch) == {
        "positions": [0, 1, 0, 1, 2],
        "labels": [-100, 7, -100, 7, -100],
        "boundaries": [0, 2, 5],
        "lengths": [2, 2],
    }


def test_rows_without_padding_give_the_batch_of_their_boundaries() -> None:
    tokens = [5, 6, EOS, 7, EOS]
    row = {"tokens": tokens, "cu_seqlens": [0, 3, 5]}
    found = batch_from_rows([{"input_ids": tokens}], boundaries="eos", token=EOS, pad_token=PAD)
    assert spelled(found) == spelled(batch_from_rows([row]))


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


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({}, "has the columns input_ids; expected position_ids among them"),
        ({"position_ids": [0]}, "has 1 position_ids for 3 tokens; expected one per token"),
        ({"position_ids": [0, 4, 5]}, "position 4 at token 1, where positions do not continue"),
        (
            {"position_ids": [0, 1, 2], "attention_mask": [0, 1, 1]},
            "has an attention_mask of 3 values, 2 of them not 0, for 3 tokens",
        ),
    ],
)
def test_rows_that_do_not_fit_are_a_sentence(row: dict[str, Any], words: str) -> None:
    with pytest.raises(FormatError, match=f"row 0 of the batch .*{words}"):
        batch_from_rows([{"input_ids": [5, 6, 7]} | row], boundaries="positions")
