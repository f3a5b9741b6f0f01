"""The segments of a batch as numbers and as masks."""

from typing import Any

from packprep.schemas.columns import FILLER

from ..batch import PackedBatch, Tensor
from ..rows import Rows
from ..trees import subtree_ends
from .fields import as_tensors


def to_seq_idx(batch: PackedBatch | Rows) -> Tensor:
    """Number of each token's segment, from 0, int32 [1, T]: seq_idx of state-space models."""
    batch = as_tensors(batch, sides=True)
    import torch

    lengths = batch.cu_seqlens.diff()
    segments = torch.arange(len(lengths), dtype=torch.int32, device=lengths.device)
    return torch.repeat_interleave(segments, lengths, output_size=len(batch))[None]


def to_flex_block_mask(
    batch: PackedBatch | Rows, *, causal: bool = True, window: int | None = None
) -> Any:
    """FlexAttention's BlockMask for q, k, v of [1, heads, T, head_dim].

    Every token sees its own segment, as in `varlen_attention` with the same causal and window. In
    a batch of trees it sees its path; that is always causal, and a window counts positions.
    """
    batch = as_tensors(batch, trees=True, sides=True)
    from torch.nn.attention.flex_attention import create_block_mask

    trees, position = batch.segment_parents is not None, batch.position_ids
    if trees and not causal:
        raise ValueError("trees are causal: a token has no single later token; pass causal=True")
    bound = seen_until(batch) if causal else to_seq_idx(batch)[0]

    def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = (key <= query) & (query < bound[key]) if causal else bound[query] == bound[key]
        if window is not None:
            distance = position[query] - position[key]
            seen = seen & (distance <= window) & (distance >= -window)
        return seen

    return create_block_mask(
        sees, None, None, len(batch), len(batch), device=str(batch.tokens.device)
    )


def seen_until(batch: PackedBatch) -> Tensor:
    """End of the run of tokens that see each token, int64 [T], for a mask of your own kernel.

    Token q sees token k if k <= q < end[k]: segments of trees are in depth-first order. Without
    trees the run ends with the token's segment.
    """
    batch = batch.torch()
    import torch

    boundaries = batch.cu_seqlens.long()
    ends = boundaries[1:]
    if batch.segment_parents is not None:
        parents = batch.segment_parents.cpu().numpy()
        ends = torch.from_numpy(subtree_ends(parents, boundaries.cpu().numpy())).to(ends.device)
    return torch.repeat_interleave(ends, boundaries.diff(), output_size=len(batch))


def to_block_sparse(
    batch: PackedBatch, block_size: tuple[int, int] = (128, 128), *, transposed: bool = False
) -> dict[str, Tensor]:
    """Blocks of queries and keys in which a token sees another, for block-sparse kernels.

    block_size: queries and keys of a block. The result has the four tensors that flash-attn 4 and
    FlexAttention's BlockMask describe a mask by, int32: `mask_block_cnt` [1, 1, M], the blocks of
    keys that some tokens of each block of queries see and `mask_block_idx` [1, 1, M, N], their
    numbers, ascending, in the first places; `full_block_cnt` and `full_block_idx` of those that all
    tokens see, which need no mask. transposed: blocks of queries for each block of keys, [1, 1, N]
    and [1, 1, N, M], as a backward pass takes them. Made from `seen_until`, not from T * T values.
    """
    end = seen_until(batch)
    import torch
    from torch.nn.functional import pad

    total, (rows, columns) = len(end), block_size
    latest = pad(end, (0, -total % columns)).view(-1, columns).amax(1)
    earliest = pad(end, (0, -total % columns), value=total).view(-1, columns).amin(1)
    query = torch.arange(0, total, rows, device=end.device)[:, None]
    key = torch.arange(0, total, columns, device=end.device)[None]
    after_query, after_key = query + rows, key + columns
    above = after_key - 1 <= query  # no key is later than a query
    full = above & (earliest >= after_query) & (after_query <= total)
    seen = (key < after_query) & (~above | (latest > query)) & ~full
    result = {}
    for name, chosen in (("mask", seen), ("full", full)):
        chosen = chosen.T if transposed else chosen
        order = torch.argsort(chosen.int(), dim=1, descending=True, stable=True)
        result[f"{name}_block_cnt"] = chosen.sum(1, dtype=torch.int32)[None, None]
        result[f"{name}_block_idx"] = order.int()[None, None].contiguous()
    return result


def tree_mask(batch: PackedBatch, window: int | None = None) -> Tensor:
    """bool [T, T]: True where a token (row) sees another (column): itself, and its path before it.

    The reference for every kernel; T * T values. window: positions that a token sees, itself
    included, as in transformers.
    """
    batch = batch.torch()
    import torch

    end, position = seen_until(batch), batch.position_ids
    token = torch.arange(len(end), device=end.device)
    seen = (token[None, :] <= token[:, None]) & (token[:, None] < end[None, :])
    if window is not None:
        seen &= position[:, None] - position[None, :] < window
    return seen


def segment_numbers(batch: PackedBatch) -> Tensor:
    """Number of each token's segment, from 1, int32 [1, T].

    0 on filler, which is last in each pack.
    """
    import torch

    numbers = torch.arange(
        1, batch.num_segments + 1, dtype=torch.int32, device=batch.cu_seqlens.device
    )
    real = None if batch.document_ids is None else batch.document_ids != FILLER
    if real is None and batch.segment_lengths is not None:
        real = batch.segment_lengths > 0
    if real is not None:
        # Filler of one pack may precede another pack; the numbers of documents stay consecutive.
        numbers = real.cumsum(0, dtype=torch.int32) * real
    return torch.repeat_interleave(numbers, batch.cu_seqlens.diff(), output_size=len(batch))[None]


def block_diagonal_mask(mask: Tensor, dtype: Any, window: int | None = None) -> Tensor:
    """Additive mask, float [B, 1, T, T], of an int [B, T] mask of numbers, 0 for padding.

    0 where a token sees another, the dtype's lowest value elsewhere.

    window: tokens that a token sees, itself included, as in transformers.
    """
    import torch

    same = (mask[:, None, :] == mask[:, :, None]) & (mask[:, None, :] != 0)
    position = torch.arange(mask.shape[1], device=mask.device)
    distance = position[:, None] - position[None, :]
    seen = same & (distance >= 0)
    if window is not None:
        seen &= distance < window
    return additive_mask(seen, dtype)


def additive_mask(seen: Tensor, dtype: Any) -> Tensor:
    """float [B, 1, T, T]: 0 where `seen`, bool [B, T, T], is True; else the dtype's lowest value.

    B is 1 for `seen` of [T, T].
    """
    import torch

    lowest = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=seen.device)
    mask = torch.where(seen, torch.zeros((), dtype=dtype, device=seen.device), lowest)
    return mask.reshape(-1, 1, *seen.shape[-2:])
