"""Rows of one length: whole expected values, laws, and isolation in the attention of each mask."""

from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.loaders import PackedBatch, PackedLoader, PackedShards, batch_from_rows
from tests.helpers.tiny_shards import RICH, rich_row, write_output
from tests.helpers.torch_models import documents, skip_without, tiny_llama

skip_without("torch", "transformers")

import torch  # noqa: E402

from packprep.loaders import to_padded, verify_isolation  # noqa: E402

PACKS = [[5, 1, 7], [4, 6], [8]]
ROWS = [
    {"tokens": [11, 12, 13, 14], "cu_seqlens": [0, 1, 4]},
    {"tokens": [21, 22], "cu_seqlens": [0, 2]},
]
INPUT_IDS = [[11, 12, 13, 14], [21, 22, 0, 0]]
IN_NINES = [[11, 12, 13, 14, 9, 9], [21, 22, 9, 9, 9, 9]]
LABELS = [[-100, -100, 13, 14], [-100, 22, -100, -100]]


def lists(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(value, "tolist", lambda v=value: v)() for name, value in fields.items()}


def packs(lengths: list[list[int]] = PACKS) -> PackedBatch:
    rows = []
    for seed, pack in enumerate(lengths):
        tokens = [token for text in documents(pack, seed) for token in text]
        rows.append({"input_ids": tokens, "seq_lengths": pack})
    return batch_from_rows(rows)


def test_rows_have_one_length_and_padding_is_a_segment_without_labels() -> None:
    expected = {"input_ids": INPUT_IDS, "position_ids": [[0, 0, 1, 2], [0, 1, 0, 1]]}
    fields = to_padded(ROWS)
    assert lists(fields) == expected | {"use_cache": False, "labels": LABELS}
    assert {fields[name].dtype for name in (*expected, "labels")} == {torch.int64}


@pytest.mark.parametrize(
    ("options", "name", "expected"),
    [
        ({"mask": "segments"}, "segment_ids", [[1, 2, 2, 2], [1, 1, 0, 0]]),
        ({"attention_mask": "segments"}, "attention_mask", [[1, 2, 2, 2], [1, 1, 0, 0]]),
        ({"attention_mask": "padding"}, "attention_mask", [[1, 1, 1, 1], [1, 1, 0, 0]]),
        ({"padding": 5}, "input_ids", [[11, 12, 13, 14, 0], [21, 22, 0, 0, 0]]),
        ({"pad_to_multiple_of": 3, "pad_token_id": 9}, "input_ids", IN_NINES),
        ({"padding": 5, "pad_to_multiple_of": 3}, "labels", [each + [-100] * 2 for each in LABELS]),
        ({"padding_positions": "zero"}, "position_ids", [[0, 0, 1, 2], [0, 1, 0, 0]]),
        ({"positions": "continue", "mask": "4d"}, "position_ids", [[0, 1, 2, 3], [0, 1, 0, 1]]),
        ({"rows": "segments"}, "input_ids", [[11, 0, 0], [12, 13, 14], [21, 22, 0]]),
        (
            {"rows": "segments", "mask": "padding"},
            "attention_mask",
            [[1, 0, 0], [1] * 3, [1, 1, 0]],
        ),
    ],
)
def test_each_option_changes_its_field(
    options: dict[str, Any], name: str, expected: list[list[int]]
) -> None:
    assert to_padded(ROWS, **options)[name].tolist() == expected


def test_the_4d_mask_is_lower_block_diagonal_and_keeps_the_windows_of_a_config() -> None:
    mask = to_padded(ROWS, mask="4d")["attention_mask"]
    assert (mask.dtype, mask.shape) == (torch.float32, (2, 1, 4, 4))
    assert (mask == 0).int()[:, 0].tolist() == [
        [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 1]],
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],  # padding sees nothing
    ]
    assert mask[mask != 0].unique().tolist() == [torch.finfo(torch.float32).min]
    config = tiny_llama().config
    config.sliding_window, config.layer_types = 2, ["sliding_attention", "full_attention"]
    masks = to_padded(ROWS, mask="4d", config=config, dtype=torch.bfloat16)["attention_mask"]
    assert (masks["full_attention"] == 0)[0, 0, 3].tolist() == [False, True, True, True]
    assert (masks["sliding_attention"] == 0)[0, 0, 3].tolist() == [False, False, True, True]


