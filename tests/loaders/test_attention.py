"""Attention within segments.

The reference against float64 by hand, every kernel's call through a stub, refusals.
"""

import inspect
import sys
import types
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.helpers.torch_models import skip_without

skip_without("torch")

import torch  # noqa: E402

from packprep.loaders import attention as module  # noqa: E402
from packprep.loaders import attention_backend, varlen_attention  # noqa: E402


def inputs(
    total: int, heads: int = 4, kv_heads: int = 2, dim: int = 8, dtype: Any = torch.float32
) -> Any:
    generator = torch.Generator().manual_seed(0)
    counts = (heads, kv_heads, kv_heads)
    return [torch.randn(total, n, dim, generator=generator, dtype=dtype) for n in counts]


def boundaries(*ends: int) -> torch.Tensor:
    return torch.tensor(ends, dtype=torch.int32)


def by_hand(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu: list[int],
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
) -> torch.Tensor:
    """One token and head at a time, in float64."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // k.shape[1]
    scale = q.shape[2] ** -0.5 if scale is None else scale
    reach = len(q) if window is None else window
    out = torch.zeros_like(q)
    for start, end in pairwise(cu):
        for token in range(start, end):
            low, high = max(start, token - reach), min(end, token + (0 if causal else reach) + 1)
            for head in range(q.shape[1]):
                keys, values = k[low:high, head // group], v[low:high, head // group]
                out[token, head] = (keys @ q[token, head] * scale).softmax(0) @ values
    return out


@pytest.mark.parametrize("cu", [[0, 12], [0, 5, 12], [0, 1, 2, 12], [0, 0, 5, 5, 12, 12]])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize(("window", "scale"), [(None, None), (0, None), (2, 0.3), (50, None)])
@pytest.mark.parametrize("causal", [True, False])
def test_the_reference_is_attention_within_each_segment(
    cu: list[int], heads: int, kv_heads: int, window: int | None, scale: float | None, causal: bool
) -> None:
    q, k, v = inputs(12, heads, kv_heads)
    out = varlen_attention(q, k, v, boundaries(*cu), 12, causal=causal, window=window, scale=scale)
    assert out.shape == q.shape
    assert (out - by_hand(q, k, v, cu, causal, window, scale)).abs().max() < 2e-6


class Recorder:
    """A stand-in for a kernel.

    Keeps its keyword arguments, returns q, or a pair as newer versions do.
    """

    def __init__(self, pair: bool = False) -> None:
        self.calls: list[dict[str, Any]] = []
        self.pair = pair

    def __call__(self, **arguments: Any) -> Any:
        self.calls.append(arguments)
        return (arguments["q"], None) if self.pair else arguments["q"]


class OnGpu:
    """Properties of a tensor that the dispatcher reads.

    As if it lay on a GPU in bfloat16.
    """

    is_cuda = True
    dtype = torch.bfloat16
    device = "cuda:0"

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def dim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]


def on_gpu(heads: int, dim: int = 64) -> Any:
    return OnGpu(10, heads, dim)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Recorder]]:
    """Stubs of all flash-attn generations."""
    found = {}
    for backend, (name, function) in module._KERNELS.items():
        found[backend] = Recorder(pair=backend != "flash_attn_2")
        stub: Any = types.ModuleType(name)
        setattr(stub, function, found[backend])
        monkeypatch.setitem(sys.modules, name, stub)
    module._kernel.cache_clear()
    yield found
    module._kernel.cache_clear()


CU = boundaries(0, 3, 10)


@pytest.mark.parametrize("backend", module._KERNELS)
@pytest.mark.parametrize(
    ("causal", "window", "expected"),
    [(True, None, (-1, -1)), (True, 5, (5, 0)), (False, 5, (5, 5))],
)
def test_flash_attn_is_called_by_keyword_with_one_tensor_of_boundaries(
    kernels: dict[str, Recorder], backend: Any, causal: bool, window: int | None, expected: Any
) -> None:
    """A window reaches back, and ahead unless causal."""
    q, k = on_gpu(4), on_gpu(2)
    options: dict[str, Any] = {"causal": causal, "window": window, "backend": backend}
    assert varlen_attention(q, k, k, CU, 7, scale=0.5, **options) is q
    (call,) = kernels[backend].calls
    assert call["cu_seqlens_q"] is call["cu_seqlens_k"] is CU
    assert (call["max_seqlen_q"], call["max_seqlen_k"]) == (7, 7)
    assert (call["causal"], call["softmax_scale"]) == (causal, 0.5)
    fourth = backend == "flash_attn_4" and window is None
    assert call["window_size"] == ((None, None) if fourth else expected)


def stub_varlen(monkeypatch: pytest.MonkeyPatch, function: Any) -> None:
    stub: Any = types.ModuleType("torch.nn.attention.varlen")
    stub.varlen_attn = function
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", stub)


def test_torch_varlen_says_causal_by_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    calls: list[dict[str, Any]] = []

    def varlen_attn(*, window_size: Any, enable_gqa: bool, **arguments: Any) -> Any:
        calls.append(arguments | {"window_size": window_size, "enable_gqa": enable_gqa})
        return arguments["query"]

    stub_varlen(monkeypatch, varlen_attn)
    q, k = on_gpu(4), on_gpu(2)
    for causal, window in ((True, None), (True, 5), (False, None), (False, 5)):
        varlen_attention(q, k, k, CU, 7, causal=causal, window=window, backend="torch_varlen")
    assert [call["window_size"] for call in calls] == [(-1, 0), (5, 0), (-1, -1), (5, 5)]
    assert all(call["cu_seq_q"] is call["cu_seq_k"] and call["enable_gqa"] for call in calls)
    assert {*calls[0]} <= {*inspect.signature(varlen.varlen_attn).parameters}
    stub_varlen(monkeypatch, lambda query, key, value, is_causal: query)  # an older torch
    with pytest.raises(ValueError, match="the varlen_attn of this torch has no window_size"):
        varlen_attention(q, q, q, CU, 7, backend="torch_varlen")
    assert attention_backend(q) == "reference"


def test_torch_varlen_of_torch_2_11_has_no_flag_for_grouped_queries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def varlen_attn(
        query: Any,
        key: Any,
        value: Any,
        cu_seq_q: Any,
        cu_seq_k: Any,
        max_q: int,
        max_k: int,
        *,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
    ) -> Any:
        return key

    stub_varlen(monkeypatch, varlen_attn)
    q, k = on_gpu(4), on_gpu(2)
    assert varlen_attention(q, k, k, CU, 7, backend="torch_varlen") is k


def test_the_fastest_that_can_run_is_taken(
    kernels: dict[str, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert attention_backend(on_gpu(4)) == "flash_attn_3"
    monkeypatch.delitem(sys.modules, "flash_attn_interface")
    module._kernel.cache_clear()
    assert attention_backend(on_gpu(4)) == "flash_attn_2"
    assert (
        attention_backend(torch.zeros(1, 1, 8)) == attention_backend(on_gpu(4, 60)) == "reference"
    )


def in_float32() -> Any:
    q = on_gpu(4)
    q.dtype = torch.float32
    return q


Q, K, V, THREE = (torch.zeros(10, *of_head) for of_head in ((4, 8), (2, 16), (2, 8), (3, 8)))


@pytest.mark.parametrize(
    ("q", "k", "v", "options", "message"),
    [
        (Q, Q, Q, {"backend": "flash_attn_4"}, r"flash_attn\.cute\.flash_attn_varlen_func is not"),
        (Q, Q, Q, {"backend": "torch_varlen"}, "it needs a GPU and the tensors are on cpu"),
        (Q, Q, Q, {"backend": "xformers"}, "'xformers'; expected one of flash_attn_4, flash_att"),
        (on_gpu(4, 60), None, None, {"backend": "torch_varlen"}, "at most 256, and it is 60"),
        (in_float32(), None, None, {"backend": "torch_varlen"}, r"are torch\.float32"),
        (Q, K, V, {}, r"q, k and v are \[10, 4, 8\], \[10, 2, 16\], \[10, 2, 8\]; expected"),
        (Q, THREE, THREE, {}, "q has 4 heads; expected a multiple of the 3"),
    ],
)
def test_what_no_kernel_can_run_is_a_sentence(
    q: Any, k: Any, v: Any, options: dict[str, Any], message: str
) -> None:
    module._kernel.cache_clear()
    with pytest.raises(ValueError, match=message):
        varlen_attention(q, q if k is None else k, q if v is None else v, CU, 7, **options)
    with pytest.raises(
        ValueError, match=r"cu_seqlens is torch\.int64 \[2\]; expected torch\.int32"
    ):
        varlen_attention(Q, V, V, torch.tensor([0, 10]), 7)
