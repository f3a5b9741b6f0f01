"""Batches for LLaMA-Factory."""

from typing import Any

from ..batch import PackedBatch
from ..rows import Rows
from .boundaries import block_diagonal_mask, segment_numbers
from .fields import as_tensors, sequence_fields


def to_llama_factory(batch: PackedBatch | Rows, *, mask_dtype: Any = None) -> dict[str, Any]:
    """Fields of LLaMA-Factory's neat_packing.

    input_ids, position_ids, labels int64 [1, T]; use_cache False.

    mask_dtype: None for flash-attention, where LLaMA-Factory drops the mask too; None is also right
    for SDPA, eager and flex. The model's dtype adds the mask that LLaMA-Factory gives SDPA and
    eager: attention_mask of that dtype [1, 1, T, T], 0 where a token sees another and the dtype's
    lowest value elsewhere. It has T * T values; filler sees nothing. Tested with the models and
    Trainers of transformers 4.57.6 and 5.23, and the SFT trainer and mask of LLaMA-Factory 0.9.5.
    """
    batch = as_tensors(batch)
    mask = (
        {}
        if mask_dtype is None
        else {"attention_mask": block_diagonal_mask(segment_numbers(batch), mask_dtype)}
    )
    return sequence_fields(batch) | mask
