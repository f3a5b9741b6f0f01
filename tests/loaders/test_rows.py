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


def spelled(batch: PackedBatch) -> list[Any]:
    """Positions, labels, boundaries and lengths without padding."""
    arrays = (batch.position_ids, batch.labels, batch.cu_seqlens, batch.segment_lengths)
    return [None if each is None else each.tolist() for each in arrays]


@pytest.mark.parametrize(
    ("row", "positions", "boundaries"),
    [
        ([5, 6, 2, 7, 2], [0, 1, 2, 0, 1], [0, 3, 5]),
        ([5, 2, 2, 2, 7], [0, 1, 0, 0, 0], [0, 2, 3, 4, 5]),  # a run of EOS
        ([5, 2, 7, 8], [0, 1, 0, 1], [0, 2, 4]),  # no EOS at the end
        ([2, 5], [0, 0], [0, 1, 2]),  # EOS first
        ([5, 2, 0, 0, 0], [0, 1, 0, 1, 2], [0, 2, 5]),  # padding counts on, as a segment
        ([5, 6, 0, 0], [0, 1, 2, 3], [0, 4]),  # padding of a document that was cut
    ],
)
def test_positions_restart_after_each_eos(row: Any, positions: Any, boundaries: Any) -> None:
    batch = batch_from_rows([{"input_ids": row}], boundaries="eos", token=EOS)
    assert (batch.position_ids.tolist(), batch.cu_seqlens.tolist()) == (positions, boundaries)
    given = {"tokens": row, "cu_seqlens": boundaries}
    assert spelled(batch) == spelled(batch_from_rows([given]))


@given(ROWS, st.booleans())
def test_positions_of_rows_are_those_of_counting_token_by_token_and_give_the_boundaries(
    rows: list[list[int]], ends: bool
) -> None:
    kind: BoundaryKind = "eos" if ends else "bos"
    batch = batch_from_rows([{"input_ids": row} for row in rows], boundaries=kind, token=EOS)
    positions = [plain_positions(row, EOS, ends=ends) for row in rows]
    assert batch.position_ids.tolist() == [place for row in positions for place in row]
    assert batch.labels[batch.cu_seqlens[:-1]].tolist() == [-100] * batch.num_segments
    pairs = zip(rows, positions, strict=True)
    positioned = [{"input_ids": row, "position_ids": places} for row, places in pairs]
    assert spelled(batch_from_rows(positioned, boundaries="positions")) == spelled(batch)


BY_EOS = {"boundaries": "eos", "token": EOS}
PADDED = [{"input_ids": [5, 6, EOS, PAD, PAD]}, {"input_ids": [5, PAD, 7, PAD]}]
MASKED = {"input_ids": [BOS, 5, BOS, 6, 9], "attention_mask": [1, 1, 2, 2, 0], "labels": [7] * 5}
NONE = -100


@pytest.mark.parametrize(
    ("rows", "options", "expected"),
    [
        (
            PADDED,
            BY_EOS | {"pad_token": PAD},
            [
                [0, 1, 2, 0, 1, 0, 1, 2, 3],
                [NONE, 6, EOS, NONE, NONE, NONE, PAD, 7, NONE],
                [0, 3, 5, 9],
                [3, 0, 3],
            ],
        ),
        (
            [{"input_ids": [5, 6, EOS, EOS, EOS]}],  # a document keeps its EOS
            BY_EOS | {"pad_token": EOS},
            [[0, 1, 2, 0, 0], [NONE, 6, EOS, NONE, NONE], [0, 3, 4, 5], [3, 0, 0]],
        ),
        (
            [MASKED],  # the row itself says what is padding
            {"boundaries": "bos", "token": BOS},
            [[0, 1, 0, 1, 2], [NONE, 7, NONE, 7, NONE], [0, 2, 5], [2, 2]],
        ),
    ],
)
def test_padding_has_no_loss_and_no_length(rows: Any, options: Any, expected: Any) -> None:
    batch = batch_from_rows(rows, **options)
    assert spelled(batch) == expected
    assert batch.num_real_tokens == sum(expected[-1])


def test_rows_make_the_batch_that_the_loader_makes() -> None:
    (batch,) = example()
    rows: Any = [dict(pack.columns) for pack in PackedShards(GOLDEN / "v1-example")]
    assert lists(batch_from_rows(rows)) == lists(batch)
    lengths = [np.diff(row["cu_seqlens"]).tolist() for row in rows]
    pairs = zip(rows, lengths, strict=True)
    trl = [{"input_ids": row["tokens"], "seq_lengths": each} for row, each in pairs]
    assert lists(batch_from_rows(trl)) | {"document_ids": [1, 0, 1, 2]} == lists(batch)
    row = {"tokens": [5, 6, 7], "cu_seqlens": [0, 2, 3], "pair_ids": [4, 4], "pair_sides": [0, 1]}
    extra = batch_from_rows([row, row]).extra
    assert {name: (values.dtype.name, values.tolist()) for name, values in extra.items()} == {
        "pair_ids": ("int64", [4, 4, 4, 4]),
        "pair_sides": ("int8", [0, 1, 0, 1]),
    }


TWO = {"tokens": [1, 2]}
PLACED = TWO | {"position_ids": [0, 1]}
POSITIONS = {"boundaries": "positions"}


@pytest.mark.parametrize(
    ("row", "options", "words"),
    [
        ({"tokens": [1, 2], "cu_seqlens": [0, 1]}, {}, r"row 0 of .*: cu_seqlens are \[0, 1\]"),
        ({"labels": [1]}, {}, "columns labels; expected tokens .*remove_unused_columns=False"),
        ({"tokens": [1]}, {}, "columns tokens; expected cu_seqlens or seq_lengths among them"),
        (TWO | {"cu_seqlens": [0, 2], "labels": [1]}, {}, "have 1 labels for 2 tokens"),
        (TWO, POSITIONS, "row 0 .* has the columns tokens; expected position_ids among them"),
        (TWO | {"position_ids": [0]}, POSITIONS, "row 0 .* has 1 position_ids for 2 tokens"),
        (TWO | {"position_ids": [0, 4]}, POSITIONS, "row 0 .* has position 4 at token 1, where"),
        (PLACED | {"attention_mask": [0, 1]}, POSITIONS, "row 0 .* of 2 values, 1 of them not 0"),
    ],
)
def test_rows_that_do_not_fit_are_a_sentence(row: Any, options: Any, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        batch_from_rows([row], **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"boundaries": "eod"}, "'eod'; expected one of eos, bos, positions"),
        ({"boundaries": "eos"}, "'eos' and token is None; pass the id of EOS"),
        ({"boundaries": "bos"}, "'bos' and token is None; pass the id of BOS"),
        (POSITIONS | {"token": 2}, "token is 2; positions need no token"),
        ({"token": 2}, "token is 2 and pad_token is None without boundaries; pass boundaries="),
    ],
)
def test_wrong_arguments_are_a_sentence(options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        batch_from_rows([PLACED], **options)
