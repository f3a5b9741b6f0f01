"""Costs of segments: against counted FLOPs of models, and against sums over single tokens."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep import BuildConfig, build
from packprep.inspect.report_file import read_report
from packprep.loaders import Cost, PackedLoader
from packprep.schemas import read_manifest
from packprep.schemas.plans.model_config import FAMILIES
from packprep.support.errors import ConfigError
from tests.helpers.command import run
from tests.helpers.errors import refused
from tests.helpers.zoo import Zoo

NUMBERS = st.integers(0, 2**40)
COSTS = st.builds(
    Cost, st.integers(1, 2**40), NUMBERS, st.lists(st.tuples(st.integers(1, 9), NUMBERS)).map(tuple)
)


@given(COSTS, st.integers(0, 20), st.integers(0, 20))
def test_a_segment_costs_what_its_tokens_cost_with_all_that_they_see(
    cost: Cost, start: int, length: int
) -> None:
    assert Cost.parse(str(cost)) == cost
    positions = range(start, start + length)
    weights = [(None, cost.attention), *cost.windows]
    seen = [
        2 * p + 1 if w is None else min(2 * p + 1, 2 * w) for w, _ in weights for p in positions
    ]
    each = np.repeat([weight for _, weight in weights], length)
    plain = cost.linear * length + int((each * seen).sum())
    assert float(cost.flops(length, start)) == pytest.approx(plain)
    parts = [part.sum() for part in cost.pairs_at(np.arange(start, start + length))]
    assert float(cost.of_pairs(length, parts)) == pytest.approx(plain)
    half = float(cost.causal.flops(length, start))
    assert half == pytest.approx((plain + cost.linear * length) / 2)


SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "sliding_window": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {
    "num_experts": 6,
    "num_local_experts": 6,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "n_shared_experts": 1,
    "shared_expert_intermediate_size": 56,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
LATENT = {
    "num_key_value_heads": 4,
    "head_dim": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
}
COMMON = ("llama", "gpt2", "gemma3_text", "mixtral", "deepseek_v3")


def saved_config(kind: str, folder: Path) -> Any:
    """A small model's config of transformers, in the folder too. Keys are those of its class."""
    mapping = pytest.importorskip("transformers").CONFIG_MAPPING
    if kind not in mapping:
        pytest.skip(f"transformers has no {kind}")
    family, names = FAMILIES[kind], mapping[kind]
    sizes = SIZES | (EXPERTS if family.experts else {}) | (LATENT if family.latent else {})
    known = {*names().to_dict(), *names.attribute_map}
    config = names(**{key: value for key, value in sizes.items() if key in known})
    config.save_pretrained(folder)
    return config


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind in COMMON else [pytest.mark.long]) for kind in FAMILIES],
)
def test_the_flops_of_a_config_are_those_that_torch_counts(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoModelForCausalLM

    config = saved_config(kind, tmp_path)
    how = {"attn_implementation": "eager"}
    how |= {"experts_implementation": "eager"} if FAMILIES[kind].experts else {}
    model = AutoModelForCausalLM.from_config(config, **how)
    cost = Cost.of_config(tmp_path)
    # Without windows: eager attention multiplies whole matrices, and masks them.
    dense = Cost(cost.linear, cost.attention + sum(weight for _, weight in cost.windows))
    for length in (8, 40):
        ids = torch.randint(3, 97, (1, length))
        with FlopCounterMode(display=False) as counter:
            loss = model(ids, labels=ids, use_cache=False).loss
        forward = counter.get_total_flops()
        assert float(dense.flops(length)) == forward
        with FlopCounterMode(display=False) as counter:
            loss.backward()
        assert counter.get_total_flops() == 2 * forward
    kinds = getattr(config, "layer_types", None) or []
    if "sliding_attention" in kinds:
        windowed = kinds.count("sliding_attention") / len(kinds)
        assert cost.windows == ((16, windowed * dense.attention),)
        named = json.loads((tmp_path / "config.json").read_text())
        del named["layer_types"]  # as in the files of earlier versions
        (tmp_path / "config.json").write_text(json.dumps(named))
        assert Cost.of_config(tmp_path) == cost


LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 100,
}
LLAMA_COST = Cost(2 * (2 * (4 * 64 * 64 + 3 * 64 * 96) + 64 * 100), 4 * 2 * 64)


