"""Batches for trainers that take one sequence as it is: Axolotl and Forgather."""

from typing import Any

from ..batch import PackedBatch
from ..rows import Rows
from .fields import as_tensors, sequence_fields


def to_axolotl(batch: PackedBatch | Rows) -> dict[str, Any]:
    """Fields of Axolotl's V2 collator for packed sequences.

    input_ids, position_ids, labels int64 [1, T]; use_cache False.

    No attention_mask: since 0.19 Axolotl drops it too. Do not set sample_packing: true for packed
    rows: Axolotl's add_position_ids would then number a pack as one document. Tested in Trainers of
    transformers 4.57.6 and 5.23, and with the collator of Axolotl 0.19.0 in those of 5.16.1, which
    it requires, and 5.23.
    """
    return sequence_fields(as_tensors(batch))


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
