"""FLOPs of a transformer from its config.json: of each token, and of the layers by what they see.

Counted are products of matrices, 2 * rows * inner * columns each, as torch's FlopCounterMode does:
projections, MLPs, the experts that a token takes and their router, both products of attention, and
the output layer at every token. Of a model that also reads pictures, its text part is counted.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class _Family(NamedTuple):
    """Facts of the models of a model_type that its config.json does not say.

    matrices: of an MLP or expert: 3 if one of them is a gate.
    every: without layer_types, each layer of this multiple sees all, and the others a window; 0: no
        layer sees all.
    experts, latent: True if it has experts, and if keys and values are made of a latent vector.
    defaults: values of keys that such a config.json may lack.
    """

    matrices: int = 3
    every: int = 1
    experts: bool = False
    latent: bool = False
    defaults: Mapping[str, int] = {}


_GEMMA3 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262_208,
    "sliding_window": 4096,
}
_LATENT_EXPERTS = _Family(experts=True, latent=True)
_GATED = """
llama qwen2 qwen3 gemma olmo olmo2 granite stablelm cohere glm glm4 seed_oss smollm3 ernie4_5
hunyuan_v1_dense
"""
_PLAIN = "gpt2 gpt_neox phi nemotron arcee apertus"
_MIXED = "qwen2_moe qwen3_moe olmoe granitemoe glm4_moe minimax_m2"
FAMILIES: Mapping[str, _Family] = {
    **dict.fromkeys(_GATED.split(), _Family()),
    **dict.fromkeys(_PLAIN.split(), _Family(matrices=2)),
    "mistral": _Family(every=0, defaults={"sliding_window": 4096}),
    "phi3": _Family(every=0),
    "starcoder2": _Family(matrices=2, every=0),
    "gemma2": _Family(every=2, defaults={"sliding_window": 4096}),
    "gemma3_text": _Family(every=6, defaults=_GEMMA3),
    "cohere2": _Family(every=4, defaults={"sliding_window": 4096}),
    "olmo3": _Family(every=4, defaults={"sliding_window": 4096}),
    "mixtral": _Family(every=0, experts=True),
    "gpt_oss": _Family(every=2, experts=True),
    **dict.fromkeys(_MIXED.split(), _Family(experts=True)),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite"), _LATENT_EXPERTS),
}
"""model_type -> its family; the tests compare each with a model of transformers."""

_SPELLINGS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "num_experts": "num_local_experts",
    "n_routed_experts": "num_local_experts",
    "experts_per_token": "num_experts_per_tok",
    "_sliding_window_pattern": "sliding_window_pattern",
}
_EXPERTS = [
    "num_local_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "moe_layer_freq",
    "n_shared_experts",
    "shared_expert_intermediate_size",
    "first_k_dense_replace",
]
_LATENT = ["q_lora_rank", "kv_lora_rank"]
# Keys that change what is computed; a family that does not know one of them is not that family.
_STRUCTURE = re.compile(
    "expert|moe_|_moe|lora_rank|first_k_dense|mamba|ssm|linear_attn|linear_num|conv|encoder|index_"
)


def flops_of_config(path: str | Path) -> tuple[float, Counter[int | None]]:
    """FLOPs of a token in the matrices, and FLOPs of n**2 by the window of the layers; None: all.

    path: a config.json of transformers, or its folder. ValueError for a config whose layers are not
    known, with the key that says so.
    """
    path = Path(path)
    path = path / "config.json" if path.is_dir() else path
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; expected the config.json of a model") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is not JSON; expected the config.json of a model") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is no JSON object; expected the config.json of a model")
    text = found.get("text_config")
    return _Model(path, text if isinstance(text, dict) else found).flops()


class _Model:
    """The numbers of a config.json."""

    def __init__(self, path: Path, found: Mapping[str, Any]) -> None:
        self._path = path
        if found.get("is_encoder_decoder"):
            raise self._unknown("is_encoder_decoder", True, "decoders")
        kind = str(found.get("model_type"))
        if kind not in FAMILIES:
            raise self._unknown("model_type", kind, f"one of {', '.join(sorted(FAMILIES))}")
        self._family = family = FAMILIES[kind]
        known = [*(_EXPERTS if family.experts else ()), *(_LATENT if family.latent else ())]
        self._values = dict[str, Any](family.defaults)
        for key, value in found.items():
            name = _SPELLINGS.get(key, key)
            self._values[name] = value
            if _STRUCTURE.search(name) and name not in known and value:
                raise self._unknown(key, value, f"a model of type {kind} without it")

    def _unknown(self, key: str, value: object, expected: str) -> ValueError:
        return ValueError(
            f"{self._path} has {key} {value!r}, and costs are known for {expected}; give the costs "
            "as numbers, A,B"
        )

    def _number(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 0; `default` for none."""
        value = self._values.get(key)
        value = default if value is None else value
        if type(value) is not int or value < 0:
            has = f"no {key}" if value is None else f"{key} {value!r}"
            raise ValueError(f"{self._path} has {has}, expected a whole number")
        return value

    def flops(self) -> tuple[float, Counter[int | None]]:
        width, layers = self._number("hidden_size"), self._number("num_hidden_layers")
        projections, pairs = self._attention(width)
        weights = layers * projections + width * self._number("vocab_size")
        weights += sum(self._mlp(width, layer, layers) for layer in range(layers))
        windows = Counter(self._window(layer, layers) for layer in range(layers))
        return 2.0 * weights, Counter({key: 2 * pairs * count for key, count in windows.items()})

    def _attention(self, width: int) -> tuple[int, int]:
        """Weights of the projections of a layer, and products of two tokens that see each other."""
        heads = self._number("num_attention_heads")
        if not self._family.latent:
            size = self._number("head_dim", width // max(heads, 1))
            sides = heads + self._number("num_key_value_heads", heads)
            return 2 * width * size * sides, 2 * heads * size
        latent, rotary = self._number("kv_lora_rank"), self._number("qk_rope_head_dim")
        key, value = self._number("qk_nope_head_dim"), self._number("v_head_dim")
        queries = heads * (key + rotary)
        rank = self._number("q_lora_rank", 0)
        weights = rank * (width + queries) if rank else width * queries
        weights += width * (latent + rotary) + latent * heads * (key + value)
        return weights + heads * value * width, heads * (key + rotary + value)

    def _mlp(self, width: int, layer: int, layers: int) -> int:
        """Weights of the MLP of a layer, or of the experts that a token takes."""
        matrices = self._family.matrices
        if not self._family.experts or self._is_dense(layer, layers):
            return matrices * width * self._number("intermediate_size", 4 * width)
        size = self._values.get("moe_intermediate_size") and self._number("moe_intermediate_size")
        size = size or self._number("intermediate_size")
        active = self._number("num_experts_per_tok") + self._number("n_shared_experts", 0)
        shared = self._number("shared_expert_intermediate_size", 0)
        gates = self._number("num_local_experts") + (shared > 0)
        return width * (matrices * (active * size + shared) + gates)

    def _is_dense(self, layer: int, layers: int) -> bool:
        kinds = self._list("mlp_layer_types", layers, ("dense", "sparse"))
        if kinds:
            return kinds[layer] == "dense"
        return (
            layer < self._number("first_k_dense_replace", 0)
            or layer % self._number("moe_layer_freq", 1) != 0
            or layer in (self._values.get("mlp_only_layers") or ())
            or (layer + 1) % self._number("decoder_sparse_step", 1) != 0
        )

    def _window(self, layer: int, layers: int) -> int | None:
        """Tokens that a token of a layer sees; None for all before it."""
        kinds = self._list("layer_types", layers, ("full_attention", "sliding_attention"))
        if kinds:
            sees_all = kinds[layer] == "full_attention"
        elif self._values.get("use_sliding_window"):
            sees_all = layer < self._number("max_window_layers")
        else:
            every = self._number("sliding_window_pattern", self._family.every)
            sees_all = every > 0 and (layer + 1) % every == 0
        if sees_all or (not kinds and self._values.get("sliding_window") is None):
            return None
        return self._number("sliding_window")

    def _list(self, key: str, layers: int, known: tuple[str, ...]) -> list[str]:
        """A word for each layer; empty without the key."""
        words = self._values.get(key) or []
        for word in words:
            if word not in known:
                raise self._unknown(key, word, " and ".join(known))
        if words and len(words) != layers:
            raise ValueError(
                f"{self._path} has {len(words)} {key}, expected num_hidden_layers, {layers}"
            )
        return list(words)
