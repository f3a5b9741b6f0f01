"""Attention within each segment of a packed sequence, by the fastest kernel that is installed.

The kernels differ in argument order, in the argument for "causal", and in their requirements; this
module has one call for all. The reference runs each segment through torch's
scaled_dot_product_attention: on any device, in any dtype, with gradients.
"""

import importlib
import inspect
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

from .batch import Tensor

Backend = Literal["flash_attn_4", "flash_attn_3", "flash_attn_2", "torch_varlen", "reference"]

# The module and function of each flash-attn generation.
_KERNELS = {
    "flash_attn_4": ("flash_attn.cute", "flash_attn_varlen_func"),
    "flash_attn_3": ("flash_attn_interface", "flash_attn_varlen_func"),
    "flash_attn_2": ("flash_attn", "flash_attn_varlen_func"),
}
# In order of preference. flash_attn_4 is a pre-release, so it runs only if backend= names it.
_AUTOMATIC: tuple[Backend, ...] = ("flash_attn_3", "flash_attn_2", "torch_varlen")


class _Call(NamedTuple):
    """Arguments of varlen_attention for the chosen backend."""

    q: Tensor
    k: Tensor
    v: Tensor
    cu_seqlens: Tensor
    max_seqlen: int
    causal: bool
    window: int | None
    scale: float | None

    @property
    def grouped(self) -> bool:
        return bool(self.q.shape[1] != self.k.shape[1])


def varlen_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    *,
    backend: Backend | None = None,
) -> Tensor:
    """Attention of every token to the tokens of its own segment.

    Returns [T, heads, head_dim], in q's dtype.

    q: [T, heads, head_dim]. k, v: [T, kv_heads, head_dim], where heads is a multiple of kv_heads
    (grouped queries). cu_seqlens: int32 [S + 1], from 0 to T; empty segments are allowed.
    max_seqlen: tokens of the longest segment, or more; a Python int, because reading it from a GPU
    would wait for the GPU. causal: a token sees no later token. window: a token sees itself and
    `window` tokens before it (and after it, if not causal); None: all. scale: default
    head_dim^-0.5. backend: None chooses the fastest that supports the call; a name forces one.

    ValueError with the reason if the backend does not support the call.
    """
    _check(q, k, v, cu_seqlens)
    if backend is None:
        backend = attention_backend(q)
    elif backend not in get_args(Backend):
        raise ValueError(f"backend is {backend!r}; expected one of {', '.join(get_args(Backend))}")
    elif (obstacle := _obstacle(backend, q)) is not None:
        raise ValueError(
            f"backend {backend} cannot run this: {obstacle}; choose another, or backend=None"
        )
    call = _Call(q, k, v, cu_seqlens, max_seqlen, causal, window, scale)
    if backend == "reference":
        return _reference(call)
    return _torch_varlen(call) if backend == "torch_varlen" else _flash(backend, call)


def attention_backend(q: Tensor) -> Backend:
    """Backend that `varlen_attention` chooses for such queries."""
    return next((name for name in _AUTOMATIC if _obstacle(name, q) is None), "reference")


def _check(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> None:
    if (
        q.dim() != 3
        or k.dim() != 3
        or k.shape != v.shape
        or len(q) != len(k)
        or q.shape[2] != k.shape[2]
    ):
        shapes = ", ".join(str(list(tensor.shape)) for tensor in (q, k, v))
        raise ValueError(
            f"q, k and v are {shapes}; expected q [T, heads, head_dim], k and v [T, kv_heads, "
            "head_dim]"
        )
    if q.shape[1] % k.shape[1]:
        raise ValueError(
            f"q has {q.shape[1]} heads; expected a multiple of the {k.shape[1]} kv_heads"
        )
    if str(cu_seqlens.dtype) != "torch.int32" or cu_seqlens.dim() != 1:
        raise ValueError(
            f"cu_seqlens is {cu_seqlens.dtype} {list(cu_seqlens.shape)}; expected torch.int32 [S + "
            "1]"
        )


@cache
def _kernel(name: str) -> Callable[..., Any] | None:
    module, function = _KERNELS[name]
    try:
        kernel: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError):
        return None
    return kernel


