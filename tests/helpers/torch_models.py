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
