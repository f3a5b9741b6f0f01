"""Attention within segments: the reference against a mask in float64, and each kernel's call."""

import inspect
import sys
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from packprep.loaders import attention, attention_backend, varlen_attention

CU = torch.tensor([0, 3, 10], dtype=torch.int32)


@pytest.mark.parametrize("ends", [[0, 12], [0, 1, 2, 12], [0, 0, 5, 5, 12, 12]])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(("window", "scale"), [(None, None), (0, None), (2, 0.3), (50, None)])
@pytest.mark.parametrize("causal", [True, False])
def test_the_reference_is_attention_within_each_segment(
    ends: list[int], kv_heads: int, window: int | None, scale: float | None, causal: bool
) -> None:
    generator, cu = torch.Generator().manual_seed(0), torch.tensor(ends, dtype=torch.int32)
    q, k, v = (torch.randn(12, n, 8, generator=generator) for n in (4, kv_heads, kv_heads))
    out = varlen_attention(q, k, v, cu, 12, causal=causal, window=window, scale=scale)
    place = torch.arange(12)
    ahead, segment = place - place[:, None], torch.searchsorted(cu, place, right=True)
    seen = (segment == segment[:, None]) & (ahead <= (0 if causal else 12))
    seen &= ahead.abs() <= (12 if window is None else window)
    k, v = (x.double().repeat_interleave(4 // kv_heads, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * (8**-0.5 if scale is None else scale)
    expected = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    assert (out - torch.einsum("hqk,khd->qhd", expected, v)).abs().max() < 2e-6


class OnGpu(SimpleNamespace):
    """Queries on a GPU, with the properties that a call reads."""

    def dim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return int(self.shape[0])


def on_gpu(heads: int, dim: int = 64, dtype: Any = torch.bfloat16) -> Any:
    return OnGpu(shape=(10, heads, dim), is_cuda=True, dtype=dtype, device="cuda:0")


# Arguments that a call may name: flash-attn 2.8.3, 3 (its hopper/), 4.0.0b9; torch 2.11, 2.13.
FLASH = "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k softmax_scale causal window_size"
VARLEN = "query key value cu_seq_q cu_seq_k max_q max_k return_aux scale window_size"
TAKEN = {
    "flash_attn_2": ("flash_attn", FLASH),
    "flash_attn_3": ("flash_attn_interface", FLASH),
    "flash_attn_4": ("flash_attn.cute", FLASH),
    "torch 2.9": ("torch.nn.attention.varlen", "query key value cu_seq_q cu_seq_k is_causal"),
    "torch 2.11": ("torch.nn.attention.varlen", VARLEN),
    "torch 2.13": ("torch.nn.attention.varlen", f"{VARLEN} enable_gqa"),
}


def call_of(calls: list[dict[str, Any]], taken: str, **given: Any) -> Any:
    assert given.keys() <= {*taken.split()}
    calls.append(given)
    return next(iter(given.values()))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a stand-in in the place of a kernel; returns the list of its calls."""

    def put(name: str) -> list[dict[str, Any]]:
        attention._kernel.cache_clear()
        calls = list[dict[str, Any]]()
        module, taken = TAKEN[name]
        kernel: Any = partial(call_of, calls, taken)
        of_name = [
            inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY) for each in taken.split()
        ]
        kernel.__signature__ = inspect.Signature(of_name)
        stub: Any = ModuleType(module)
        stub.flash_attn_varlen_func = stub.varlen_attn = kernel
        monkeypatch.setitem(sys.modules, module, stub)
        return calls

    put("torch 2.9")
    yield put
    attention._kernel.cache_clear()


WINDOWS = [(True, None, (-1, 0)), (True, 5, (5, 0)), (False, None, (-1, -1)), (False, 5, (5, 5))]


@pytest.mark.parametrize("name", [name for name in TAKEN if name != "torch 2.9"])
@pytest.mark.parametrize(("causal", "window", "reach"), WINDOWS)
def test_a_kernel_is_called_by_keyword_with_one_tensor_of_boundaries(
    installed: Any, name: str, causal: bool, window: int | None, reach: Any
) -> None:
    """A window reaches back, and ahead unless causal; torch has no other word for causal."""
    q, k, calls = on_gpu(4), on_gpu(2), installed(name)
    backend: Any = name if name.startswith("flash") else "torch_varlen"
    options: dict[str, Any] = {"causal": causal, "window": window, "backend": backend}
    assert varlen_attention(q, k, k, CU, 7, scale=0.5, **options) is q
    bounds: dict[str, Any] = {"cu_seq_q": CU, "cu_seq_k": CU, "max_q": 7, "max_k": 7, "scale": 0.5}
    expected = {"query": q, "key": k, "value": k, **bounds, "window_size": reach}
    if name == "torch 2.13":
        expected["enable_gqa"] = True
    if backend == name:
        bounds = {"cu_seqlens_q": CU, "cu_seqlens_k": CU, "max_seqlen_q": 7, "max_seqlen_k": 7}
        no_window = (None, None) if name == "flash_attn_4" else (-1, -1)
        expected = {"q": q, "k": k, "v": k, **bounds, "softmax_scale": 0.5, "causal": causal}
        expected["window_size"] = reach if window else no_window
    assert calls == [expected]
    assert all(value is CU for argument, value in calls[0].items() if argument.startswith("cu_"))


def test_the_fastest_that_can_run_is_taken(installed: Any) -> None:
    assert attention_backend(on_gpu(4)) == "reference"
    for name in ("torch 2.11", "flash_attn_2", "flash_attn_3"):
        installed(name)
        assert attention_backend(on_gpu(4)) == name.replace(" 2.11", "_varlen")
    for q in (torch.zeros(1, 1, 8), on_gpu(4, 60), on_gpu(4, dtype=torch.float32)):
        assert attention_backend(q) == "reference"


Q, K, V, THREE = (torch.zeros(10, *shape) for shape in ((4, 8), (2, 16), (2, 8), (3, 8)))


@pytest.mark.parametrize(
    ("q", "k", "v", "backend", "sentence"),
    [
        (Q, V, V, "flash_attn_4", r"flash_attn\.cute\.flash_attn_varlen_func is not installed"),
        (Q, V, V, "torch_varlen", "it needs a GPU and the tensors are on cpu"),
        (Q, V, V, "xformers", "'xformers'; expected one of flash_attn_4, flash_attn_3"),
        (on_gpu(4), on_gpu(2), on_gpu(2), "torch_varlen", "varlen_attn of this torch has no win"),
        (Q, K, V, None, r"\[10, 4, 8\], \[10, 2, 16\], \[10, 2, 8\]; expected q \[T, heads"),
        (Q, THREE, THREE, None, "q has 4 heads; expected a multiple of the 3 kv_heads"),
    ],
)
def test_what_no_kernel_can_run_is_a_sentence(
    installed: Any, q: Any, k: Any, v: Any, backend: Any, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        varlen_attention(q, k, v, CU, 7, backend=backend)
    with pytest.raises(ValueError, match=r"cu_seqlens is torch\.int64 \[2\]; expected torch\.int"):
        varlen_attention(Q, V, V, torch.tensor([0, 10]), 7)
