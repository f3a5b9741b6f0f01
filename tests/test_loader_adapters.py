"""Each adapter's fields, by name, dtype, shape and value; against the installed library where there is one."""

from pathlib import Path
from typing import Any

import pytest

from packprep.loaders import PackedBatch, PackedLoader, PackedShards

from .tiny_shards import GOLDEN, RICH, rich_row, write_output
from .torch_models import batch_of, documents, skip_without

skip_without("torch", "transformers")

import torch  # noqa: E402

from packprep.loaders import (  # noqa: E402
    to_axolotl,
    to_flattening,
    to_flex_block_mask,
    to_forgather,
    to_hf,
    to_llama_factory,
    to_megatron,
    to_olmo,
    to_seq_idx,
    to_torchtitan,
    to_trl,
    to_trl_row,
    varlen_attention,
)

LENGTHS = [5, 1, 17, 9]
# The second pack of the format's worked example: [1, 10, 2 | 27, 2 | 1, 30, 2].
TOKENS = [1, 10, 2, 27, 2, 1, 30, 2]
POSITIONS = [0, 1, 2, 0, 1, 0, 1, 2]
LABELS = [-100, 10, 2, -100, 2, -100, 30, 2]
SHIFTED = [10, 2, -100, 2, -100, 30, 2, -100]
BOUNDARIES = [0, 3, 5, 8]


def example(**options: Any) -> PackedBatch:
    return PackedLoader(PackedShards(GOLDEN / "v1-example"), 1, shuffle=False, **options)[1]


def plain(fields: Any) -> Any:
    """Tensors as (dtype, list)."""
    if isinstance(fields, dict):
        return {name: plain(value) for name, value in fields.items()}
    return (str(fields.dtype).removeprefix("torch."), fields.tolist()) if isinstance(fields, torch.Tensor) else fields


def sequence(values: list[int], dtype: str = "int64") -> tuple[str, list[list[int]]]:
    return (dtype, [values])


COMMON = {"input_ids": sequence(TOKENS), "position_ids": sequence(POSITIONS), "labels": sequence(LABELS)}
CU = ("int32", BOUNDARIES)
FLASH = {"cu_seq_lens_q": CU, "cu_seq_lens_k": CU, "max_length_q": 3, "max_length_k": 3}
SEQ_IDX = {"seq_idx": sequence([0, 0, 0, 1, 1, 2, 2, 2], "int32")}
NUMBERS = [1, 1, 1, 2, 2, 3, 3, 3]


@pytest.mark.parametrize("kind", ["hf", "shifted"])
@pytest.mark.parametrize(
    ("adapter", "expected"),
    [
        (to_hf, COMMON | FLASH | {"use_cache": False}),
        (to_flattening, COMMON | FLASH),
        (to_trl, COMMON | FLASH | SEQ_IDX),
        (to_axolotl, COMMON | {"attention_mask": sequence(NUMBERS)}),
        (to_llama_factory, COMMON | {"attention_mask": sequence(NUMBERS, "int32")}),
        (to_forgather, COMMON),
        (to_olmo, {
            "input_ids": sequence(TOKENS), "labels": sequence(SHIFTED),
            "doc_lens": ("int32", [[3, 2, 3]]), "max_doc_lens": [3],
        }),
        (to_torchtitan, {
            "input": sequence(TOKENS), "positions": sequence(POSITIONS), "labels": sequence(SHIFTED),
            "attention_masks": {"cu_seq_q": CU, "cu_seq_k": CU, "max_q": 3, "max_k": 3},
        }),
        (to_megatron, {
            "tokens": sequence(TOKENS), "position_ids": sequence(POSITIONS),
            "labels": sequence([0 if label < 0 else label for label in SHIFTED]),
            "loss_mask": ("float32", [[float(label >= 0) for label in SHIFTED]]),
            "packed_seq_params": {
                "qkv_format": "thd", "max_seqlen_q": 3, "max_seqlen_kv": 3, "cu_seqlens_q": CU, "cu_seqlens_kv": CU,
            },
        }),
    ],
)  # fmt: skip
def test_fields_by_name_dtype_and_value_whatever_labels_the_batch_has(adapter: Any, expected: Any, kind: Any) -> None:
    assert plain(adapter(example(labels=kind))) == expected


@pytest.mark.parametrize("adapter", [to_hf, to_trl, to_axolotl, to_forgather, to_megatron, to_olmo, to_torchtitan])
def test_rows_of_load_from_disk_give_what_the_loader_gives(adapter: Any) -> None:
    import datasets

    rows = datasets.load_from_disk(GOLDEN / "v1-example")
    (both,) = PackedLoader(PackedShards(GOLDEN / "v1-example"), 2, shuffle=False)
    for form in (None, "numpy", "torch"):
        assert plain(adapter([*rows.with_format(form)])) == plain(adapter(both))


def test_one_tensor_stands_for_queries_and_keys() -> None:
    fields = to_hf(example())
    assert fields["cu_seq_lens_q"] is fields["cu_seq_lens_k"]
    masks = to_torchtitan(example())["attention_masks"]
    assert masks["cu_seq_q"] is masks["cu_seq_k"]


