"""Fields that several trainers share: a batch as tensors, its labels, its token fields."""

from typing import Any

from ..batch import LabelKind, PackedBatch, Tensor
from ..rows import Rows, batch_from_rows
from ..shape import has_rejected, refuse_pairs
from ..trees import refuse_trees


def as_tensors(
    batch: PackedBatch | Rows, *, trees: bool = False, sides: bool = False
) -> PackedBatch:
    """The batch as tensors.

    trees, sides: True if the caller knows trees, or both sides of pairs; else ValueError for them.
    """
    batch = batch if isinstance(batch, PackedBatch) else batch_from_rows(batch)
    refuse_trees(batch.segment_parents is not None and not trees, "this adapter")
    refuse_pairs(not sides and has_rejected(batch), "this adapter")
    return batch.torch()


def labels_of(batch: PackedBatch, kind: LabelKind) -> Tensor:
    labels = batch.labels_as(kind)
    if labels is None:
        raise ValueError("the batch has no labels; ask PackedLoader for labels='hf' or 'shifted'")
    return labels


def sequence_fields(batch: PackedBatch) -> dict[str, Any]:
    """Fields input_ids, position_ids and unshifted labels, int64 [1, T].

    No labels if the batch has none. use_cache is False: transformers before 5 turns the cache on in
    a Trainer, and every version does in a bare call.
    """
    fields = {
        "input_ids": batch.tokens[None],
        "position_ids": batch.position_ids[None],
        "use_cache": False,
    }
    return fields if batch.labels is None else fields | {"labels": labels_of(batch, "hf")[None]}
