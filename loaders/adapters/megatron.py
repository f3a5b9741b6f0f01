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
    the _padded ones say where segments lie. max_seqlen_q and _kv: int. total_tokens: int, T, from
    which hybrid models number the segments for their state-space layers; left out where the
    installed Megatron-Core is older than 0.17 and has no such field. Proven with PackedSeqParams of
    Megatron-Core 0.16.1, and the rule of its main (d98e8a64).
    """
    import torch

    batch = as_tensors(batch)
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
        # Megatron looks labels up before it masks them.
        "labels": torch.where(labels == NO_LOSS, 0, labels)[None],
        "loss_mask": (labels != NO_LOSS).float()[None],
        "packed_seq_params": params,
    }


@cache
def _takes_total_tokens() -> bool:
    """False only where a Megatron-Core is installed whose PackedSeqParams has no total_tokens."""
    try:
        from megatron.core.packed_seq_params import PackedSeqParams
    except ImportError:
        return True
    return "total_tokens" in PackedSeqParams.__dataclass_fields__
