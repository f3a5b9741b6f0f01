"""Models whose code is in their own folder (trust_remote_code) are measured like all others."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from packprep.loaders import PackedBatch
from tests.helpers.torch_models import batch_of, skip_without

skip_without("torch", "transformers")

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, dynamic_module_utils  # noqa: E402

from packprep.loaders import to_hf_4d, verify_isolation  # noqa: E402

# A model of one layer of attention. READ is replaced by the lines that change what is `seen`.
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
        places = torch.arange(input_ids.shape[1])
        position_ids = places[None] if position_ids is None else position_ids
        hidden = self.embedding(input_ids) + self.positions(position_ids)
        seen = (places[:, None] >= places)[None, None]
        READ
        if seen.dtype == torch.bool:
            seen = torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))
        scores = hidden @ hidden.mT + seen[:, 0]
        return CausalLMOutput(logits=self.head(scores.softmax(-1) @ hidden))
"""
BY_POSITIONS = """
        segments = (position_ids == 0).cumsum(1)
        seen = seen & (segments[:, None, :, None] == segments[:, None, None, :])
"""
BY_MASK = "seen = seen if attention_mask is None else attention_mask"
SHAPES: dict[str, tuple[int, ...]] = {"embedding.weight": (64, 16), "positions.weight": (128, 16)}
SHAPES |= {"head.weight": (64, 16), "head.bias": (64,)}


@pytest.fixture
def batch(tmp_path: Path) -> PackedBatch:
    return batch_of(tmp_path / "out", [37, 1, 50, 40]).torch()


def remote(folder: Path, read: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The model of a folder with config.json, weights and code, as from the hub.

    transformers copies the code to a folder of its cache and imports it there.
    """
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(folder / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "transformers_modules", raising=False)
    (folder / "modeling_own.py").write_text(CODE.replace("READ", read.strip()))
    names = {"AutoConfig": "OwnConfig", "AutoModelForCausalLM": "OwnModel"}
    auto_map = {auto: f"modeling_own.{name}" for auto, name in names.items()}
    (folder / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": auto_map}))
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}
    torch.save(weights, folder / "pytorch_model.bin")
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules.")
    assert torch.equal(model.head.bias, weights["head.bias"])
    return model


@pytest.mark.parametrize(
    ("read", "with_hf", "with_4d"),
    [
        (BY_POSITIONS, "isolated", None),
        (BY_MASK, "call it with to_hf_4d(batch, model.config), or use flash", "isolated"),
        ("", "do not train this model on packs", "do not train this model on packs"),
    ],
    ids=["position_ids", "the mask only", "no boundary"],
)
def test_code_of_a_model_is_isolated_by_the_call_whose_boundaries_it_reads(
    batch: PackedBatch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read: str,
    with_hf: str,
    with_4d: str | None,
) -> None:
    model = remote(tmp_path, read, monkeypatch)
    by_hf = verify_isolation(model, batch)
    by_4d = verify_isolation(model, batch, inputs=lambda b: to_hf_4d(b, model.config))
    for found, expected in ((by_hf, with_hf), (by_4d, with_4d)):
        if expected is None:
            continue
        assert expected in str(found)
        assert found.isolated == (expected == "isolated")
        assert (found.leaking if found.isolated else found.largest) > 0.1
