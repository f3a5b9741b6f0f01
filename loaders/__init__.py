"""Packed shards in; packs, batches and the fields of each trainer out, with numpy and pyarrow."""

from .adapters import (
    to_axolotl,
    to_hf,
    to_hf_4d,
    to_llama_factory,
    to_megatron,
    to_olmo,
    to_torchtitan,
    to_torchtune,
    to_trl,
)
from .attention import attention_backend, varlen_attention
from .batch import PackedBatch
from .context_parallel import context_gather, context_indices, context_slice
from .grain import MaxTextSource
from .guard import guard
from .isolation import Isolation, verify_isolation
from .loader import PackedLoader
from .loss import (
    PairLogProbs,
    log_probs_and_entropy,
    loss_weights,
    pair_log_probs,
    segment_means,
    selective_log_probs,
)
from .masks import to_flex_block_mask, to_seq_idx
from .metrics import PackMetrics, log_pack_metrics
from .padded import to_padded
from .rows import batch_from_rows
from .samples import pack_sequences, unpack
from .shape import BatchShape
from .shards import PackedShards

__all__ = [
    "BatchShape",
    "Isolation",
    "MaxTextSource",
    "PackMetrics",
    "PackedBatch",
    "PackedLoader",
    "PackedShards",
    "PairLogProbs",
    "attention_backend",
    "batch_from_rows",
    "context_gather",
    "context_indices",
    "context_slice",
    "guard",
    "log_pack_metrics",
    "log_probs_and_entropy",
    "loss_weights",
    "pack_sequences",
    "pair_log_probs",
    "segment_means",
    "selective_log_probs",
    "to_axolotl",
    "to_flex_block_mask",
    "to_hf",
    "to_hf_4d",
    "to_llama_factory",
    "to_megatron",
    "to_olmo",
    "to_padded",
    "to_seq_idx",
    "to_torchtitan",
    "to_torchtune",
    "to_trl",
    "unpack",
    "varlen_attention",
    "verify_isolation",
]