def test_filler_and_padding_of_a_batch_are_padding_of_the_rows(tmp_path: Path) -> None:
    stored = [rich_row(0, 3, 4), rich_row(2, 1)]
    write_output(tmp_path / "rich", {"train": [stored]}, RICH, max_length=16)
    shards = PackedShards(tmp_path / "rich")
    plain = PackedLoader(shards, 2, shuffle=False)[0]
    full = PackedLoader(shards, 3, shuffle=False, remainder="fill", pad_to=60)[0]
    assert plain.pack_boundaries.tolist() == [0, len(stored[0]["tokens"]), len(plain)]
    few, many = (lists(to_padded(batch, mask="segments")) for batch in (plain, full))
    for name in ("input_ids", "position_ids", "labels", "segment_ids"):
        assert many[name][:2] == few[name]
    assert set(many["segment_ids"][2]) == {0}
    assert set(many["labels"][2]) == {-100}
    assert lists(to_padded(full, rows="segments")) == lists(to_padded(plain, rows="segments"))


LENGTHS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4)


@given(LENGTHS, st.sampled_from(["packs", "segments"]), st.integers(1, 4), st.integers(0, 3))
def test_rows_without_padding_are_the_batch(
    lengths: list[list[int]], rows: Any, multiple: int, more: int
) -> None:
    batch = packs(lengths).torch()
    longest = max(sum(pack) if rows == "packs" else max(pack) for pack in lengths)
    fields = to_padded(
        batch, longest + more, pad_to_multiple_of=multiple, rows=rows, mask="segments"
    )
    real = fields["segment_ids"] > 0
    assert fields["input_ids"].shape[1] == -(-(longest + more) // multiple) * multiple
    assert torch.equal(fields["input_ids"][real], batch.tokens)
    assert torch.equal(fields["position_ids"][real], batch.position_ids)
    assert torch.equal(fields["labels"][real], batch.labels)
    assert set(fields["labels"][~real].tolist()) <= {-100}
    runs = [groupby(row) for row in fields["segment_ids"].tolist()]
    kept = [len([*run]) for row in runs for number, run in row if number]
    assert kept == batch.cu_seqlens.diff().tolist()


ISOLATED: list[dict[str, Any]] = [
    {},
    {"mask": "segments"},
    {"mask": "4d"},
    {"mask": "4d", "positions": "continue"},
    {"mask": "4d", "padding_positions": "zero", "padding": 20},
    {"padding_positions": "zero", "pad_to_multiple_of": 8},
]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("options", ISOLATED)
def test_positions_and_4d_masks_isolate(attention: str, options: dict[str, Any]) -> None:
    model = tiny_llama(attention)
    found = verify_isolation(model, to_padded(packs(), **options))
    assert found.isolated, found
    assert found.leaking > 0.1
    assert verify_isolation(model, packs().torch(), inputs=partial(to_padded, **options)).isolated


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"padding": 3}, "padding is 3 and the longest row has 4 tokens"),
        ({"padding": "max_length"}, "padding is 'max_length'; expected 'longest' or a number"),
        ({"pad_to_multiple_of": 0}, "pad_to_multiple_of is 0; expected 1 or more"),
        ({"mask": "2d"}, "mask is '2d'; expected one of None, 'padding', 'segments', '4d'"),
        ({"mask": "4d", "attention_mask": "segments"}, "'segments' and mask='4d' are both"),
        ({"mask": "padding"}, "row 0 has 2 segments, and with mask='padding'"),
        ({"positions": "continue"}, "row 0 has 2 segments, and with positions='continue'"),
    ],
)
def test_a_call_that_cannot_work_is_a_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        to_padded(ROWS, **options)