def model(folder: Path, **changes: Any) -> Path:
    """The folder of a config.json: a small Llama with these keys."""
    (folder / "config.json").write_text(json.dumps(LLAMA | changes))
    return folder


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mamba2"}, "has model_type 'mamba2', and costs are known for one of"),
        ({"is_encoder_decoder": True}, "has is_encoder_decoder True"),
        ({"layer_types": ["linear_attention"] * 2}, "has layer_types 'linear_attention'"),
        ({"layer_types": ["full_attention"]}, "has 1 layer_types, expected num_hidden_layers, 2"),
        ({"num_experts": 8}, "has num_experts 8, and costs are known for a model of type llama"),
        ({"mamba_d_state": 16}, "has mamba_d_state 16"),
        ({"vocab_size": None}, "has no vocab_size, expected a whole number"),
        ({"num_attention_heads": "4"}, "has num_attention_heads '4', expected a whole number"),
    ],
)
def test_a_config_that_is_not_known_is_refused_with_the_key_that_says_so(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    assert Cost.of_config(model(tmp_path)) == LLAMA_COST
    with refused(ValueError, f"{tmp_path}/config.json {words}"):
        Cost.of_config(model(tmp_path, **changes))


def test_a_file_that_is_no_config_is_refused_and_the_text_part_of_others_is_read(
    tmp_path: Path,
) -> None:
    with refused(ValueError, "config.json is missing; expected the config.json of a model"):
        Cost.of_config(tmp_path)
    for content, words in (("{", "is not JSON"), ("[]", "is no JSON object")):
        (tmp_path / "config.json").write_text(content)
        with refused(ValueError, words):
            Cost.of_config(tmp_path / "config.json")
    pictures = {"model_type": "of_pictures", "text_config": LLAMA, "vision_config": {}}
    assert Cost.of_config(model(tmp_path, **pictures)) == LLAMA_COST


@pytest.mark.parametrize("name", ["text", "trees"])
def test_a_batch_has_the_flops_of_its_tokens_without_padding(name: str, zoo: Zoo) -> None:
    cost = Cost(100, 3, ((5, 7),))
    loader = PackedLoader(zoo[name], 2, trees=name == "trees", pad_to=200, max_segments=64)
    for batch in loader:
        real = batch.position_ids[: batch.num_real_tokens]
        pairs = [part.sum() for part in cost.pairs_at(real)]
        assert batch.flops(cost) == cost.of_pairs(len(real), pairs)
        assert batch.sum_of_squares == pairs[0]
        assert batch.unshared().sum_of_squares >= pairs[0]


def test_a_build_with_the_costs_of_a_model_is_that_with_its_numbers(
    zoo: Zoo, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"sources": zoo.config("text").sources, "tokenizer": zoo.tokenizer}
    options |= {"engine": "hf", "max_length": 64}
    folder = model(tmp_path, model_type="mistral", sliding_window=8)
    cost = Cost.of_config(folder)
    assert str(cost) == f"{int(LLAMA_COST.linear)},0,512@8"
    options["output"] = str(tmp_path / "a")
    named = BuildConfig(**options, order="balanced:4", cost_of=str(folder))
    options["output"] = str(tmp_path / "b")
    typed = BuildConfig(**options, order=f"balanced:4:{cost}")
    assert named.identity() == typed.identity()
    build(named)
    build(typed)
    records = [read_manifest(tmp_path / name).data for name in "ab"]
    assert records[0] == records[1]
    straggler = read_report(tmp_path / "a")["straggler"]
    assert straggler < 1.05
    with refused(ConfigError, "cost_of", "and order balanced:4:1,2 both say what a segment"):
        BuildConfig(**options, order="balanced:4:1,2", cost_of=str(folder))
    with refused(ConfigError, f"cost_of: {tmp_path}/a/config.json is missing"):
        BuildConfig(**options, cost_of=str(tmp_path / "a"))
    shown = json.loads(run("stats", tmp_path / "a", "--cost-of", folder, "--json").out)
    assert shown["training"]["flops"] > 3 * cost.linear * shown["training"]["tokens"]
    refusal = run("stats", zoo["trees"], "--cost-of", folder)
    assert (refusal.code, "has trees, and --cost-of" in refusal.err) == (2, True)