def _obstacle(backend: str, q: Tensor) -> str | None:
    """Reason that a backend cannot take such queries; None if it can."""
    if backend == "reference":
        return None
    if backend in _KERNELS and _kernel(backend) is None:
        module, function = _KERNELS[backend]
        return f"{module}.{function} is not installed"
    if not q.is_cuda:
        return f"it needs a GPU and the tensors are on {q.device}"
    if str(q.dtype) not in ("torch.float16", "torch.bfloat16"):
        return f"it needs float16 or bfloat16 and the tensors are {q.dtype}"
    if q.shape[2] % 8 or q.shape[2] > 256:
        return f"it needs a head_dim that is a multiple of 8, at most 256, and it is {q.shape[2]}"
    if backend == "torch_varlen":
        try:
            varlen = importlib.import_module("torch.nn.attention.varlen")
        except ImportError:
            return "this torch has no torch.nn.attention.varlen"
        if "window_size" not in inspect.signature(varlen.varlen_attn).parameters:
            return "the varlen_attn of this torch has no window_size"
    return None


def _flash(backend: str, call: _Call) -> Tensor:
    # By keyword: the order differs in version 4. An open end of a window is -1; None in version 4.
    kernel = _kernel(backend)
    assert kernel is not None
    window_size: tuple[int | None, int | None] = (call.window, 0 if call.causal else call.window)
    if call.window is None:
        window_size = (None, None) if backend == "flash_attn_4" else (-1, -1)
    out = kernel(
        q=call.q,
        k=call.k,
        v=call.v,
        cu_seqlens_q=call.cu_seqlens,
        cu_seqlens_k=call.cu_seqlens,
        max_seqlen_q=call.max_seqlen,
        max_seqlen_k=call.max_seqlen,
        softmax_scale=call.scale,
        causal=call.causal,
        window_size=window_size,
    )
    return out[0] if isinstance(out, tuple) else out


def _torch_varlen(call: _Call) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    # No causal flag: causal is a window that ends at 0. cu_seq_q and cu_seq_k are one tensor:
    # newer versions compare them by identity. torch 2.11 takes fewer kv_heads without a flag.
    takes_flag = "enable_gqa" in inspect.signature(varlen_attn).parameters
    grouped: Any = {"enable_gqa": call.grouped} if takes_flag else {}
    left = -1 if call.window is None else call.window
    return varlen_attn(
        query=call.q,
        key=call.k,
        value=call.v,
        cu_seq_q=call.cu_seqlens,
        cu_seq_k=call.cu_seqlens,
        max_q=call.max_seqlen,
        max_k=call.max_seqlen,
        scale=call.scale,
        window_size=(left, 0 if call.causal else left),
        **grouped,
    )


def _reference(call: _Call) -> Tensor:
    """Attention segment by segment: O(sum of squared lengths); waits for a GPU once."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    pieces = []
    for start, end in pairwise(call.cu_seqlens.tolist()):
        if start == end:
            continue
        query, key, value = (
            tensor[start:end].transpose(0, 1)[None] for tensor in (call.q, call.k, call.v)
        )
        mask = (
            None
            if call.window is None
            else _window_mask(end - start, call.causal, call.window, call.q.device)
        )
        out = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=call.causal and mask is None,
            scale=call.scale,
            enable_gqa=call.grouped,
        )
        pieces.append(out[0].transpose(0, 1))
    return torch.cat(pieces) if pieces else call.q * 0


def _window_mask(length: int, causal: bool, window: int, device: Any) -> Tensor:
    """bool [length, length]: True where a query (row) sees a key (column)."""
    import torch

    position = torch.arange(length, device=device)
    distance = position[:, None] - position[None, :]  # of the key, back from the query
    return (distance <= window) & (distance >= (0 if causal else -window))
