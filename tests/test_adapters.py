"""Fields of each trainer: those of the first edition, for batches of any kind and for rows."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.torch_models import skip_without

skip_without("torch", "transformers")

import torch  # noqa: E402

import packprep.loaders as first  # noqa: E402
import packprep.next.loaders as second  # noqa: E402

CONFIG = SimpleNamespace(sliding_window=3, layer_types=["full_attention", "sliding_attention"])
ADAPTERS: dict[str, dict[str, Any]] = {
    "to_hf": {},
    "to_trl": {},
    "to_axolotl": {},
    "to_llama_factory": {"mask_dtype": torch.float32},
    "to_hf_4d": {"config": CONFIG},
    "to_megatron": {},
    "to_olmo": {},
    "to_torchtitan": {"version": "0.3"},
    "to_torchtune": {"ignore_idx": -1},
    "to_seq_idx": {},
}


@st.composite
def fields_of_batches(draw: Any) -> dict[str, Any]:
    """Fields of a batch of documents, some of them padded, some of them filler."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    total, cu_seqlens = sum(lengths), np.cumsum([0, *lengths]).astype(np.int32)
    labels = np.where(np.arange(total) % 3 == 0, -100, np.arange(total))
    labels[cu_seqlens[:-1]] = -100
    filler = [draw(st.booleans()) and at > 0 for at in range(len(lengths))]
    kind = draw(st.sampled_from(["hf", "shifted"]))
    fields: dict[str, Any] = {
        "tokens": np.arange(total) + 10,
        "position_ids": np.concatenate([np.arange(length) for length in lengths]),
        "cu_seqlens": cu_seqlens,
        "max_seqlen": max(lengths),
        "labels": np.roll(labels, -1) if kind == "shifted" else labels,
        "label_kind": kind,
        "pack_boundaries": cu_seqlens[[0, len(lengths) // 2, -1]] if len(lengths) > 1 else None,
    }
    if draw(st.booleans()):
        fields["document_ids"] = np.where(filler, -1, np.arange(len(lengths)))
    if draw(st.booleans()):
        real = [draw(st.integers(1, length)) for length in lengths]
        fields["segment_lengths"] = np.where(filler, 0, real).astype(np.int32)
    return fields


def assert_same(one: Any, other: Any) -> None:
    """Compare values, shapes and types of what two adapters return."""
    assert type(one) is type(other)
    if isinstance(one, Mapping):
        assert {*one} == {*other}
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, tuple):
        for each, same in zip(one, other, strict=True):
            assert_same(each, same)
    elif isinstance(one, torch.Tensor):
        assert (one.dtype, one.tolist()) == (other.dtype, other.tolist())
    else:
        assert one == other


@pytest.mark.parametrize("name", ADAPTERS)
@given(fields=fields_of_batches())
def test_fields_are_those_of_the_first_edition(name: str, fields: dict[str, Any]) -> None:
    adapt: Callable[..., Any] = getattr(second, name)
    options = ADAPTERS[name]
    expected = getattr(first, name)(first.PackedBatch(**fields), **options)
    assert_same(adapt(second.PackedBatch(**fields), **options), expected)


@given(fields=fields_of_batches(), data=st.data())
def test_rows_of_one_length_are_those_of_the_first_edition(
    fields: dict[str, Any], data: st.DataObject
) -> None:
    options: dict[str, Any] = {
        "mask": data.draw(st.sampled_from([None, "padding", "segments", "4d"])),
        "attention_mask": data.draw(st.sampled_from([None, "padding", "segments"])),
        "rows": data.draw(st.sampled_from(["packs", "segments"])),
        "positions": data.draw(st.sampled_from(["restart", "continue"])),
        "padding_positions": data.draw(st.sampled_from(["restart", "zero"])),
        "pad_to_multiple_of": data.draw(st.integers(1, 4)),
    }
    try:
        expected = first.to_padded(first.PackedBatch(**fields), **options)
    except ValueError as error:
        with pytest.raises(ValueError, match=str(error)[:20]):
            second.to_padded(second.PackedBatch(**fields), **options)
        return
    assert_same(second.to_padded(second.PackedBatch(**fields), **options), expected)


@given(data=st.data())
def test_a_batch_of_rows_is_that_of_the_first_edition(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([None, "eos", "bos", "positions"]))
    rows = []
    for _ in range(data.draw(st.integers(1, 3))):
        ids = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=9))
        row: dict[str, Any] = {"input_ids": ids}
        if kind is None:
            cut = data.draw(st.integers(0, len(ids) - 1))
            row["seq_lengths"] = [size for size in (cut, len(ids) - cut) if size]
        if kind == "positions":
            row["position_ids"] = [at % 3 for at in range(len(ids))]
        rows.append(row)
    options: dict[str, Any] = {"boundaries": kind}
    if kind is not None:
        options["token"] = None if kind == "positions" else 2
        options["pad_token"] = data.draw(st.sampled_from([None, 2, 0]))
    expected = first.batch_from_rows(rows, **options)
    batch = second.batch_from_rows(rows, **options)
    for name in batch.__dataclass_fields__:
        one, other = getattr(batch, name), getattr(expected, name)
        assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


def test_rejected_sides_are_refused_and_given_without_labels() -> None:
    rows = [{"tokens": [1, 2, 3, 4], "cu_seqlens": [0, 2, 4], "pair_sides": [0, 1]}]
    for name in {*ADAPTERS} - {"to_seq_idx"}:
        with pytest.raises(ValueError, match="rejected answers"):
            getattr(second, name)(rows, **ADAPTERS[name])
    with pytest.raises(ValueError, match="rejected answers"):
        second.to_padded(rows)
    fields = second.to_hf(rows, sides="both")
    assert "labels" not in fields
    assert fields["input_ids"].tolist() == [[1, 2, 3, 4]]


def test_documents_are_rows_of_a_block_mask() -> None:
    rows = [{"tokens": [*range(256)], "seq_lengths": [100, 156]}]
    dense = second.to_flex_block_mask(rows, window=20).to_dense()[0, 0]
    assert dense.shape == (2, 2)
    with pytest.raises(ValueError, match="expected '0"):
        second.to_torchtitan(rows, version="1")  # type: ignore[arg-type]
