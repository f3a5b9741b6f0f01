"""Batches for Forgather."""

from typing import Any

from ..batch import PackedBatch
from ..rows import Rows
from .fields import as_tensors, sequence_fields


def to_forgather(batch: PackedBatch | Rows) -> dict[str, Any]:
    """Fields of Forgather's DataCollatorForCausalLM on packed sequences, and use_cache False.

    input_ids, labels, position_ids int64 [1, T].

    Do not give its own collator these shards' rows: there document_starts means offsets in the
    pack, not in documents. Proven with the models and Trainers of transformers 4.57.6 and 5.23.
    """
    return sequence_fields(as_tensors(batch))
