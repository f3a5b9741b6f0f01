"""The segments of a batch as numbers and as masks."""

from collections.abc import Callable
from typing import Any

from ..schemas.columns import FILLER
from .batch import PackedBatch, Tensor
from .rows import Rows, batch_from_rows


def as_tensors(batch: PackedBatch | Rows) -> PackedBatch:
    """The batch, or that of rows, as tensors."""
    return (batch if isinstance(batch, PackedBatch) else batch_from_rows(batch)).torch()


def to_seq_idx(batch: PackedBatch | Rows) -> Tensor:
    """Number of each token's segment, from 0, int32 [1, T]: seq_idx of state-space models."""
    import torch

    batch = as_tensors(batch)
    lengths = batch.cu_seqlens.diff()
    segments = torch.arange(len(lengths), dtype=torch.int32, device=lengths.device)
    return torch.repeat_interleave(segments, lengths, output_size=len(batch))[None]


def to_flex_block_mask(
    batch: PackedBatch | Rows, *, causal: bool = True, window: int | None = None
) -> Any:
    """FlexAttention's BlockMask for q, k, v of [1, heads, T, head_dim].

    Every token sees its own segment, as in `varlen_attention` with the same causal and window.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    batch = as_tensors(batch)
    segment, tokens = to_seq_idx(batch)[0], len(batch)

    def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = segment[query] == segment[key]
        if causal:
            seen = seen & (key <= query)
        if window is not None:
            seen = seen & (query - key <= window) & (key - query <= window)
        return seen

    return create_block_mask(sees, None, None, tokens, tokens, device=str(segment.device))


def real_segments(batch: PackedBatch) -> Tensor:
    """True for the segments of documents, bool [S]; batch: of tensors."""
    real = batch.cu_seqlens.diff() > 0
    if batch.document_ids is not None:
        real &= batch.document_ids != FILLER
    elif batch.segment_lengths is not None:
        real &= batch.segment_lengths > 0
    return real


def segment_numbers(batch: PackedBatch) -> Tensor:
    """Number of each token's segment, from 1, int32 [1, T]; 0 on filler. batch: of tensors."""
    import torch

    real = real_segments(batch)
    # Filler of one pack may precede another pack; the numbers of documents stay consecutive.
    numbers = real.cumsum(0, dtype=torch.int32) * real
    return torch.repeat_interleave(numbers, batch.cu_seqlens.diff(), output_size=len(batch))[None]


def block_diagonal_mask(numbers: Tensor, dtype: Any, window: int | None = None) -> Tensor:
    """Additive mask, float [B, 1, T, T], of an int [B, T] of numbers of segments, 0 for padding.

    0 where a token sees another, the dtype's lowest value elsewhere.

    window: tokens that a token sees, itself included, as in transformers.
    """
    import torch

    place = torch.arange(numbers.shape[1], device=numbers.device)
    distance = place[:, None] - place[None, :]
    seen = (numbers[:, None, :] == numbers[:, :, None]) & (numbers[:, None, :] != 0)
    seen &= distance >= 0
    if window is not None:
        seen &= distance < window
    lowest = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=numbers.device)
    return torch.where(seen, torch.zeros_like(lowest), lowest)[:, None]


def masks_of_layers(config: Any, mask: Callable[[int | None], Tensor]) -> Any:
    """The mask of a model with such a config: that of its layers, or a dict by kind of layer.

    mask: f(window), window None or tokens that a token sees. Of a model of images and text, the
    config of its text part counts. ValueError for chunked attention.
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    kinds = getattr(text, "layer_types", None) or ()
    if "chunked_attention" in kinds:
        raise ValueError(
            "the model has layers with chunked attention, which a 4-D mask cannot express; use "
            "to_hf"
        )
    window = getattr(text, "sliding_window", None)
    if window is None or (kinds and "sliding_attention" not in kinds):
        return mask(None)
    if kinds:
        return {"full_attention": mask(None), "sliding_attention": mask(window)}
    return mask(window)
