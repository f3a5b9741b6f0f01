"""Tiny random models for tests of packed training.

`skip_without` skips a test module where torch is not installed.
"""

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from packprep.loaders import PackedBatch, PackedLoader, PackedShards

from .tiny_shards import row_of, write_output

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


def pack_of(first: int, texts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """A pack of whole documents, numbered from `first`."""
    row = dict(row_of(first, *map(len, texts)))
    return row | {"tokens": [token for text in texts for token in text]}


def batch_of(directory: Path, lengths: Sequence[int], **options: Any) -> PackedBatch:
    """A batch of one pack of random documents of these lengths, read from disk."""
    write_output(
        directory,
        {"train": [[pack_of(0, documents(lengths))]]},
        max_length=512,
        vocab_size=VOCABULARY,
    )
    (batch,) = PackedLoader(PackedShards(directory), 1, **options)
    return batch


class FlashStub:
    """Replaces flash-attn 2 in transformers by reference attention, and records the boundaries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from transformers import modeling_flash_attention_utils as utils

        self.boundaries: list[list[int]] = []
        self.max_lengths: list[Any] = []
        functions = (self.full, self.varlen, None, utils._pad_input, utils._unpad_input)
        processing = utils._lazy_define_process_function(self.varlen)
        monkeypatch.setattr(
            utils, "lazy_import_flash_attention", lambda *_, **__: (functions, (processing, dict))
        )

    def model(self) -> Any:
        """A tiny Llama that calls this stub in every layer."""
        model = tiny_llama()
        model.config._attn_implementation_internal = "flash_attention_2"
        return model

    def varlen(
        self,
        q: Any,
        k: Any,
        v: Any,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any,
        max_seqlen_q: Any,
        max_seqlen_k: Any,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        deterministic: bool = False,
    ) -> Any:
        import torch

        from packprep.loaders import varlen_attention

        self.boundaries.append(cu_seqlens_q.tolist())
        self.max_lengths.append(max_seqlen_q)
        out = torch.full_like(q, float("nan"))  # rows outside the boundaries are never written
        first, last = int(cu_seqlens_q[0]), int(cu_seqlens_q[-1])
        inside = (cu_seqlens_q - first).to(torch.int32)
        out[first:last] = varlen_attention(
            q[first:last],
            k[first:last],
            v[first:last],
            inside,
            int(max_seqlen_q),
            causal,
            scale=softmax_scale,
        )
        return out

    def full(
        self,
        q: Any,
        k: Any,
        v: Any,
        softmax_scale: float | None = None,
        causal: bool = False,
        **_: Any,
    ) -> Any:
        import torch

        from packprep.loaders import varlen_attention

        cu = torch.tensor([0, q.shape[1]], dtype=torch.int32)
        rows = [
            varlen_attention(*row, cu, q.shape[1], causal, scale=softmax_scale)
            for row in zip(q, k, v, strict=True)
        ]
        return torch.stack(rows)


def plain_llama() -> Any:
    """A Llama-like model in plain torch, float64 throughout: f(tokens, positions, mask) -> logits.

    tokens, positions: int64 [T]. mask: bool [T, T], True where a token (row) sees another. RMS
    norm, rotary positions, SwiGLU; 2 layers of 4 heads. transformers computes norms and positions
    in float32 whatever the model's dtype is, which limits comparisons to 1e-7.
    """
    import torch
    from torch import nn
    from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

    width, heads = 32, 4
    torch.manual_seed(0)

    def rotated(values: Any, positions: Any) -> Any:
        half = values.shape[-1] // 2
        rates = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = positions[:, None] * rates
        cos, sin = angles.cos(), angles.sin()
        one, two = values[..., :half], values[..., half:]
        return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.out = nn.Linear(width, width, bias=False)
            self.gate = nn.Linear(width, 96, bias=False)
            self.down = nn.Linear(48, width, bias=False)

        def forward(self, hidden: Any, positions: Any, mask: Any) -> Any:
            parts = self.qkv(rms_norm(hidden, (width,))).chunk(3, -1)
            q, k, v = (part.reshape(len(hidden), heads, -1).transpose(0, 1) for part in parts)
            q, k = rotated(q, positions), rotated(k, positions)
            seen = scaled_dot_product_attention(q, k, v, attn_mask=mask)
            hidden = hidden + self.out(seen.transpose(0, 1).reshape(len(hidden), width))
            one, two = self.gate(rms_norm(hidden, (width,))).chunk(2, -1)
            return hidden + self.down(silu(one) * two)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, width)
            self.layers = nn.ModuleList([Layer(), Layer()])
            self.head = nn.Linear(width, VOCABULARY, bias=False)

        def forward(self, tokens: Any, positions: Any, mask: Any) -> Any:
            hidden = self.embedding(tokens)
            for layer in self.layers:
                hidden = layer(hidden, positions, mask)
            return self.head(rms_norm(hidden, (width,)))

    return Model().double()
