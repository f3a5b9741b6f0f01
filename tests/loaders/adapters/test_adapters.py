"""Each adapter's fields, by name, dtype, shape and value.

Against the installed library where there is one.
"""

import sys
from dataclasses import make_dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from packprep.loaders import PackedBatch, PackedLoader, PackedShards
from packprep.loaders.adapters.megatron import _takes_total_tokens
from packprep.schemas import FormatError
from tests.helpers.adapters import plain
from tests.helpers.tiny_shards import GOLDEN, RICH, rich_row, write_output
from tests.helpers.torch_models import batch_of, documents, skip_without

skip_without("torch", "transformers")

import torch  # noqa: E402

from packprep.loaders import (  # noqa: E402
    to_axolotl,
    to_flattening,
    to_flex_block_mask,
    to_forgather,
    to_hf,
    to_hf_4d,
    to_llama_factory,
    to_megatron,
    to_olmo,
    to_seq_idx,
    to_torchtitan,
    to_torchtune,
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
NUMBERS = [1, 1, 1, 2, 2, 3, 3, 3]
SEEN = [[k <= q and NUMBERS[q] == NUMBERS[k] for k in range(8)] for q in range(8)]


def example(**options: Any) -> PackedBatch:
    return PackedLoader(PackedShards(GOLDEN / "v1-example"), 1, shuffle=False, **options)[1]


@pytest.fixture
def padded(tmp_path: Path) -> PackedBatch:
    """Documents of 3 and 4 tokens, each padded to 4, and 4 tokens of filler."""
    write_output(tmp_path / "rich", {"train": [[rich_row(0, 3, 4)]]}, RICH, max_length=16)
    return PackedLoader(PackedShards(tmp_path / "rich"), 1)[0]


def sequence(values: list[int], dtype: str = "int64") -> tuple[str, list[list[int]]]:
    return (dtype, [values])


COMMON = {
    "input_ids": sequence(TOKENS),
    "position_ids": sequence(POSITIONS),
    "labels": sequence(LABELS),
    "use_cache": False,
}
CU = ("int32", BOUNDARIES)
FLASH = {"cu_seq_lens_q": CU, "cu_seq_lens_k": CU, "max_length_q": 3, "max_length_k": 3}
SEQ_IDX = {"seq_idx": sequence([0, 0, 0, 1, 1, 2, 2, 2], "int32")}
OLMO = {
    "input_ids": sequence(TOKENS),
    "labels": sequence(SHIFTED),
    "doc_lens": ("int32", [[3, 2, 3]]),
    "max_doc_lens": [3],
}
TORCHTUNE = {
    "tokens": sequence(TOKENS),
    "labels": sequence(LABELS),
    "input_pos": sequence(POSITIONS),
    "mask": ("bool", [SEEN]),
}
MEGATRON = {
    "tokens": sequence(TOKENS),
    "position_ids": sequence(POSITIONS),
    "labels": sequence([max(label, 0) for label in SHIFTED]),
    "loss_mask": ("float32", [[float(label >= 0) for label in SHIFTED]]),
    "packed_seq_params": {
        "qkv_format": "thd",
        "max_seqlen_q": 3,
        "max_seqlen_kv": 3,
        "cu_seqlens_q": CU,
        "cu_seqlens_kv": CU,
        "total_tokens": 8,
    },
}
TITAN_ROW = {"input": sequence(TOKENS), "positions": sequence(POSITIONS)}
TITAN_FLAT = {"input": ("int64", TOKENS), "positions": ("int64", POSITIONS)}


@pytest.mark.parametrize(
    ("adapter", "expected"),
    [
        (to_hf, COMMON | FLASH | SEQ_IDX),
        (to_flattening, COMMON | FLASH),
        (to_trl, COMMON | FLASH | SEQ_IDX),
        (to_axolotl, COMMON),
        (to_llama_factory, COMMON),
        (to_forgather, COMMON),
        (to_olmo, OLMO),
        (partial(to_torchtitan, version="0.3"), (TITAN_ROW, sequence(SHIFTED))),
        (partial(to_torchtitan, version="main"), (TITAN_FLAT, ("int64", SHIFTED))),
        (to_torchtune, TORCHTUNE),
        (to_megatron, MEGATRON),
    ],
)
def test_fields_by_name_dtype_and_value(adapter: Any, expected: Any) -> None:
    fields = adapter(example())
    assert plain(fields) == expected
    if "cu_seq_lens_q" in expected:
        assert fields["cu_seq_lens_q"] is fields["cu_seq_lens_k"]  # one tensor


def test_the_flattening_collator_of_transformers_makes_the_same(tmp_path: Path) -> None:
    from transformers import DataCollatorWithFlattening

    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    rows = [{"input_ids": text} for text in documents(LENGTHS)]
    ours = to_flattening(batch_of(tmp_path / "out", LENGTHS), return_seq_idx=True)
    assert plain(ours) == plain(dict(collate(rows))) | {"use_cache": False}
    assert plain(to_flattening(rows, return_seq_idx=True)) == plain(ours)


def test_trls_collator_makes_the_same_of_rows_by_its_names(tmp_path: Path) -> None:
    sft = pytest.importorskip("trl.trainer.sft_trainer")
    import datasets

    batch = batch_of(tmp_path / "out", LENGTHS)
    rows = datasets.load_from_disk(tmp_path / "out")
    named = [to_trl_row(row) for row in rows]
    assert named[0]["seq_lengths"] == LENGTHS
    collate = sft.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    assert plain(to_trl(batch)) == plain(collate(named)) | {"use_cache": False}
    assert plain(to_trl([*rows])) == plain(to_trl(named))
    alone = [{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}]
    assert plain(to_trl(alone)) == plain(collate(alone)) | {"use_cache": False}


@pytest.mark.parametrize(
    "lost", [{"tokens": [1, 2]}, {"input_ids": [1, 2], "position_ids": [0, 0]}, {"labels": [1]}]
)
def test_a_packed_row_that_lost_its_boundaries_is_no_document(lost: dict[str, Any]) -> None:
    for adapter in (to_flattening, to_trl):
        with pytest.raises(FormatError, match=r"a row has the columns .*; expected"):
            adapter([lost])


def test_a_row_for_trl_has_no_label_on_the_first_token_of_a_segment() -> None:
    row = {"tokens": TOKENS, "cu_seqlens": BOUNDARIES}
    expected = {"input_ids": TOKENS, "labels": LABELS, "seq_lengths": [3, 2, 3]}
    assert to_trl_row(row) == to_trl_row(row | {"labels": TOKENS}) == expected
    assert to_trl_row(row | {"labels": [-100] * 7 + [2]})["labels"] == [-100] * 7 + [2]
    assert row["tokens"] == TOKENS


def seen_by(mask: torch.Tensor) -> list[list[int]]:
    """For each token, the tokens it sees."""
    assert {*mask.flatten().tolist()} == {torch.finfo(mask.dtype).min, 0}
    return [row.nonzero().flatten().tolist() for row in mask[0, 0] == 0]


SEES = [[0], [0, 1], [0, 1, 2], [3], [3, 4], [5], [5, 6], [5, 6, 7]]
SEES_TWO = [[0], [0, 1], [1, 2], [3], [3, 4], [5], [5, 6], [6, 7]]


def test_the_4d_masks_have_the_boundaries_and_are_causal(padded: PackedBatch) -> None:
    mask = to_llama_factory(example(), mask_dtype=torch.bfloat16)["attention_mask"]
    fields = to_hf_4d(example(), SimpleNamespace(dtype=torch.bfloat16))
    for each in (mask, fields.pop("attention_mask")):
        assert (each.shape, each.dtype) == ((1, 1, 8, 8), torch.bfloat16)
        assert seen_by(each) == SEES
    assert plain(fields) == COMMON | SEQ_IDX | {"use_cache": False}
    half = to_hf_4d(example(), SimpleNamespace(), dtype=torch.float16)["attention_mask"]
    assert half.dtype == torch.float16
    # LLaMA-Factory's filler sees nothing, and each pack itself alone.
    seen = seen_by(to_llama_factory(padded, mask_dtype=torch.float32)["attention_mask"])
    assert seen == [[*range(at - at % 4, at + 1)] for at in range(8)] + [[]] * 4


def test_the_4d_form_keeps_the_windows_of_the_config_and_filler_sees_itself(tmp_path: Path) -> None:
    seen = seen_by(to_hf_4d(batch_of(tmp_path / "out", [2, 1], pad_to=512), None)["attention_mask"])
    assert seen[:5] == [[0], [0, 1], [2], [3], [3, 4]]
    assert seen[-1] == list(range(3, 512))

    def masks(**config: Any) -> Any:
        return to_hf_4d(example(), SimpleNamespace(**config))["attention_mask"]

    assert seen_by(masks(sliding_window=2)) == SEES_TWO
    unused = masks(sliding_window=2, layer_types=["full_attention"])
    assert seen_by(unused) == SEES
    both = masks(sliding_window=2, layer_types=["sliding_attention", "full_attention"])
    expected = {"full_attention": SEES, "sliding_attention": SEES_TWO}
    assert {name: seen_by(mask) for name, mask in both.items()} == expected
    with pytest.raises(ValueError, match="layers with chunked attention"):
        masks(layer_types=["chunked_attention"])


def test_megatron_counts_real_tokens_and_places_apart_where_segments_are_padded(
    padded: PackedBatch,
) -> None:
    params = plain(to_megatron(padded)["packed_seq_params"])
    assert params["cu_seqlens_q"] == params["cu_seqlens_kv"] == ("int32", [0, 3, 7, 7])
    places = ("int32", [0, 4, 8, 12])
    assert params["cu_seqlens_q_padded"] == params["cu_seqlens_kv_padded"] == places
    assert params["total_tokens"] == 12


@pytest.mark.parametrize("fields", [[], ["total_tokens"]])
def test_megatron_is_given_total_tokens_unless_it_is_too_old_to_take_it(
    fields: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = ModuleType("megatron.core.packed_seq_params")
    module.PackedSeqParams = make_dataclass("PackedSeqParams", ["cu_seqlens_q", *fields])
    for name in ("megatron", "megatron.core", module.__name__):
        monkeypatch.setitem(sys.modules, name, module)
    _takes_total_tokens.cache_clear()
    try:
        assert ("total_tokens" in to_megatron(example())["packed_seq_params"]) == bool(fields)
    finally:
        _takes_total_tokens.cache_clear()


def titan_0_3(positions: Any) -> list[int]:
    """Boundaries that torchtitan 0.3.0 reads from positions [b, s]."""
    rows, length = positions.shape
    starts = [row * length + int(at) for row, at in (positions == 0).nonzero()]
    return [*starts, rows * length]


def titan_main(positions: Any) -> list[int]:
    """Boundaries that its main reads from positions [T]; of [1, T] wrong ones, with no error."""
    return [*map(int, (positions == 0).nonzero(as_tuple=True)[0]), positions.shape[0]]


@pytest.mark.parametrize(("version", "read"), [("0.3", titan_0_3), ("main", titan_main)])
def test_torchtitan_reads_the_boundaries_back_from_positions(version: Any, read: Any) -> None:
    pack = {"input_ids": [7] * 9, "seq_lengths": [3, 2, 4]}
    assert read(to_torchtitan([pack], version=version)[0]["positions"]) == [0, 3, 5, 9]


def test_the_version_of_torchtitan_must_be_named() -> None:
    assert titan_main(to_torchtitan(example(), version="0.3")[0]["positions"]) == [0, 0, 0, 1]
    with pytest.raises(TypeError, match="version"):
        to_torchtitan(example())  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"version is '0\.2'; expected '0\.3', .* or 'main'"):
        to_torchtitan(example(), version="0.2")  # type: ignore[arg-type]


def test_olmo_counts_rows_as_instances_and_padding_as_a_document() -> None:
    rows = [
        {"input_ids": [1, 2, 3, 4, 5], "seq_lengths": [2, 3]},
        {"input_ids": [6, 7], "seq_lengths": [2]},
    ]
    assert plain(to_olmo(rows)) == {
        "input_ids": ("int64", [[1, 2, 3, 4, 5], [6, 7, 0, 0, 0]]),
        "labels": ("int64", [[2, -100, 4, 5, -100], [7, -100, -100, -100, -100]]),
        "doc_lens": ("int32", [[2, 3], [2, 3]]),
        "max_doc_lens": [3, 3],
    }
    third = {"input_ids": [8, 9, 8, 9, 8], "seq_lengths": [5]}
    assert to_olmo([*rows, third])["doc_lens"].tolist() == [[2, 3], [2, 3], [5, 0]]


def test_empty_segments_of_a_static_shape_add_nothing(tmp_path: Path) -> None:
    batch = batch_of(tmp_path / "out", LENGTHS, max_segments=9)
    assert to_seq_idx(batch)[0].tolist()[:32] == [0] * 5 + [1] + [2] * 17 + [3] * 9
    mask = to_llama_factory(batch, mask_dtype=torch.float32)["attention_mask"][0, 0]
    assert (mask == 0).sum(1).tolist()[:32] == [*range(1, 6), 1, *range(1, 18), *range(1, 10)]
    assert to_olmo(batch)["doc_lens"].tolist() == [[5, 1, 17, 9, 480, 0, 0, 0, 0]]


@pytest.mark.parametrize(("causal", "window"), [(True, None), (False, None), (True, 3), (False, 3)])
def test_the_flex_mask_is_that_of_varlen_attention(
    tmp_path: Path, causal: bool, window: int | None
) -> None:
    batch = batch_of(tmp_path / "out", LENGTHS).torch()
    total, options = len(batch), {"causal": causal, "window": window}
    mask = to_flex_block_mask(batch, **options)  # type: ignore[arg-type]
    place, zero = torch.arange(total), torch.zeros((), dtype=torch.int64)
    seen = mask.mask_mod(zero, zero, place[:, None], place[None, :])
    # With equal queries attention is the mean of the values seen, so values of unit vectors show
    # which those are.
    flat, values = torch.zeros(total, 1, total), torch.eye(total)[:, None]
    out = varlen_attention(flat, flat, values, batch.cu_seqlens, batch.max_seqlen, **options)  # type: ignore[arg-type]
    assert ((out[:, 0] > 0) == seen).all()


def test_labels_may_be_missing_or_marked_otherwise() -> None:
    batch = example(labels="none")
    assert "labels" not in to_hf(batch)
    with pytest.raises(ValueError, match="the batch has no labels; ask PackedLoader for labels="):
        to_megatron(batch)
    labels = to_torchtune(example(), padding_idx=9, ignore_idx=-1)["labels"]
    assert labels.tolist() == [[max(n, -1) for n in LABELS]]
