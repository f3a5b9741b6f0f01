"""A rank's slice of a batch for context parallelism.

Each rank has a share of the tokens; cu_seqlens remain those of the full batch.

"contiguous": equal runs of the packed sequence, as in ring attention over packs
(`ring_flash_attn`, slime). "zigzag": every segment is cut into 2 * cp_size chunks, and rank r takes
chunks r and 2 * cp_size - 1 - r of each, so that causal attention costs all ranks the same
(Megatron, Transformer Engine).
"""

from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .batch import PackedBatch, Tensor

ContextLayout = Literal["contiguous", "zigzag"]


def context_indices(
    cu_seqlens: NDArray[np.int32], cp_rank: int, cp_size: int, layout: ContextLayout
) -> NDArray[np.int64]:
    """Indices of the tokens of one rank, in its order, int64 [T / cp_size].

    ValueError if the segment lengths do not allow the layout.

    Example: cu_seqlens=[0, 4, 8], cp_rank=0, cp_size=2 -> contiguous [0, 1, 2, 3], zigzag [0, 3, 4,
    7]
    """
    if not 0 <= cp_rank < cp_size:
        raise ValueError(f"cp_rank is {cp_rank}; expected 0 to {cp_size - 1}")
    if layout not in ("contiguous", "zigzag"):
        raise ValueError(f"layout is {layout!r}; expected contiguous or zigzag")
    total = int(cu_seqlens[-1])
    if layout == "contiguous" or cp_size == 1:
        if total % cp_size:
            raise ValueError(
                f"{total} tokens are not a multiple of cp_size={cp_size}; pass cp_size={cp_size} "
                "to PackedLoader"
            )
        each = total // cp_size
        return np.arange(cp_rank * each, (cp_rank + 1) * each)
    boundaries = cu_seqlens.astype(np.int64)
    lengths = boundaries[1:] - boundaries[:-1]
    chunks = lengths // (2 * cp_size)
    if (lengths % (2 * cp_size)).any():
        segment = int(np.argmax(lengths % (2 * cp_size) != 0))
        raise ValueError(
            f"segment {segment} has {lengths[segment]} tokens; zigzag slices for cp_size={cp_size} "
            f"need multiples of {2 * cp_size}: build with --pad-to-multiple {2 * cp_size}"
        )
    # Two runs of each segment: [first, first + chunk) and its mirror image.
    firsts = np.stack(
        [boundaries[:-1] + cp_rank * chunks, boundaries[1:] - (cp_rank + 1) * chunks], 1
    ).ravel()
    sizes = np.repeat(chunks, 2)
    offsets = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    index: NDArray[np.int64] = np.repeat(firsts, sizes) + offsets
    return index


def context_slice(
    batch: PackedBatch, cp_rank: int, cp_size: int, layout: ContextLayout = "contiguous"
) -> PackedBatch:
    """Copy of the batch with one rank's tokens, positions, labels, weights and token columns.

    All other fields are those of the full batch. The labels must be "shifted": at the end of a
    slice the next token is on another rank.
    """
    if batch.labels is not None and batch.label_kind != "shifted":
        raise ValueError(
            "the batch has unshifted labels, which lose one at the end of each slice; use "
            "PackedLoader(..., labels='shifted')"
        )
    cu_seqlens = batch.numpy().cu_seqlens
    index: Any = context_indices(cu_seqlens, cp_rank, cp_size, layout)
    if not isinstance(batch.tokens, np.ndarray):
        import torch

        index = torch.from_numpy(index).to(batch.tokens.device)
    total = len(batch.tokens)

    def share(values: Any) -> Any:
        return values[index] if values is not None and len(values) == total else values

    return replace(
        batch,
        tokens=share(batch.tokens),
        position_ids=share(batch.position_ids),
        labels=share(batch.labels),
        loss_weights=share(batch.loss_weights),
        extra={
            name: values if batch.kinds.get(name) == "segment" else share(values)
            for name, values in batch.extra.items()
        },
    )


def context_gather(
    values: Tensor, cu_seqlens: Any, layout: ContextLayout = "contiguous", group: Any = None
) -> Tensor:
    """Values of the full batch from those of each rank's slice, [T, ...], on every rank.

    The inverse of `context_slice` for values that a model makes. All ranks of the group call it.

    values: [T / ranks, ...], of this rank's tokens, in the order of its slice. cu_seqlens: of the
    batch. group: process group of torch.distributed whose ranks have the slices, in order; by
    default all processes.

    Differentiable, without communication: the gradient of a slice is that of this rank's own loss.
    So all ranks compute the same loss from the full values, and the sum over the ranks of the
    gradients of the parameters is its gradient. DDP and FSDP take the mean: multiply the loss by
    the number of ranks. ValueError if the values are not those of a slice.
    """
    import torch
    from torch import distributed

    size, rank = distributed.get_world_size(group), distributed.get_rank(group)
    boundaries = cu_seqlens if isinstance(cu_seqlens, np.ndarray) else cu_seqlens.cpu().numpy()
    indices = [context_indices(boundaries, each, size, layout) for each in range(size)]
    if len(values) != len(indices[rank]):
        raise ValueError(
            f"values have {len(values)} tokens, and a slice for {size} ranks of "
            f"{int(boundaries[-1])} tokens has {len(indices[rank])}; pass the values of the slice "
            "that context_slice made"
        )
    every = torch.from_numpy(np.concatenate(indices)).to(values.device)
    own = torch.from_numpy(indices[rank]).to(values.device)
    gathered: Tensor = _gather_function().apply(values, every, own, group)
    return gathered


@lru_cache(maxsize=1)
def _gather_function() -> Any:
    """The autograd function of `context_gather`; torch is imported where it is made."""
    import torch
    from torch import distributed

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, values: Tensor, every: Tensor, own: Tensor, group: Any) -> Tensor:
            ctx.save_for_backward(own)
            parts = [torch.empty_like(values) for _ in range(len(every) // len(own))]
            distributed.all_gather(parts, values.contiguous(), group=group)
            whole = torch.empty(
                (len(every), *values.shape[1:]), dtype=values.dtype, device=values.device
            )
            whole[every] = torch.cat(parts)
            return whole

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            (own,) = ctx.saved_tensors
            return gradients[0][own], None, None, None

    return Gather
