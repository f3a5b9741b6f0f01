"""Models whose code is in their own folder (trust_remote_code) are measured like all others."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.torch_models import batch_of, skip_without

skip_without("torch", "transformers")

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, dynamic_module_utils  # noqa: E402

from packprep.loaders import to_hf_4d, verify_isolation  # noqa: E402

# A model of one layer of attention. MASK is replaced by the lines that make `seen`.
CODE = """
import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput


class OwnConfig(PreTrainedConfig):
    model_type = "own"


class OwnModel(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.embedding = torch.nn.Embedding(64, 16)
        self.positions = torch.nn.Embedding(128, 16)
        self.head = torch.nn.Linear(16, 64)
        self.post_init()

    def forward(self, input_ids, position_ids=None, attention_mask=None, **_):
        width = input_ids.shape[1]
        places = torch.arange(width)
        if position_ids is None:
            position_ids = places[None]
        hidden = self.embedding(input_ids) + self.positions(position_ids)
        seen = (places[:, None] >= places)[None, None]
MASK
        if seen.dtype == torch.bool:
            seen = torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))
        scores = hidden @ hidden.mT + seen[:, 0]
        return CausalLMOutput(logits=self.head(scores.softmax(-1) @ hidden))
"""
BY_POSITIONS = """
        segments = (position_ids == 0).cumsum(1)
        seen = seen & (segments[:, None, :, None] == segments[:, None, None, :])
"""
BY_MASK = """
        if attention_mask is not None:
            seen = attention_mask
"""
SHAPES: dict[str, tuple[int, ...]] = {"embedding.weight": (64, 16), "positions.weight": (128, 16)}
SHAPES |= {"head.weight": (64, 16), "head.bias": (64,)}
CALL_4D = "call it with to_hf_4d(batch, model.config), or use flash-attention"


@pytest.fixture(autouse=True)
def modules_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers copies the code of a model to a folder of its cache and imports it there."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "transformers_modules", raising=False)


def remote(folder: Path, mask: str) -> Any:
    """The model of a folder with config.json, weights and code, as from the hub."""
    folder.mkdir()
    (folder / "modeling_own.py").write_text(CODE.replace("MASK", mask))
    auto_map = {"AutoConfig": "modeling_own.OwnConfig"}
    auto_map["AutoModelForCausalLM"] = "modeling_own.OwnModel"
    (folder / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": auto_map}))
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    torch.save(weights, folder / "pytorch_model.bin")
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules.")
    assert torch.equal(model.head.bias, weights["head.bias"])
    return model


@pytest.mark.parametrize(
    ("mask", "call", "call_4d"),
    [
        (BY_POSITIONS, None, ""),
        (BY_MASK, CALL_4D, None),
        ("", "do not train this model on packs", "do not train this model on packs"),
    ],
    ids=["reads position_ids", "reads the mask only", "reads no boundary"],
)
def test_own_code_is_isolated_or_told_the_call_that_is(
    tmp_path: Path, mask: str, call: str | None, call_4d: str | None
) -> None:
    """None: isolated."""
    model, batch = remote(tmp_path / "model", mask), batch_of(tmp_path / "out", [37, 1, 50, 40])
    with_mask = verify_isolation(model, batch.torch(), inputs=lambda b: to_hf_4d(b, model.config))
    for found, advice in ((verify_isolation(model, batch.torch()), call), (with_mask, call_4d)):
        if advice is None:
            assert found.isolated, str(found)
            assert found.leaking > 0.1  # without boundaries the same model leaks
        elif advice:
            assert found.largest > 0.1
            assert advice in str(found)
