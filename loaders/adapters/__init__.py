"""Batches in; fields for each trainer out, and a check that a model keeps documents apart."""

# Each adapter takes a PackedBatch, or the rows of a `load_from_disk` dataset, so it is also a
# collate_fn or data_collator. It returns one sequence [1, T] without the attention_mask [1, T] that
# such trainers know: with that mask, even one of ones, transformers ignores the boundaries, and
# documents see each other with no error. With a cache it ignores them too, so use_cache=False is
# among the fields. Labels are in the trainer's convention, whatever the batch has.
# `scripts/check_trainers` runs each adapter in its trainer; docs/train/index.md has the versions.

from .as_sequence import to_axolotl, to_forgather
from .boundaries import (
    seen_until,
    to_block_sparse,
    to_flex_block_mask,
    to_seq_idx,
    tree_mask,
)
from .guard import guard
from .isolation import Isolation, verify_isolation
from .llama_factory import to_llama_factory
from .megatron import to_megatron
from .olmo import to_olmo
from .padded import to_padded
from .torchtitan import to_torchtitan
from .torchtune import to_torchtune
from .transformers import to_flattening, to_hf, to_hf_4d
from .trl import check_trl, to_trl, to_trl_row

__all__ = [
    "Isolation",
    "check_trl",
    "guard",
    "seen_until",
    "to_axolotl",
    "to_block_sparse",
    "to_flattening",
    "to_flex_block_mask",
    "to_forgather",
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
    "to_trl_row",
    "tree_mask",
    "verify_isolation",
]
