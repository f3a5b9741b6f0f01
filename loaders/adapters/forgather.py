"""Batches for Forgather."""

from typing import Any

from ..batch import PackedBatch
from ..rows import Rows
from .fields import as_tensors, sequence_fields


def to_forgather(batch: PackedBatch | Rows) -> dict[str, Any]:
    """Fields of Forgather's DataCollatorForCausalLM on packed sequences, and use_cache False.

    input_ids, labels, position_ids int64 [1, T].

    Rows that Forgather packed, whose documents end with EOS, are
    `to_forgather(batch_from_rows(rows, boundaries="eos", token=eos_token_id))`: positions restart
    as in its get_pos_ids_for_packed_sequence. Unlike there, the first token of a document has no
    label, which only the document before it could predict.

    Do not give the rows of these shards to Forgather's own collator: it reads document_starts as
    offsets in the pack, and here they are offsets in documents. Tested with the models and Trainers
    of transformers 4.57.6 and 5.23.
    """
    return sequence_fields(as_tensors(batch))
