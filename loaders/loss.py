"""Loss over packs: a weight for every token.

Training on packs then optimises what training on documents would.

A mean over the tokens of a pack weighs documents by their length, and by what happened to be packed
with them. Weights repair that at no cost: the loss is (weights * losses).sum(), in whatever pieces
the sum is taken, across ranks and context-parallel slices too. Nothing here loops over segments.
"""

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packprep.schemas.columns import NO_LOSS

from .batch import PackedBatch, Tensor

Mode = Literal["token", "segment", "document"]


def loss_weights(cu_seqlens: Any, mask: Any, mode: Mode = "token", document_ids: Any = None) -> Any:
    """float32 [T]: the weight of each token's loss, so that every unit's weights add up to 1.

    0 where the mask is.

    cu_seqlens: int32 [S + 1]. mask: bool [T], True where there is a loss (labels != -100). mode:
    what the unit is. "token": each token, so the weights are the mask. "segment": each segment, so
    sums of weighted losses are sums of segment means. "document": each document of the batch, its
    pieces together, by document_ids [S]; pieces in another batch are another unit. Divide by the
    number of units over all ranks (the sum of all weights) for the mean. numpy arrays give numpy,
    tensors give a tensor on their device.

    Example: cu_seqlens=[0, 1, 4], mask=[1, 0, 1, 1], mode="segment" -> [1, 0, .5, .5]
    """
    if mode not in ("token", "segment", "document"):
        raise ValueError(f"mode is {mode!r}; expected token, segment or document")
    if mode == "document" and document_ids is None:
        raise ValueError(
            "mode is 'document' but there are no document_ids; write that column or choose "
            "'segment'"
        )
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
    """Mean of the values of each segment where the mask is True.

    [S], 0 for a segment without any; differentiable.

    values: float [T]. mask: bool [T]. Its sum is what slime calls the sum of sample means. Where
    the mask is known ahead, (loss_weights * values).sum() is the same and faster.
    """
    import torch

    offsets = cu_seqlens.long()
    kept = values * mask
    sums = torch.segment_reduce(kept, "sum", offsets=offsets, unsafe=True, initial=0)
    counts = torch.segment_reduce(
        mask.to(values.dtype), "sum", offsets=offsets, unsafe=True, initial=0
    )
    return sums / counts.clamp(min=1)


def unpack(values: Any, batch: Any) -> list[Any]:
    """The values of each document's segment, without padding.

    Views, in pack order; filler is left out.

    values: [T, ...], for instance a batch's tokens, or log-probabilities of them.
    """
    whole = batch.numpy()
    starts = whole.cu_seqlens[:-1]
    lengths = (
        whole.segment_lengths
        if whole.segment_lengths is not None
        else whole.cu_seqlens[1:] - starts
    )
    real = lengths > 0 if whole.document_ids is None else (lengths > 0) & (whole.document_ids >= 0)
    pairs = zip(starts[real].tolist(), lengths[real].tolist(), strict=True)
    return [values[start : start + length] for start, length in pairs]


