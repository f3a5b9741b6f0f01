"""Batches for Megatron-Core."""

from functools import cache
from typing import Any

from packprep.schemas.columns import NO_LOSS

from ..batch import PackedBatch
from ..rows import Rows
from .fields import as_tensors, labels_of


def to_megatron(batch: PackedBatch | Rows) -> dict[str, Any]:
    """Fields of Megatron-Core's models.

    tokens, position_ids, labels of the next token int64 [1, T], loss_mask float32 [1, T], and
    packed_seq_params, the keyword arguments of PackedSeqParams.

    cu_seqlens_q and _kv: int32 [S + 1]; where segments end in padding they count real tokens, and
    cu_seqlens_q_padded and _kv_padded are the boundaries with padding. max_seqlen_q and _kv: int.
    total_tokens: int, T, from which hybrid models number the segments for their state-space layers;
    left out if the installed Megatron-Core is older than 0.17 and has no such field. Tested with
    PackedSeqParams of Megatron-Core 0.16.1; follows the code of its main branch (d98e8a64).
    """
    batch = as_tensors(batch)
    import torch

    labels = labels_of(batch, "shifted")
    cu_seqlens = batch.cu_seqlens
    params: dict[str, Any] = {
        "qkv_format": "thd",
        "max_seqlen_q": batch.max_seqlen,
        "max_seqlen_kv": batch.max_seqlen,
    }
    if _takes_total_tokens():
        params["total_tokens"] = len(batch)
    if batch.segment_lengths is not None:
        params |= {"cu_seqlens_q_padded": cu_seqlens, "cu_seqlens_kv_padded": cu_seqlens}
        cu_seqlens = torch.zeros_like(cu_seqlens)
        cu_seqlens[1:] = batch.segment_lengths.cumsum(0)
    params |= {"cu_seqlens_q": cu_seqlens, "cu_seqlens_kv": cu_seqlens}
    return {
        "tokens": batch.tokens[None],
        "position_ids": batch.position_ids[None],
        # Megatron looks up every label before it applies the mask, so -100 would be out of range.
        "labels": torch.where(labels == NO_LOSS, 0, labels)[None],
        "loss_mask": (labels != NO_LOSS).float()[None],
        "packed_seq_params": params,
    }


@cache
def _takes_total_tokens() -> bool:
    """Return False only if the installed Megatron-Core has no PackedSeqParams.total_tokens."""
    try:
        from megatron.core.packed_seq_params import PackedSeqParams
    except ImportError:
        return True
    return "total_tokens" in PackedSeqParams.__dataclass_fields__