def test_the_flattening_collator_of_transformers_makes_the_same(tmp_path: Path) -> None:
    from transformers import DataCollatorWithFlattening

    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    expected = collate([{"input_ids": text} for text in documents(LENGTHS)])
    assert plain(to_flattening(batch_of(tmp_path / "out", LENGTHS), return_seq_idx=True)) == plain(dict(expected))


def test_trls_collator_makes_the_same_of_rows_by_its_names(tmp_path: Path) -> None:
    sft = pytest.importorskip("trl.trainer.sft_trainer")
    import datasets

    batch = batch_of(tmp_path / "out", LENGTHS)
    rows = datasets.load_from_disk(tmp_path / "out")
    named = [to_trl_row(row) for row in rows]
    assert named[0]["seq_lengths"] == LENGTHS
    collate = sft.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    assert plain(to_trl(batch)) == plain(collate(named))
    assert plain(to_trl([*rows])) == plain(to_trl(named))


def test_a_mask_of_segment_numbers_gives_back_the_boundaries(tmp_path: Path) -> None:
    """As get_unpad_data of Axolotl and LLaMA-Factory does: how often 1, 2, ... occur, and places that are not 0."""
    for adapter in (to_axolotl, to_llama_factory):
        batch = batch_of(tmp_path / adapter.__name__, LENGTHS, pad_to=512)
        mask = adapter(batch)["attention_mask"]
        lengths = torch.bincount(mask[0])[1:].tolist()
        assert lengths == LENGTHS
        assert mask[0].nonzero().flatten().tolist() == list(range(sum(LENGTHS)))


def test_filler_between_packs_has_no_number_and_leaves_no_gap(tmp_path: Path) -> None:
    write_output(tmp_path / "out", {"train": [[rich_row(0, 3), rich_row(1, 4)]]}, RICH, max_length=16)
    (batch,) = PackedLoader(PackedShards(tmp_path / "out"), 2, shuffle=False)
    assert to_axolotl(batch)["attention_mask"].tolist() == [[1] * 4 + [0] * 4 + [2] * 4 + [0] * 4]


def test_the_4d_mask_is_block_diagonal_and_causal() -> None:
    mask = to_llama_factory(example(), mask_dtype=torch.bfloat16)["attention_mask"]
    assert mask.shape == (1, 1, 8, 8)
    assert mask.dtype == torch.bfloat16
    seen = [[query >= key and NUMBERS[query] == NUMBERS[key] for key in range(8)] for query in range(8)]
    assert (mask[0, 0] == 0).tolist() == seen
    assert mask.min() == torch.finfo(torch.bfloat16).min


def test_megatron_counts_real_tokens_and_places_apart_where_segments_are_padded(tmp_path: Path) -> None:
    write_output(tmp_path / "out", {"train": [[rich_row(0, 3, 4)]]}, RICH, max_length=16)
    (batch,) = PackedLoader(PackedShards(tmp_path / "out"), 1)
    params = plain(to_megatron(batch)["packed_seq_params"])
    assert params["cu_seqlens_q"] == params["cu_seqlens_kv"] == ("int32", [0, 3, 7, 7])
    assert params["cu_seqlens_q_padded"] == params["cu_seqlens_kv_padded"] == ("int32", [0, 4, 8, 12])


def test_empty_segments_of_a_static_shape_add_nothing(tmp_path: Path) -> None:
    batch = batch_of(tmp_path / "out", LENGTHS, max_segments=9)
    assert to_seq_idx(batch)[0].tolist()[:32] == [0] * 5 + [1] + [2] * 17 + [3] * 9
    assert to_axolotl(batch)["attention_mask"].max() == 4
    assert to_olmo(batch)["doc_lens"].tolist() == [[5, 1, 17, 9, 480, 0, 0, 0, 0]]


@pytest.mark.parametrize(("causal", "window"), [(True, None), (False, None), (True, 3), (False, 3)])
def test_the_flex_mask_is_that_of_varlen_attention(tmp_path: Path, causal: bool, window: int | None) -> None:
    batch = batch_of(tmp_path / "out", LENGTHS).torch()
    mask = to_flex_block_mask(batch, causal=causal, window=window)
    total = len(batch)
    place = torch.arange(total)
    zero = torch.zeros((), dtype=torch.int64)
    seen = mask.mask_mod(zero, zero, place[:, None], place[None, :])
    # With equal queries attention is the mean of the values seen, so values of unit vectors show which those are.
    flat = torch.zeros(total, 1, total)
    out = varlen_attention(
        flat, flat, torch.eye(total)[:, None], batch.cu_seqlens, batch.max_seqlen, causal=causal, window=window
    )
    assert ((out[:, 0] > 0) == seen).all()


def test_a_batch_without_labels_has_none_and_trainers_that_need_them_say_so() -> None:
    batch = example(labels="none")
    assert "labels" not in to_hf(batch)
    with pytest.raises(ValueError, match="the batch has no labels; ask PackedLoader for labels='hf' or 'shifted'"):
        to_megatron(batch)
