"""Packed shards in; packs, batches and the fields of each trainer out, with numpy and pyarrow."""

from .attention import attention_backend, varlen_attention
from .batch import PackedBatch
from .context_parallel import context_gather, context_indices, context_slice
from .loader import PackedLoader
from .loss import (
    PairLogProbs,
    log_probs_and_entropy,
    loss_weights,
    pair_log_probs,
    segment_means,
    selective_log_probs,
)
from .shape import BatchShape
from .shards import PackedShards

__all__ = [
    "BatchShape",
    "PackedBatch",
    "PackedLoader",
    "PackedShards",
    "PairLogProbs",
    "attention_backend",
    "context_gather",
    "context_indices",
    "context_slice",
    "log_probs_and_entropy",
    "loss_weights",
    "pair_log_probs",
    "segment_means",
    "selective_log_probs",
    "varlen_attention",
]
