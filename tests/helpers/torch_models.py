"""Tiny random models for tests of packed training.

`skip_without` skips a test module where torch is not installed.
"""

import importlib.util
import os
from collections.abc import Sequence
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

VOCABULARY = 64


def skip_without(*modules: str) -> None:
    """Skip the calling test module if one of these modules is not installed."""
    for name in modules:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)


def tiny_llama(attention: str = "sdpa", **config: Any) -> Any:
    """A Llama with random weights: 2 layers, 4 heads over 2 key heads, 64 token ids.

    float32, evaluation mode. config: replaces these sizes.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.5,  # so a leak changes logits by about one
        "attn_implementation": attention,
    }
    return LlamaForCausalLM(LlamaConfig(**sizes | config)).eval()


def documents(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Documents of random token ids with these lengths."""
    import numpy as np

    generator = np.random.default_rng(seed)
    return [generator.integers(1, VOCABULARY, length).tolist() for length in lengths]
