"""Loss over packs: every token's weight, so that training on packs optimises what training on documents would.

A mean over the tokens of a pack weighs documents by their length, and by what happened to be packed with them. Weights
repair that at no cost: the loss is (weights * losses).sum(), in whatever pieces the sum is taken, across ranks and
context-parallel slices too. Nothing here loops over segments.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Mode = Literal["token", "segment", "document"]

# torch.Tensor. torch is imported only where tensors are made.
Tensor = Any


def loss_weights(cu_seqlens: Any, mask: Any, mode: Mode = "token", document_ids: Any = None) -> Any:
    """float32 [T]: the weight of each token's loss, so that every unit's weights add up to 1. 0 where the mask is.

    cu_seqlens: int32 [S + 1]. mask: bool [T], True where there is a loss (labels != -100). mode: what the unit is.
    "token": each token, so the weights are the mask. "segment": each segment, so sums of weighted losses are sums of
    segment means. "document": each document of the batch, its pieces together, by document_ids [S]; pieces in another
    batch are another unit. Divide by the number of units over all ranks (the sum of all weights) for the mean.
    numpy arrays give numpy, tensors give a tensor on their device.

    Example: cu_seqlens=[0, 1, 4], mask=[1, 0, 1, 1], mode="segment" -> [1, 0, .5, .5]
    """
    if mode not in ("token", "segment", "document"):
        raise ValueError(f"mode is {mode!r}; expected token, segment or document")
    if mode == "document" and document_ids is None:
        raise ValueError("mode is 'document' but there are no document_ids; write that column or choose 'segment'")
    ids = document_ids if mode == "document" else None
    if isinstance(mask, np.ndarray):
        return mask.astype(np.float32) if mode == "token" else _numpy_weights(cu_seqlens, mask, ids)
    return mask.float() if mode == "token" else _torch_weights(cu_seqlens, mask, ids)


def _numpy_weights(
    cu_seqlens: NDArray[np.int32], mask: NDArray[np.bool_], ids: NDArray[np.int64] | None
) -> NDArray[np.float32]:
    before = np.zeros(len(mask) + 1, np.int32)
    np.cumsum(mask, out=before[1:])
    at = before[cu_seqlens]
    counts = at[1:] - at[:-1]
    if ids is not None:
        _, unit = np.unique(ids, return_inverse=True)
        counts = np.bincount(unit, counts)[unit]
    each = (1 / np.maximum(counts, 1)).astype(np.float32)
    weights: NDArray[np.float32] = np.repeat(each, cu_seqlens[1:] - cu_seqlens[:-1])
    weights *= mask
    return weights


def _torch_weights(cu_seqlens: Tensor, mask: Tensor, ids: Tensor | None) -> Tensor:
    import torch

    boundaries = cu_seqlens.long()
    before = torch.zeros(len(mask) + 1, dtype=torch.int32, device=mask.device)
    torch.cumsum(mask, 0, dtype=torch.int32, out=before[1:])
    counts = before[boundaries].diff()
    if ids is not None:
        unit = torch.unique(ids, return_inverse=True)[1]
        counts = torch.zeros_like(counts).index_add_(0, unit, counts)[unit]
    each = counts.clamp(min=1).float().reciprocal()
    return torch.repeat_interleave(each, boundaries.diff(), output_size=len(mask)) * mask


def segment_means(values: Tensor, mask: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Mean of the values of each segment where the mask is True: [S], 0 for a segment without any; differentiable.

    values: float [T]. mask: bool [T]. Its sum is what slime calls the sum of sample means. Where the mask is known
    ahead, (loss_weights * values).sum() is the same and faster.
    """
    import torch

    offsets = cu_seqlens.long()
    kept = values * mask
    sums = torch.segment_reduce(kept, "sum", offsets=offsets, unsafe=True, initial=0)
    counts = torch.segment_reduce(mask.to(values.dtype), "sum", offsets=offsets, unsafe=True, initial=0)
    return sums / counts.clamp(min=1)


def unpack(values: Any, batch: Any) -> list[Any]:
    """The values of each document's segment, without padding: views, in pack order; filler is left out.

    values: [T, ...], for instance a batch's tokens, or log-probabilities of them.
    """
    whole = batch.numpy()
    starts = whole.cu_seqlens[:-1]
    lengths = whole.segment_lengths if whole.segment_lengths is not None else whole.cu_seqlens[1:] - starts
    real = lengths > 0 if whole.document_ids is None else (lengths > 0) & (whole.document_ids >= 0)
    pairs = zip(starts[real].tolist(), lengths[real].tolist(), strict=True)
    return [values[start : start + length] for start, length in pairs]


def selective_log_probs(hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int = 1024) -> Tensor:
    """Log-probability of each label under softmax(hidden @ weight.T): float32 [T], 0 where the label is -100.

    hidden: [T, width]. weight: [vocabulary, width]. labels: int64 [T], of the next token. Works on `chunk` tokens at a
    time and computes their logits again in the backward pass, so memory is chunk * vocabulary and not T * vocabulary;
    that costs about twice the time of doing all at once.
    """
    import torch
    from torch.nn.functional import cross_entropy
    from torch.utils.checkpoint import checkpoint

    def of_chunk(part: Tensor, targets: Tensor) -> Tensor:
        return -cross_entropy((part @ weight.T).float(), targets, reduction="none")

    pieces = [
        checkpoint(of_chunk, hidden[at : at + chunk], labels[at : at + chunk], use_reentrant=False)
        for at in range(0, len(labels), chunk)
    ]
    return torch.cat(pieces)
