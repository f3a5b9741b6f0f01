"""Packed equals alone, by every adapter that a model can be called with; and each known leak is found and named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packprep.loaders import PackedBatch

from .torch_models import FlashStub, batch_of, documents, skip_without, tiny_llama

skip_without("torch", "transformers")

import torch  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

from packprep.loaders import (  # noqa: E402
    to_axolotl,
    to_flattening,
    to_forgather,
    to_hf,
    to_llama_factory,
    to_trl,
    verify_isolation,
)

LENGTHS = [37, 1, 50, 40]
BOUNDARIES = [0, 37, 38, 88, 128]
Inputs = Callable[[PackedBatch], dict[str, Any]]

ADAPTERS: dict[str, Inputs] = {
    "to_hf": to_hf,
    "to_flattening": to_flattening,
    "to_trl": to_trl,
    "to_axolotl": to_axolotl,
    "to_forgather": to_forgather,
    "to_llama_factory": to_llama_factory,
    "to_llama_factory, 4-D mask": lambda batch: to_llama_factory(batch, mask_dtype=torch.float32),
}


@pytest.fixture
def batch(tmp_path: Path) -> PackedBatch:
    return batch_of(tmp_path / "out", LENGTHS).torch()


@pytest.fixture
def padded(tmp_path: Path) -> PackedBatch:
    """The same pack with 40 tokens of padding, a segment of its own."""
    return batch_of(tmp_path / "padded", LENGTHS, pad_multiple=168).torch()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_packed_logits_equal_those_of_each_document_alone(batch: PackedBatch, adapter: str, attention: str) -> None:
    found = verify_isolation(tiny_llama(attention), batch, inputs=ADAPTERS[adapter], tolerance=1e-5)
    assert found.isolated, str(found)
    assert found.largest < 1e-5
    assert str(found).startswith("isolated: logits differ by ")


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_packed_gradients_equal_those_of_the_documents_alone(batch: PackedBatch, adapter: str) -> None:
    model = tiny_llama()
    fields = ADAPTERS[adapter](batch)
    packed = model(**fields).loss * batch.num_items
    gradients = torch.autograd.grad(packed, [*model.parameters()])
    alone = [
        cross_entropy(model(input_ids=torch.tensor([text])).logits[0, :-1], torch.tensor(text[1:]), reduction="sum")
        for text in documents(LENGTHS)
        if len(text) > 1
    ]
    expected = torch.autograd.grad(torch.stack(alone).sum(), [*model.parameters()])
    scale = max(float(gradient.abs().max()) for gradient in expected)
    for got, wanted in zip(gradients, expected, strict=True):
        assert float((got - wanted).abs().max()) / scale < 1e-5


def test_the_flash_path_receives_the_boundaries_of_the_pack(
    batch: PackedBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = FlashStub(monkeypatch)
    model = stub.model()
    for adapter in ("to_hf", "to_flattening", "to_trl", "to_axolotl", "to_forgather", "to_llama_factory"):
        stub.boundaries.clear()
        stub.max_lengths.clear()
        found = verify_isolation(model, batch, inputs=ADAPTERS[adapter], tolerance=1e-5)
        assert found.isolated, str(found)
        assert stub.boundaries[:2] == [BOUNDARIES] * 2  # one for each layer
        assert stub.max_lengths[:2] == [50, 50]
        assert type(stub.max_lengths[0]) is int or "max_length_q" not in ADAPTERS[adapter](batch)


def test_padding_is_one_more_segment_on_the_flash_path(padded: PackedBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = FlashStub(monkeypatch)
    for adapter in ("to_hf", "to_axolotl", "to_llama_factory"):
        stub.boundaries.clear()
        assert verify_isolation(stub.model(), padded, inputs=ADAPTERS[adapter], tolerance=1e-5).isolated
        assert stub.boundaries[0] == [*BOUNDARIES, 168]


def without(batch: PackedBatch, *names: str) -> dict[str, Any]:
    return {name: value for name, value in to_hf(batch).items() if name not in names}


KWARGS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


def mask_with_pads(batch: PackedBatch) -> torch.Tensor:
    mask = torch.ones(1, len(batch), dtype=torch.int64)
    mask[:, -8:] = 0
    return mask


# What goes wrong in practice: how the model is called, by which attention, and the cause that must be named.
LEAKS: dict[str, tuple[str, Inputs, str]] = {
    "a cache": ("sdpa", lambda b: to_hf(b) | {"use_cache": True}, "use_cache is on, and with a cache"),
    "the cache of the config": ("sdpa", lambda b: without(b, "use_cache"), "use_cache is on, and with a cache"),
    "a mask of ones": (
        "sdpa",
        lambda b: to_hf(b) | {"attention_mask": torch.ones(1, len(b), dtype=torch.int64)},
        "an attention_mask is given",
    ),
    "a mask of segment numbers": (
        "sdpa",
        lambda b: to_hf(b) | {"attention_mask": torch.repeat_interleave(torch.arange(1, 5), b.cu_seqlens.diff())[None]},
        "an attention_mask is given",
    ),
    "a mask with padding, on the flash path, whatever else is given": (
        "flash",
        lambda b: to_hf(b) | {"attention_mask": mask_with_pads(b)},
        "an attention_mask is given",
    ),
    "no positions": ("sdpa", lambda b: without(b, "position_ids"), "position_ids are missing"),
    "a first segment that starts at 20, on the flash path without boundaries": (
        "flash",
        lambda b: without(b, *KWARGS) | {"position_ids": b.position_ids[None] + 20 * (torch.arange(len(b)) < 37)},
        "position_ids start at 20 and not at 0, which hides the first segment",
    ),
    "boundaries of something else": (
        "flash",
        lambda b: (
            to_hf(b) | dict.fromkeys(KWARGS[:2], torch.tensor([0, 128], dtype=torch.int32)) | {"max_length_q": 128}
        ),
        "cu_seq_lens_q make 1 segments and the batch has 4; give its own",
    ),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_is_found_and_its_cause_named(batch: PackedBatch, monkeypatch: pytest.MonkeyPatch, leak: str) -> None:
    attention, inputs, cause = LEAKS[leak]
    model = FlashStub(monkeypatch).model() if attention == "flash" else tiny_llama(attention)
    found = verify_isolation(model, batch, inputs=inputs)
    assert not found.isolated
    assert found.largest > 0.01
    assert found.segment is not None
    assert found.cause is not None
    assert cause in found.cause
    assert str(found).startswith(f"leak: logits of segment {found.segment} differ by ")


def test_padding_at_position_0_is_found(padded: PackedBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(batch: PackedBatch) -> dict[str, Any]:
        positions = batch.position_ids.clone()
        positions[128:] = 0
        return without(batch, *KWARGS) | {"position_ids": positions[None]}

    stub = FlashStub(monkeypatch)
    found = verify_isolation(stub.model(), padded, inputs=zeros)
    assert len(stub.boundaries[0]) - 1 == 44  # 4 documents and every token of the padding
    assert found.isolated  # equal tokens in segments of one or of forty: slow, not wrong
    assert "position_ids make 44 segments and cu_seqlens 5" in found.hazards[0]
    assert "; but position_ids make 44 segments" in str(found)


def test_missing_positions_are_a_hazard_where_only_distances_count(
    batch: PackedBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rotary positions that run on are as good within a segment; learned ones would not be."""
    found = verify_isolation(
        FlashStub(monkeypatch).model(), batch, inputs=lambda b: without(b, "position_ids"), tolerance=1e-3
    )
    assert found.isolated
    assert "position_ids are missing" in found.hazards[0]


def test_the_adapters_have_no_hazard(batch: PackedBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verify_isolation(tiny_llama(), batch).hazards == ()
    assert verify_isolation(FlashStub(monkeypatch).model(), batch).hazards == ()


def test_a_model_that_mixes_elsewhere_is_found_too(batch: PackedBatch) -> None:
    class Mixing(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        """Attends to nothing but carries a running mean along."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(64, 8)

        def forward(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
            out: torch.Tensor = self.embedding(input_ids).cumsum(1)
            return out

    found = verify_isolation(Mixing(), batch)
    assert found.cause is not None
    assert "another layer mixes tokens across boundaries" in found.cause


def test_the_model_stays_as_it_was(batch: PackedBatch) -> None:
    model = tiny_llama().train()
    verify_isolation(model, batch)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_logits_that_are_fewer_than_tokens_are_a_sentence(batch: PackedBatch) -> None:
    with pytest.raises(ValueError, match="the model gave 1 logits for 128 tokens; expected one each"):
        verify_isolation(tiny_llama(), batch, inputs=lambda b: to_hf(b) | {"logits_to_keep": 1})
