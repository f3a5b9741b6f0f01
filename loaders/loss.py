"""Loss over packs: weights for every token, so that packs train like separate documents.

A mean over the tokens of a pack weighs documents by their length, and by the other documents in the
pack. Weights correct that at no cost: the loss is (weights * losses).sum(), and the sum may be
split across ranks and context-parallel slices. Nothing here loops over segments.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..schemas.columns import NO_LOSS
from .batch import PackedBatch, Tensor
from .context_parallel import ContextLayout, context_gather

MODES = ("token", "segment", "document")
Mode = Literal["token", "segment", "document"] | int
"""Unit of `loss_weights`; a number: that many segments."""


def loss_weights(
    cu_seqlens: Any, mask: Any, mode: Mode = "token", document_ids: Any = None, *, dtype: Any = None
) -> Any:
    """Weight of each token's loss, float32 [T]: the weights of every unit add up to 1.

    0 where the mask is False.

    cu_seqlens: int32 [S + 1]. mask: bool [T], True where there is a loss (labels != -100). mode:
    the unit. "token": each token, so the weights are the mask. "segment": each segment, so sums of
    weighted losses are sums of segment means. "document": each document of the batch with all its
    pieces, by document_ids [S]; pieces in another batch are another unit. (Turns of a row that are
    documents of their own share its id: PackedLoader tells them apart.) A number: so many segments
    one after another, as a micro-batch of single sequences; the last unit may have fewer. Divide by
    the number of units on all ranks (the sum of all weights) for the mean. numpy arrays give a
    numpy array, tensors a tensor on their device. dtype: of the result, float32 by default.
    ValueError for another mode.

    Example: cu_seqlens=[0, 1, 4], mask=[1, 0, 1, 1], mode="segment" -> [1, 0, .5, .5]
    """
    check_mode(mode)
    if mode == "document" and document_ids is None:
        raise ValueError(
            "mode is 'document' but there are no document_ids; build with that column or choose "
            "'segment'"
        )
    if isinstance(mask, np.ndarray):
        dtype = dtype or np.float32
        if mode == "token":
            return mask.astype(dtype)
        ids = document_ids if mode == "document" else None
        if isinstance(mode, int):
            ids = np.arange(len(cu_seqlens) - 1) // mode
        return _numpy_weights(cu_seqlens, mask, ids, dtype)
    import torch

    dtype = dtype or torch.float32
    if mode == "token":
        return mask.to(dtype)
    ids = document_ids if mode == "document" else None
    if isinstance(mode, int):
        ids = torch.arange(len(cu_seqlens) - 1, device=mask.device) // mode
    return _torch_weights(cu_seqlens, mask, ids, dtype)


def check_mode(mode: object, name: str = "mode") -> None:
    """Raise ValueError for an unknown unit of `loss_weights`. name: of the argument."""
    if mode not in MODES and (type(mode) is not int or mode < 1):
        raise ValueError(
            f"{name} is {mode!r}; expected {', '.join(MODES)}, or a number of segments"
        )


def _numpy_weights(
    cu_seqlens: NDArray[np.int32],
    mask: NDArray[np.bool_],
    ids: NDArray[np.int64] | None,
    dtype: Any,
) -> NDArray[Any]:
    before = np.zeros(len(mask) + 1, np.int32)
    np.cumsum(mask, out=before[1:])
    at_boundaries = before[cu_seqlens]
    counts = at_boundaries[1:] - at_boundaries[:-1]
    if ids is not None:
        _, unit = np.unique(ids, return_inverse=True)
        counts = np.bincount(unit, counts)[unit]
    each = (1 / np.maximum(counts, 1)).astype(dtype)
    weights: NDArray[Any] = np.repeat(each, cu_seqlens[1:] - cu_seqlens[:-1])
    weights *= mask
    return weights


def _torch_weights(cu_seqlens: Tensor, mask: Tensor, ids: Tensor | None, dtype: Any) -> Tensor:
    import torch

    boundaries = cu_seqlens.long()
    before = torch.zeros(len(mask) + 1, dtype=torch.int32, device=mask.device)
    torch.cumsum(mask, 0, dtype=torch.int32, out=before[1:])
    counts = before[boundaries].diff()
    if ids is not None:
        unit = torch.unique(ids, return_inverse=True)[1]
        counts = torch.zeros_like(counts).index_add_(0, unit, counts)[unit]
    each = counts.clamp(min=1).to(dtype).reciprocal()
    return torch.repeat_interleave(each, boundaries.diff(), output_size=len(mask)) * mask


def segment_means(values: Tensor, mask: Tensor | None, cu_seqlens: Tensor) -> Tensor:
    """Mean of the values of each segment where the mask is True, or of all of them without a mask.

    Returns [S], 0 for a segment where the mask is False everywhere; differentiable.

    values: float [T]. mask: bool [T], or None. The sum of the result is slime's sum of sample
    means, whose samples are responses: pass the mask of their tokens. If the mask is known ahead,
    (loss_weights * values).sum() is the same and faster.

    Example: values=[1, 2, 3, 6], mask=[1, 1, 0, 1], cu_seqlens=[0, 3, 4] -> [1.5, 6]
    """
    import torch

    offsets = cu_seqlens.long()
    if mask is None:
        mask = torch.ones_like(values, dtype=torch.bool)
    kept = values * mask
    sums = torch.segment_reduce(kept, "sum", offsets=offsets, unsafe=True, initial=0)
    counts = torch.segment_reduce(
        mask.to(values.dtype), "sum", offsets=offsets, unsafe=True, initial=0
    )
    return sums / counts.clamp(min=1)


def selective_log_probs(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    chunk: int = 1024,
) -> Tensor:
    """Log-probability of each label under softmax(hidden @ weight.T).

    Returns [T], 0 where the label is -100; float32, or float64 if the logits are.

    hidden: [T, width]. weight: [vocabulary, width]. labels: int64 [T], of the next token. Processes
    `chunk` tokens at a time and computes their logits again in the backward pass, so memory is
    chunk * vocabulary and not T * vocabulary, for about twice the time.
    """
    import torch
    from torch.nn.functional import cross_entropy

    def chunk_log_probs(part: Tensor, targets: Tensor) -> tuple[Tensor]:
        return (-cross_entropy(_logits(part, weight), targets, reduction="none"),)

    return torch.cat(_in_chunks(chunk_log_probs, hidden, labels, chunk)[0])


def log_probs_and_entropy(
    hidden: Tensor,
    weight: Tensor,
    batch: PackedBatch,
    *,
    chunk: int = 1024,
    cp_layout: ContextLayout = "contiguous",
    cp_group: Any = None,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each trained token, and entropy of the prediction, each at its own place.

    Returns two tensors [T] that go with `batch.tokens` and the columns of `batch.extra`, whatever
    the convention of the labels: 0 where the token has no label. float32, or float64 if the logits
    are. Differentiable, in one pass over the logits, and again in the backward pass; see
    `selective_log_probs` for its memory.

    hidden: [T, width] or [1, T, width], last hidden states of the batch. weight: [vocabulary,
    width], of the output layer. batch: with labels. For another temperature, divide
    `hidden` by it.

    If the batch is a slice of `context_slice`, all ranks of `cp_group` (by default all processes)
    give theirs and get the values of the full batch; see `context_gather` for the gradient.
    cp_layout: that of the slices.
    """
    import torch

    if batch.labels is None:
        raise ValueError("the batch has no labels; pack it with labels='hf' or 'shifted'")
    batch = batch.torch()
    hidden = hidden[0] if hidden.dim() == 3 and len(hidden) == 1 else hidden
    labels = batch.labels_as("shifted")

    def both(part: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        every = _logits(part, weight).log_softmax(-1)
        chosen = every.gather(-1, targets.clamp(min=0)[:, None])[:, 0]
        entropy = -(every.exp() * every).sum(-1)
        trained = targets != NO_LOSS
        return torch.where(trained, chosen, 0), torch.where(trained, entropy, 0)

    parts = _in_chunks(both, hidden, labels.to(hidden.device), chunk)
    values = torch.stack([torch.cat(part) for part in parts], 1)
    if len(values) < int(batch.cu_seqlens[-1]):
        values = context_gather(values, batch.cu_seqlens, cp_layout, cp_group)
    values = values.roll(1, 0)  # of the next token until here; the last one has no label
    log_probs, entropy = values.unbind(1)
    return log_probs, entropy


def _logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """Logits in float32, or in float64 if they are."""
    import torch

    logits = hidden @ weight.T
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _in_chunks(
    function: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
    values: Tensor,
    labels: Tensor,
    chunk: int,
) -> list[tuple[Tensor, ...]]:
    """Results of a function of `chunk` tokens at a time, [results] of [chunks].

    They are computed again in the backward pass. Splits and does not slice: the gradient of each
    slice would be as large as all values.
    """
    from torch.utils.checkpoint import checkpoint

    pieces = zip(values.split(chunk), labels.split(chunk), strict=True)
    parts: list[tuple[Tensor, ...]] = [
        checkpoint(function, part, targets, use_reentrant=False) for part, targets in pieces
    ]
    return [*zip(*parts, strict=True)]


class PairLogProbs(NamedTuple):
    """Log-probabilities of the preference pairs of a batch, in the order of their chosen sides.

    Each field is [pairs]. `chosen / chosen_tokens` is the mean over the tokens of a side, for
    losses that are normalised by length.
    """

    chosen: Tensor
    """sum over the trained tokens of each chosen side; float32, or float64 if the values are"""
    rejected: Tensor
    """the same for the rejected sides"""
    chosen_tokens: Tensor
    """int64: number of trained tokens of each chosen side"""
    rejected_tokens: Tensor
    """int64: number of trained tokens of each rejected side"""
    pair_ids: Tensor
    """int64: input row of each pair"""


def pair_log_probs(values: Tensor, batch: PackedBatch, chunk: int = 1024) -> PairLogProbs:
    """Sum the log-probabilities of the trained tokens of both sides of each pair, for DPO.

    Differentiable.

    values: the model's logits of the batch, float [T, vocabulary] or [1, T, vocabulary], or the
    log-probability of each next token, float [T], from `selective_log_probs` with
    `batch.labels_as("shifted")`, which never keeps all logits in memory. batch: from a PackedLoader
    with sides="both", or from `batch_from_rows`, with labels "hf" or "shifted". The chosen side is
    side 0, the first name of --pairs. A token with a label is trained. Filler and padding
    belong to no pair, and a batch of filler has no pairs. A pair that is in the batch twice counts
    twice.

    Reads the logits `chunk` tokens at a time, in float32 at least, and again in the backward pass.
    Besides the logits this needs memory for chunk * vocabulary values, and for the gradient of the
    logits, twice while its parts are joined. Waits for a GPU, because the number of pairs depends
    on the batch. ValueError for a batch without the pair columns or without labels, and for values
    of another length than the batch.

    Example: sides of pair 7 with log-probabilities [-1, -2 | -4] of trained tokens -> chosen [-3],
    rejected [-4]
    """
    import torch

    labels, ids, sides = _pair_fields(batch)
    if values.dim() > 1 and len(values) == 1:
        values = values[0]  # a pair has two tokens or more, so this is the dimension of sequences
    if len(values) != len(labels) or values.dim() > 2:
        raise ValueError(
            f"values have shape {[*values.shape]} and the batch has {len(labels)} tokens; expected "
            "logits [T, vocabulary] or log-probabilities [T] of the next token, one for every "
            "token of the batch"
        )
    labels, ids, sides = (array.to(values.device) for array in (labels, ids, sides))
    offsets = batch.torch().cu_seqlens.to(values.device).long()
    if int(offsets[-1]) != len(labels):
        raise ValueError(
            f"the batch has {len(labels)} tokens of {int(offsets[-1])}, so it is a "
            "context-parallel slice; gather the log-probabilities of all ranks and pass them with "
            "the full batch"
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
            f"the batch has no {' and no '.join(missing)}; build with --pairs, and use "
            "PackedLoader(..., sides='both')"
        )
    if batch.labels is None:
        raise ValueError("the batch has no labels; ask PackedLoader for labels='hf' or 'shifted'")
    batch = batch.torch()
    return batch.labels_as("shifted"), batch.extra["pair_ids"], batch.extra["pair_sides"]


def _paired_segments(ids: Tensor, sides: Tensor) -> tuple[Tensor, Tensor]:
    """Segments of the chosen sides, ascending, and of their rejected sides, int64 [pairs].

    If a pair is in the batch twice, its n-th chosen side goes with its n-th rejected side.

    Example: ids=[4, 4, 2, 2, -1], sides=[1, 0, 0, 1, -1] -> [1, 2] and [0, 3]
    """
    import torch

    chosen, rejected = ((sides == side).nonzero().flatten() for side in (0, 1))
    chosen, rejected = (
        segments[ids[segments].argsort(stable=True)] for segments in (chosen, rejected)
    )
    if not torch.equal(ids[chosen], ids[rejected]):
        both = ids[chosen].tolist(), ids[rejected].tolist()
        pair = next(
            pair
            for pair in sorted({*both[0], *both[1]})
            if both[0].count(pair) != both[1].count(pair)
        )
        raise ValueError(
            f"pair {pair} has {both[0].count(pair)} chosen and {both[1].count(pair)} rejected "
            "sides in the batch; expected equal numbers, so pass the batch as PackedLoader made it"
        )
    order = chosen.argsort()
    return chosen[order], rejected[order]


def _label_log_probs(logits: Tensor, labels: Tensor, chunk: int) -> Tensor:
    """Log-probability of each label under softmax(logits), [T]; 0 where the label is -100.

    float32 at least.
    """
    import torch
    from torch.nn.functional import cross_entropy

    def chunk_log_probs(part: Tensor, targets: Tensor) -> tuple[Tensor]:
        part = part.to(torch.promote_types(part.dtype, torch.float32))
        return (-cross_entropy(part, targets, reduction="none", ignore_index=NO_LOSS),)

    return torch.cat(_in_chunks(chunk_log_probs, logits, labels, chunk)[0])
