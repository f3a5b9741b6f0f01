"""Attention within segments.

The reference against float64 by hand, every kernel's call through a stub, refusals.
"""

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
    return [
        torch.randn(total, count, dim, generator=generator, dtype=dtype)
        for count in (heads, kv_heads, kv_heads)
    ]


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
    out = torch.zeros_like(q)
    for start, end in pairwise(cu):
        for token in range(start, end):
            low = start if window is None else max(start, token - window)
            high = (
                token + 1 if causal else (end if window is None else min(end, token + window + 1))
            )
            for head in range(q.shape[1]):
                keys, values = k[low:high, head // group], v[low:high, head // group]
                out[token, head] = (keys @ q[token, head] * scale).softmax(0) @ values
    return out


@pytest.mark.parametrize("cu", [[0, 12], [0, 5, 12], [0, 1, 2, 12], [0, 0, 5, 5, 12, 12]])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("window", [None, 0, 2, 50])
@pytest.mark.parametrize("causal", [True, False])
def test_the_reference_is_attention_within_each_segment(
    cu: list[int], heads: int, kv_heads: int, window: int | None, causal: bool
) -> None:
    q, k, v = inputs(12, heads, kv_heads)
    boundaries = torch.tensor(cu, dtype=torch.int32)
    out = varlen_attention(q, k, v, boundaries, 12, causal=causal, window=window)
    assert out.shape == q.shape
    assert (out - by_hand(q, k, v, cu, causal, window)).abs().max() < 2e-6


def test_the_reference_is_within_2e_6_of_float64_at_training_lengths() -> None:
    q, k, v = inputs(3000, 8, 2, 64)
    cu = torch.tensor([0, 700, 701, 2900, 3000], dtype=torch.int32)
    exact = varlen_attention(q.double(), k.double(), v.double(), cu, 2199)
    assert (varlen_attention(q, k, v, cu, 2199) - exact).abs().max() < 2e-6


def test_the_scale_is_the_softmax_scale() -> None:
    q, k, v = inputs(6)
    cu = torch.tensor([0, 6], dtype=torch.int32)
    out = varlen_attention(q, k, v, cu, 6, scale=0.3)
    assert (out - by_hand(q, k, v, [0, 6], scale=0.3)).abs().max() < 2e-6


@pytest.mark.parametrize("window", [None, 2])
def test_gradients_of_the_reference_are_right(window: int | None) -> None:
    q, k, v = (tensor.requires_grad_() for tensor in inputs(7, 2, 1, 4, torch.float64))
    cu = torch.tensor([0, 3, 3, 7], dtype=torch.int32)
    assert torch.autograd.gradcheck(
        lambda q, k, v: varlen_attention(q, k, v, cu, 4, window=window), (q, k, v)
    )


def test_no_gradient_crosses_a_boundary() -> None:
    q, k, v = (tensor.requires_grad_() for tensor in inputs(9))
    cu = torch.tensor([0, 4, 9], dtype=torch.int32)
    varlen_attention(q, k, v, cu, 5)[:4].sum().backward()
    for tensor in (q, k, v):
        assert tensor.grad is not None
        assert (tensor.grad[4:] == 0).all()
        assert (
            tensor.grad[:4].abs().sum() > 0 or tensor is q
        )  # a lone key's weight is 1 whatever the query


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


def on_gpu(*shape: int) -> Any:
    return OnGpu(*shape)


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


CU = torch.tensor([0, 3, 10], dtype=torch.int32)


@pytest.mark.parametrize("backend", ["flash_attn_2", "flash_attn_3", "flash_attn_4"])
def test_flash_attn_is_called_by_keyword_with_one_tensor_of_boundaries(
    kernels: dict[str, Recorder], backend: Any
) -> None:
    q, k = on_gpu(10, 4, 64), on_gpu(10, 2, 64)
    assert varlen_attention(q, k, k, CU, 7, backend=backend) is q
    (call,) = kernels[backend].calls
    assert call["cu_seqlens_q"] is call["cu_seqlens_k"] is CU
    assert (call["max_seqlen_q"], call["max_seqlen_k"], call["causal"], call["softmax_scale"]) == (
        7,
        7,
        True,
        None,
    )
    assert call["window_size"] == ((None, None) if backend == "flash_attn_4" else (-1, -1))


@pytest.mark.parametrize(("causal", "expected"), [(True, (5, 0)), (False, (5, 5))])
def test_a_window_reaches_back_and_ahead_unless_causal(
    kernels: dict[str, Recorder], causal: bool, expected: tuple[int, int]
) -> None:
    q = on_gpu(10, 4, 64)
    varlen_attention(q, q, q, CU, 7, causal=causal, window=5, scale=0.5, backend="flash_attn_2")
    (call,) = kernels["flash_attn_2"].calls
    assert (call["window_size"], call["causal"], call["softmax_scale"]) == (expected, causal, 0.5)


def test_torch_varlen_says_causal_by_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []

    def varlen_attn(*, window_size: tuple[int, int], **arguments: Any) -> Any:
        calls.append(arguments | {"window_size": window_size})
        return arguments["query"]

    stub: Any = types.ModuleType("torch.nn.attention.varlen")
    stub.varlen_attn = varlen_attn
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", stub)
    q, k = on_gpu(10, 4, 64), on_gpu(10, 2, 64)
    for causal, window in ((True, None), (True, 5), (False, None), (False, 5)):
        varlen_attention(q, k, k, CU, 7, causal=causal, window=window, backend="torch_varlen")
    assert [call["window_size"] for call in calls] == [(-1, 0), (5, 0), (-1, -1), (5, 5)]
    assert all(call["cu_seq_q"] is call["cu_seq_k"] and call["enable_gqa"] for call in calls)


def test_an_older_torch_without_windows_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    stub: Any = types.ModuleType("torch.nn.attention.varlen")
    stub.varlen_attn = lambda query, key, value, is_causal: query
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", stub)
    q = on_gpu(10, 4, 64)
    with pytest.raises(
        ValueError, match="the varlen_attn of this torch has no window_size; choose another"
    ):
        varlen_attention(q, q, q, CU, 7, backend="torch_varlen")
    assert attention_backend(q) == "reference"


def test_torch_varlen_has_the_arguments_that_are_passed() -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    import inspect

    parameters = inspect.signature(varlen.varlen_attn).parameters
    used = {
        "query",
        "key",
        "value",
        "cu_seq_q",
        "cu_seq_k",
        "max_q",
        "max_k",
        "scale",
        "window_size",
        "enable_gqa",
    }
    assert used <= set(parameters)


def test_the_fastest_that_can_run_is_taken(
    kernels: dict[str, Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    q = on_gpu(10, 4, 64)
    assert attention_backend(q) == "flash_attn_3"
    monkeypatch.delitem(sys.modules, "flash_attn_interface")
    module._kernel.cache_clear()
    assert attention_backend(q) == "flash_attn_2"
    assert attention_backend(torch.zeros(1, 1, 8)) == "reference"
    odd = on_gpu(10, 4, 60)
    assert attention_backend(odd) == "reference"


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (
            "flash_attn_4",
            r"flash_attn_4 cannot run this: flash_attn\.cute\.flash_attn_varlen_func is not "
            r"installed",
        ),
        (
            "torch_varlen",
            "it needs a GPU and the tensors are on cpu; choose another, or backend=None",
        ),
        ("xformers", "backend is 'xformers'; expected one of flash_attn_4, flash_attn_3"),
    ],
)
def test_an_impossible_backend_is_a_sentence(backend: Any, message: str) -> None:
    module._kernel.cache_clear()
    q, k, v = inputs(10)
    with pytest.raises(ValueError, match=message):
        varlen_attention(q, k, v, CU, 7, backend=backend)


def test_a_dtype_or_head_dim_that_a_kernel_lacks_is_a_sentence() -> None:
    q = on_gpu(10, 4, 60)
    with pytest.raises(
        ValueError, match="head_dim that is a multiple of 8, at most 256, and it is 60"
    ):
        varlen_attention(q, q, q, CU, 7, backend="torch_varlen")
    q.dtype = torch.float32
    with pytest.raises(
        ValueError, match=r"it needs float16 or bfloat16 and the tensors are torch\.float32"
    ):
        varlen_attention(q, q, q, CU, 7, backend="torch_varlen")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": (10, 2, 16)}, r"q, k and v are \[10, 4, 8\], \[10, 2, 16\], \[10, 2, 8\]; expected"),
        ({"k": (10, 3, 8), "v": (10, 3, 8)}, "q has 4 heads; expected a multiple of the 3"),
        ({"cu": torch.tensor([0, 10])}, r"cu_seqlens is torch\.int64 \[2\]; expected torch\.int32"),
    ],
)
def test_wrong_shapes_are_a_sentence(change: dict[str, Any], message: str) -> None:
    q, k, v = inputs(10)
    k = torch.zeros(change["k"]) if "k" in change else k
    v = torch.zeros(change["v"]) if "v" in change else v
    with pytest.raises(ValueError, match=message):
        varlen_attention(q, k, v, change.get("cu", CU), 7)
