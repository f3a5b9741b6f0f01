"""`verify_isolation` finds each known leak with its cause, and nothing in isolated models."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packprep.loaders import PackedBatch
from tests.helpers.adapters import EVERY
from tests.helpers.torch_models import FlashStub, batch_of, skip_without, tiny_llama

skip_without("torch", "transformers")

import torch  # noqa: E402

from packprep.loaders import to_hf, to_hf_4d, to_llama_factory, verify_isolation  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts" / "checks"))

import families  # noqa: E402
import family_sizes  # noqa: E402

PAGE = (Path(__file__).parents[3] / "docs" / "train" / "isolation.md").read_text()
LENGTHS = [37, 1, 50, 40]
BOUNDARIES = [0, 37, 38, 88, 128]
Inputs = Callable[[PackedBatch], dict[str, Any]]


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> PackedBatch:
    return batch_of(tmp_path_factory.mktemp("pack") / "out", LENGTHS).torch()


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> PackedBatch:
    """The same pack with 40 tokens of padding, a segment of its own."""
    return batch_of(tmp_path_factory.mktemp("pad") / "out", LENGTHS, pad_multiple=168).torch()


@pytest.mark.parametrize(
    "adapter", ["hf", "flattening", "trl", "axolotl", "forgather", "llama_factory"]
)
def test_the_flash_path_receives_the_boundaries_of_the_pack_and_of_its_padding(
    batch: PackedBatch, padded: PackedBatch, adapter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub, inputs = FlashStub(monkeypatch), EVERY[f"to_{adapter}"]
    found = verify_isolation(stub.model(), batch, inputs=inputs, tolerance=1e-5)
    assert found.isolated, str(found)
    assert stub.boundaries[:2] == [BOUNDARIES] * 2  # one for each layer
    assert stub.max_lengths[:2] == [50, 50]
    assert type(stub.max_lengths[0]) is int or "max_length_q" not in inputs(batch)
    stub.boundaries.clear()
    assert verify_isolation(stub.model(), padded, inputs=inputs, tolerance=1e-5).isolated
    assert stub.boundaries[0] == [*BOUNDARIES, 168]


KWARGS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
ONE_DOCUMENT = dict.fromkeys(KWARGS[:2], torch.tensor([0, 128], dtype=torch.int32))


def without(batch: PackedBatch, *names: str) -> dict[str, Any]:
    return {name: value for name, value in to_hf(batch).items() if name not in names}


def masked(batch: PackedBatch, mask: Any) -> dict[str, Any]:
    return to_hf(batch) | {"attention_mask": mask}


def ones(batch: PackedBatch) -> Any:
    return torch.ones(1, len(batch), dtype=torch.int64)


def numbers(batch: PackedBatch) -> Any:
    return torch.repeat_interleave(torch.arange(1, 5), batch.cu_seqlens.diff())[None]


def begun_at_20(batch: PackedBatch) -> Any:
    return batch.position_ids[None] + 20 * (torch.arange(len(batch)) < 37)


# What goes wrong in practice: how the model is called, by which attention, and the cause that must
# be named.
LEAKS: dict[str, tuple[str, Inputs, str]] = {
    "a cache": ("sdpa", lambda b: to_hf(b) | {"use_cache": True}, "use_cache is on, and with a"),
    "the cache of the config": ("sdpa", lambda b: without(b, "use_cache"), "use_cache is on, and"),
    "a mask of ones": ("sdpa", lambda b: masked(b, ones(b)), "the call has an attention_mask"),
    "a mask of segment numbers": (
        "sdpa",
        lambda b: masked(b, numbers(b)),
        "attention_mask numbers the segments",
    ),
    "a mask with padding, on the flash path, whatever else is given": (
        "flash",
        lambda b: masked(b, (torch.arange(len(b)) < 120)[None].long()),
        "the call has an attention_mask",
    ),
    "no positions": ("sdpa", lambda b: without(b, "position_ids"), "position_ids are missing"),
    "a first segment that starts at 20, on the flash path without boundaries": (
        "flash",
        lambda b: without(b, *KWARGS) | {"position_ids": begun_at_20(b)},
        "position_ids start at 20 and not at 0, which hides the first segment",
    ),
    "boundaries of something else": (
        "flash",
        lambda b: to_hf(b) | ONE_DOCUMENT | {"max_length_q": 128},
        "cu_seq_lens_q make 1 segments and the batch has 4; pass the boundaries",
    ),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_is_found_and_its_cause_named(
    batch: PackedBatch, monkeypatch: pytest.MonkeyPatch, leak: str
) -> None:
    attention, inputs, cause = LEAKS[leak]
    model = FlashStub(monkeypatch).model() if attention == "flash" else tiny_llama(attention)
    found = verify_isolation(model.train(), batch, inputs=inputs)
    assert model.training  # and the model is as it was
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not found.isolated
    assert found.largest > 0.01
    assert cause in (found.cause or "")
    assert str(found).startswith(f"leak: logits of segment {found.segment} differ by ")
    if leak in ("no positions", "boundaries of something else"):  # in a dict as in a batch
        assert cause in str(verify_isolation(model, inputs(batch)))


def test_padding_at_position_0_is_found(
    padded: PackedBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    model = FlashStub(monkeypatch).model()
    assert verify_isolation(model, batch).hazards == verify_isolation(tiny_llama(), batch).hazards
    assert verify_isolation(model, batch).hazards == ()
    found = verify_isolation(
        model, batch, inputs=lambda b: without(b, "position_ids"), tolerance=1e-3
    )
    assert found.isolated
    assert "position_ids are missing" in found.hazards[0]


def in_the_page(family: str) -> list[str]:
    """Cells of its row, without how large each leak is."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {family} |")]
    return [re.sub(r"leak [\d.]+", "leak", cell.strip()) for cell in line.strip("|").split("|")]


