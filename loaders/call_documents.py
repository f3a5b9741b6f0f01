"""The documents of a batch, or of a call of a model: where each begins, and which to compare."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from ..schemas.columns import NO_LOSS
from .batch import PackedBatch, Tensor
from .masks import real_segments


class CallDocuments(NamedTuple):
    """The segments of a batch, its rows end to end.

    tokens: [B * T].
    width: T.
    bounds: 0, then the end of each segment; no segment is empty.
    compared: a bool for each segment, False for filler.
    """

    tokens: Any
    width: int
    bounds: list[int]
    compared: list[bool]


def documents_of_batch(batch: PackedBatch) -> CallDocuments:
    bounds = batch.cu_seqlens.unique_consecutive().tolist()
    real = real_segments(batch)[batch.cu_seqlens.diff() > 0].tolist()
    return _checked(CallDocuments(batch.tokens, len(batch), bounds, real))


def is_padded(call: Mapping[str, object], batch: PackedBatch) -> bool:
    """Return True if an adapter made rows of the batch; their documents are those of the rows."""
    tokens: Tensor = call.get("input_ids")
    return tokens is not None and bool(tokens.numel() != len(batch))


def documents_of_call(call: Mapping[str, object]) -> CallDocuments:
    """The documents of a call: one begins wherever any of its boundary fields says so."""
    tokens: Tensor = call["input_ids"]
    rows, width = tokens.shape
    begins = tokens.new_zeros(rows * width).bool()
    begins[::width] = True
    numbers = [*_segment_numbers(call)]
    told_apart = (values for values in numbers if bool((values > 1).any()))
    marks = [(values, 0) for values in (call.get("seq_idx"), *told_apart) if values is not None]
    if (positions := call.get("position_ids")) is not None:
        marks.append((positions, 1))
    ends: Tensor = call.get("cu_seq_lens_q")
    if not marks and ends is None:
        raise ValueError(
            f"the batch has {', '.join(call)}; expected position_ids, cu_seq_lens_q, seq_idx or "
            "segment_ids, which mark where documents begin; without them each token sees all "
            "tokens before it in its row"
        )
    if ends is not None:
        begins[ends[ends < len(begins)].long().to(begins.device)] = True
    for values, step in marks:
        flat = values.reshape(-1)[-len(begins) :]
        begins[1:] |= flat[1:] != flat[:-1] + step
    bounds = [*begins.nonzero()[:, 0].tolist(), len(begins)]
    compared = [True] * (len(bounds) - 1)
    for values in numbers:
        real = (values.reshape(-1) != 0).tolist()
        compared = [each and real[start] for each, start in zip(compared, bounds, strict=False)]
    labels: Tensor = call.get("labels")
    if labels is not None and labels.shape == tokens.shape:
        with_label = (labels.reshape(-1) != NO_LOSS).tolist()
        compared = [
            each and any(with_label[start:end])
            for each, (start, end) in zip(compared, pairwise(bounds), strict=True)
        ]
    return _checked(CallDocuments(tokens.reshape(-1), width, bounds, compared))


def _segment_numbers(call: Mapping[str, object]) -> Iterator[Any]:
    """Numbers of segments in a call, [B, T], 0 for padding: segment_ids, and those of its mask."""
    import torch

    if (numbers := call.get("segment_ids")) is not None:
        yield numbers
    mask = call.get("attention_mask")
    mask = mask.get("full_attention") if isinstance(mask, Mapping) else mask
    if isinstance(mask, torch.Tensor) and mask.dim() == 2:
        yield mask
    elif isinstance(mask, torch.Tensor) and mask.dim() == 4:
        seen = mask[:, 0] if mask.dtype == torch.bool else mask[:, 0] == 0
        begins = torch.ones_like(seen[:, 0])
        begins[:, 1:] = ~seen.diagonal(-1, 1, 2)
        yield begins.cumsum(1) * seen.diagonal(0, 1, 2)


def _checked(documents: CallDocuments) -> CallDocuments:
    if not any(
        compared and start % documents.width
        for start, compared in zip(documents.bounds, documents.compared, strict=False)
    ):
        raise ValueError(
            "no document of the batch has another before it, so none can leak; use a batch with "
            "several documents"
        )
    return documents
