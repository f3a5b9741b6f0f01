"""The segments of a batch as numbers and as masks."""

from typing import Any

from packprep.schemas.columns import FILLER

from ..batch import PackedBatch, Tensor
from ..rows import Rows
from .fields import as_tensors


def to_seq_idx(batch: PackedBatch | Rows) -> Tensor:
    """int32 [1, T]: each token's segment, from 0, for state-space models (Mamba's seq_idx)."""
    import torch

    batch = as_tensors(batch)
    lengths = batch.cu_seqlens.diff()
    segments = torch.arange(len(lengths), dtype=torch.int32, device=lengths.device)
    return torch.repeat_interleave(segments, lengths, output_size=len(batch))[None]


def to_flex_block_mask(
    batch: PackedBatch | Rows, *, causal: bool = True, window: int | None = None
) -> Any:
    """FlexAttention's BlockMask for q, k, v of [1, heads, T, head_dim].

    Every token sees its own segment, as `varlen_attention` does with the same causal and window.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    batch = as_tensors(batch)
    segment = to_seq_idx(batch)[0]

    def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = segment[query] == segment[key]
        if causal:
            seen = seen & (query >= key)
        if window is not None:
            seen = seen & (query - key <= window) & (key - query <= window)
        return seen

    return create_block_mask(
        sees, None, None, len(batch), len(batch), device=str(batch.tokens.device)
    )


def segment_numbers(batch: PackedBatch) -> Tensor:
    """Number of each token's segment, from 1, int32 [1, T].

    0 on filler, which comes behind all others in each pack.
    """
    import torch

    numbers = torch.arange(
        1, batch.num_segments + 1, dtype=torch.int32, device=batch.cu_seqlens.device
    )
    real = None if batch.document_ids is None else batch.document_ids != FILLER
    if real is None and batch.segment_lengths is not None:
        real = batch.segment_lengths > 0
    if real is not None:
        # Filler of one pack may stand before another pack: numbers of documents stay consecutive.
        numbers = real.cumsum(0, dtype=torch.int32) * real
    return torch.repeat_interleave(numbers, batch.cu_seqlens.diff(), output_size=len(batch))[None]


def block_diagonal_mask(mask: Tensor, dtype: Any, window: int | None = None) -> Tensor:
    """Additive mask, float [1, 1, T, T], of an int [1, T] mask.

    0 where a token sees another, the dtype's least value elsewhere.

    window: a token sees that many, itself among them, as transformers counts.
    """
    import torch

    same = (mask[:, None, :] == mask[:, :, None]) & (mask[:, None, :] != 0)
    place = torch.arange(mask.shape[1], device=mask.device)
    back = place[:, None] - place[None, :]
    seen = same & (back >= 0) if window is None else same & (back >= 0) & (back < window)
    least = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=mask.device)
    return torch.where(seen, torch.zeros((), dtype=dtype, device=mask.device), least)[:, None]
