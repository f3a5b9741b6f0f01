"""A rank's slice of a batch for context parallelism.

Each rank has a share of the tokens; cu_seqlens remain those of the full batch.

"contiguous": equal runs of the packed sequence, as in ring attention over packs
(`ring_flash_attn`, slime). "zigzag": every segment is cut into 2 * cp_size chunks, and rank r takes
chunks r and 2 * cp_size - 1 - r of each, so that causal attention costs all ranks the same
(Megatron, Transformer Engine).
"""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .batch import PackedBatch
from .trees import refuse_trees

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
    total = int(cu_seqlens[-1])
    if layout == "contiguous":
        if total % cp_size:
            raise ValueError(
                f"{total} tokens are not a multiple of cp_size={cp_size}; pass cp_size={cp_size} "
                "to PackedLoader"
            )
        each = total // cp_size
        return np.arange(cp_rank * each, (cp_rank + 1) * each)
    if layout != "zigzag":
        raise ValueError(f"layout is {layout!r}; expected contiguous or zigzag")
    boundaries = cu_seqlens.astype(np.int64)
    lengths = boundaries[1:] - boundaries[:-1]
    chunks = lengths // (2 * cp_size)
    if (lengths % (2 * cp_size)).any():
        segment = int(np.argmax(lengths % (2 * cp_size) != 0))
        raise ValueError(
            f"segment {segment} has {lengths[segment]} tokens; zigzag slices for cp_size={cp_size} "
            f"need multiples of {2 * cp_size}: build with --pad-segment-to-multiple {2 * cp_size}"
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
    refuse_trees(batch.segment_parents is not None, "context_slice")
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