# Fast ones of each kind; scripts/checks/families.py measures all.
QUICK = ["llama", "gpt_oss", "opt", "mpt", "bloom", "bamba", "mamba2"]
QUICK += ["gemma3", "llama4", "mllama_text_model", "deepseek_v3", "deepseek_v4", "qwen3_5"]


@pytest.mark.parametrize("family", QUICK)
def test_the_page_of_families_shows_what_is_measured_now(family: str) -> None:
    measured = [re.sub(r"leak [\d.]+", "leak", cell) for cell in families.row(family)]
    assert measured == in_the_page(family)


def test_the_page_has_every_family_of_the_script_and_every_type_that_axolotl_packs() -> None:
    named = [*family_sizes.FAMILIES, *family_sizes.PACKED_BY_AXOLOTL.split()]
    assert all(map(in_the_page, named))


def test_models_that_read_seq_idx_are_told_what_they_lack(batch: PackedBatch) -> None:
    """A kernel; the argument, where logits differ by a thousandth of what they could; a reader."""
    with pytest.raises(ValueError, match="can't keep packed sequences apart without"):
        families.tiny_model("bamba", "sdpa")(**to_hf(batch))
    model = families.tiny_model("lfm2", "sdpa", initializer_range=0.02)
    found = verify_isolation(model, batch, inputs=lambda b: without(b, "seq_idx"))
    assert found.largest < 1e-3
    assert not found.isolated
    assert "pass seq_idx to state-space and convolution layers" in (found.cause or "")
    found = verify_isolation(families.tiny_model("mamba2", "eager"), batch)
    assert "another layer mixes tokens across boundaries and ignores seq_idx" in str(found)
    assert "do not train this model on packs" in str(found)
    found = verify_isolation(families.tiny_model("opt", "sdpa"), batch)
    assert "call it with to_hf_4d(batch, model.config), or use flash-attention" in str(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("initializer_range", [0.02, 0.2])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_sound_models_pass_and_leaking_ones_do_not_in_any_dtype(
    batch: PackedBatch, dtype: torch.dtype, initializer_range: float, attention: str
) -> None:
    model = families.tiny_model("llama", attention, initializer_range=initializer_range).to(dtype)
    found = verify_isolation(model, batch)
    assert found.isolated, str(found)
    assert found.tolerance == (1e-4 if dtype == torch.float32 else 0.05)
    cached = verify_isolation(model, batch, inputs=lambda b: to_hf(b) | {"use_cache": True})
    assert not cached.isolated


def test_a_float32_model_under_autocast_is_compared_like_one_in_bfloat16(
    batch: PackedBatch,
) -> None:
    model = tiny_llama()
    forward = model.forward

    def autocast(**arguments: Any) -> Any:
        """As accelerate runs it: logits are float32 again."""
        with torch.autocast("cpu", torch.bfloat16):
            return forward(**arguments).logits.float()

    model.forward = autocast
    found = verify_isolation(model, batch)
    assert (found.isolated, found.tolerance) == (True, 0.05)
    assert found.largest > 1e-4


# What a trainer's dataloader may give: the batch as the model gets it.
TRAINERS: dict[str, Inputs] = {
    "all boundaries": to_hf,
    "position_ids": lambda b: without(b, *KWARGS, "seq_idx"),
    "seq_idx and position_ids": lambda b: without(b, *KWARGS),
    "a 4-D mask": lambda b: to_hf_4d(b, None),
    "a 4-D mask in which filler sees nothing": lambda b: to_llama_factory(
        b, mask_dtype=torch.float32
    ),
    "no labels": lambda b: without(b, "labels"),
}


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_dict_of_a_trainer_is_checked_as_it_is(padded: PackedBatch, trainer: str) -> None:
    fields = TRAINERS[trainer](padded)
    found = verify_isolation(tiny_llama(), fields)
    assert (found.isolated, found.hazards) == (True, ())
    leak = verify_isolation(tiny_llama(), fields | {"attention_mask": ones(padded)})
    assert "the call has an attention_mask" in str(leak)
    if trainer == "position_ids":  # of several rows, row by row
        names = ("input_ids", "labels", "position_ids")
        two = {name: fields[name].repeat(2, 1) for name in names}
        assert verify_isolation(tiny_llama(), two | {"use_cache": False}).isolated
        assert not verify_isolation(tiny_llama(), two | {"use_cache": True}).isolated


def test_what_cannot_be_checked_is_a_sentence(batch: PackedBatch, tmp_path: Path) -> None:
    row = {"input_ids": batch.tokens[None], "attention_mask": ones(batch)}
    with pytest.raises(ValueError, match="has input_ids, attention_mask; expected position_ids"):
        verify_isolation(tiny_llama(), row)
    with pytest.raises(ValueError, match="no document of the batch has another before it"):
        verify_isolation(tiny_llama(), batch_of(tmp_path / "out", [9], pad_to=512))
    with pytest.raises(ValueError, match="the model returned 1 logits for 128 tokens"):
        verify_isolation(tiny_llama(), batch, inputs=lambda b: to_hf(b) | {"logits_to_keep": 1})
