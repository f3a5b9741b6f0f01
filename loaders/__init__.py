"""Packed shards in; packs, batches and the fields of each trainer out, with numpy and pyarrow."""

from packprep.schemas.plans.cost import Cost

from .adapters import (
    Isolation,
    check_trl,
    guard,
    seen_until,
    to_axolotl,
    to_block_sparse,
    to_flattening,
    to_flex_block_mask,
    to_forgather,
    to_hf,
    to_hf_4d,
    to_llama_factory,
    to_megatron,
    to_olmo,
    to_padded,
    to_seq_idx,
    to_torchtitan,
    to_torchtune,
    to_trl,
    to_trl_row,
    tree_mask,
    verify_isolation,
)
from .attention import attention_backend, varlen_attention
from .batch import PackedBatch
from .context_parallel import context_gather, context_indices, context_slice
from .frameworks import (
    MaxTextSource,
    PackMetrics,
    TorchtitanSource,
    log_pack_metrics,
    to_data_module,
    to_iterable_dataset,
    to_node,
)
from .loader import PackedLoader
from .loss import (
    PairLogProbs,
    log_probs_and_entropy,
    loss_weights,
    pair_log_probs,
    segment_means,
    selective_log_probs,
    tree_loss,
)
from .loss_log import LossLog
from .pack import Pack, Segment
from .rows import batch_from_rows
from .samples.packing import pack_sequences
from .samples.unpacking import unpack
from .shape import BatchShape
from .shards import PackedShards

__all__ = [
    "BatchShape",
    "Cost",
    "Isolation",
    "LossLog",
    "MaxTextSource",
    "Pack",
    "PackMetrics",
    "PackedBatch",
    "PackedLoader",
    "PackedShards",
    "PairLogProbs",
    "Segment",
    "TorchtitanSource",
    "attention_backend",
    "batch_from_rows",
    "check_trl",
    "context_gather",
    "context_indices",
    "context_slice",
    "guard",
    "log_pack_metrics",
    "log_probs_and_entropy",
    "loss_weights",
    "pack_sequences",
    "pair_log_probs",
    "seen_until",
    "segment_means",
    "selective_log_probs",
    "to_axolotl",
    "to_block_sparse",
    "to_data_module",
    "to_flattening",
    "to_flex_block_mask",
    "to_forgather",
    "to_hf",
    "to_hf_4d",
    "to_iterable_dataset",
    "to_llama_factory",
    "to_megatron",
    "to_node",
    "to_olmo",
    "to_padded",
    "to_seq_idx",
    "to_torchtitan",
    "to_torchtune",
    "to_trl",
    "to_trl_row",
    "tree_loss",
    "tree_mask",
    "unpack",
    "varlen_attention",
    "verify_isolation",
]