def selective_log_probs(
    hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int = 1024
) -> Tensor:
    """Log-probability of each label under softmax(hidden @ weight.T).

    float32 [T], 0 where the label is -100.

    hidden: [T, width]. weight: [vocabulary, width]. labels: int64 [T], of the next token. Works on
    `chunk` tokens at a time and computes their logits again in the backward pass, so memory is
    chunk * vocabulary and not T * vocabulary; that costs about twice the time of doing all at once.
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


class PairLogProbs(NamedTuple):
    """Log-probabilities of the preference pairs of a batch, each field [pairs].

    In the order of their chosen sides.

    `chosen / chosen_tokens` is the mean over the tokens of a side, for losses that are normalised
    by length.
    """

    chosen: Tensor
    """sum over the trained tokens of each chosen side, float32, or float64 if the values were"""
    rejected: Tensor
    """the same for the rejected sides"""
    chosen_tokens: Tensor
    """int64: how many trained tokens a chosen side has"""
    rejected_tokens: Tensor
    """int64: how many trained tokens a rejected side has"""
    pair_ids: Tensor
    """int64: input row of each pair"""


def pair_log_probs(values: Tensor, batch: PackedBatch, chunk: int = 1024) -> PairLogProbs:
    """Sum the log-probabilities of the trained tokens of both sides of each pair, for DPO.

    Differentiable.

    values: the model's logits of the batch, float [T, vocabulary] or [1, T, vocabulary], or the
    log-probability of each next token, float [T], as `selective_log_probs` gives it for
    `batch.labels_as("shifted")`; that one never holds all logits. batch: of a PackedLoader with
    columns=["pair_ids", "pair_sides"], or of `batch_from_rows`, with labels "hf" or "shifted".
    Chosen is side 0, the first name of --pair-columns. Trained are tokens with a label; filler and
    padding are in no pair, and a batch of filler has no pairs. A pair that is in the batch twice
    counts twice.

    Logits are read `chunk` tokens at a time, in float32 at least, and again in the backward pass.
    Beside the logits that takes memory for chunk * vocabulary values and for their gradient, twice
    while its pieces are joined. On a GPU this waits for it: only the batch knows how many pairs
    there are. ValueError for a batch without the columns of pairs or without labels, and for values
    that are not the batch's.

    Example: sides of pair 7 with log-probabilities [-1, -2 | -4] of trained tokens -> chosen [-3],
    rejected [-4]
    """
    import torch

    labels, ids, sides = _pair_fields(batch)
    if values.dim() > 1 and len(values) == 1:
        values = values[0]  # no pair fits into one token, so this is the dimension of sequences
    if len(values) != len(labels) or values.dim() > 2:
        raise ValueError(
            f"values have shape {[*values.shape]} and the batch {len(labels)} tokens; expected "
            "logits [T, vocabulary] "
            "or log-probabilities [T] of the next token, one for every token of the batch"
        )
    labels, ids, sides = (array.to(values.device) for array in (labels, ids, sides))
    offsets = batch.torch().cu_seqlens.to(values.device).long()
    if int(offsets[-1]) != len(labels):
        raise ValueError(
            f"the batch has {len(labels)} tokens of {int(offsets[-1])}, so it is a "
            "context-parallel slice; gather the "
            "log-probabilities of all ranks and give the whole batch with them"
        )
    trained = labels != NO_LOSS
    each = values if values.dim() == 1 else _label_log_probs(values, labels, chunk)
    each = torch.where(trained, each, 0).to(torch.promote_types(each.dtype, torch.float32))
    sums = torch.segment_reduce(each, "sum", offsets=offsets, unsafe=True, initial=0)
    counts = torch.cat([offsets.new_zeros(1), trained.cumsum(0)])[offsets].diff()
    chosen, rejected = _paired_segments(ids, sides)
    return PairLogProbs(sums[chosen], sums[rejected], counts[chosen], counts[rejected], ids[chosen])


def _pair_fields(batch: PackedBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Labels of the next token [T], pair ids [S] and sides [S]."""
    missing = [name for name in ("pair_ids", "pair_sides") if name not in batch.extra]
    if missing:
        raise ValueError(
            f"the batch has no {' and no '.join(missing)}; give PackedLoader columns=['pair_ids', "
            "'pair_sides'], with "
            "shards that were built with --pair-columns"
        )
    if batch.labels is None:
        raise ValueError("the batch has no labels; ask PackedLoader for labels='hf' or 'shifted'")
    batch = batch.torch()
    return batch.labels_as("shifted"), batch.extra["pair_ids"], batch.extra["pair_sides"]


def _paired_segments(ids: Tensor, sides: Tensor) -> tuple[Tensor, Tensor]:
    """Segments of the chosen sides, rising, and of their rejected sides, int64 [pairs].

    A pair that is in the batch twice has its n-th chosen side with its n-th rejected one.
    Example: ids=[4, 4, 2, 2, -1], sides=[1, 0, 0, 1, -1] -> [1, 2] and [0, 3]
    """
    import torch

    chosen, rejected = ((sides == side).nonzero().flatten() for side in (0, 1))
    chosen, rejected = (at[ids[at].argsort(stable=True)] for at in (chosen, rejected))
    if not torch.equal(ids[chosen], ids[rejected]):
        both = ids[chosen].tolist(), ids[rejected].tolist()
        pair = next(
            pair
            for pair in sorted({*both[0], *both[1]})
            if both[0].count(pair) != both[1].count(pair)
        )
        raise ValueError(
            f"pair {pair} has {both[0].count(pair)} chosen and {both[1].count(pair)} rejected "
            "sides in the batch; "
            "expected as many of each, so give the batch as PackedLoader made it"
        )
    order = chosen.argsort()
    return chosen[order], rejected[order]


def _label_log_probs(logits: Tensor, labels: Tensor, chunk: int) -> Tensor:
    """Log-probability of each label under softmax(logits), [T], 0 where it is -100.

    At least float32.
    """
    import torch
    from torch.nn.functional import cross_entropy
    from torch.utils.checkpoint import checkpoint

    def of_chunk(part: Tensor, targets: Tensor) -> Tensor:
        part = part.to(torch.promote_types(part.dtype, torch.float32))
        return -cross_entropy(part, targets, reduction="none", ignore_index=NO_LOSS)

    # Not slices: the gradient of each slice is as large as all logits.
    pieces = zip(logits.split(chunk), labels.split(chunk), strict=True)
    return torch.cat(
        [checkpoint(of_chunk, part, targets, use_reentrant=False) for part, targets in pieces]
    )
