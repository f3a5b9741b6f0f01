"""Fields that several trainers share: a batch as tensors, its labels, its token fields."""

from typing import Any

from packprep.schemas.columns import NO_LOSS

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
    a Trainer, and every version does in a bare call. See `loss_divisor` for num_items_in_batch.
    """
    fields: dict[str, Any] = {
        "input_ids": batch.tokens[None],
        "position_ids": batch.position_ids[None],
        "use_cache": False,
    }
    if batch.labels is None:
        return fields
    labels = labels_of(batch, "hf")
    return fields | loss_divisor(labels) | {"labels": labels[None]}


def loss_divisor(labels: Tensor) -> dict[str, Tensor | int]:
    """num_items_in_batch for labels in which nothing is trained, such as those of filler packs.

    The loss of transformers is then 0, and not NaN, the mean of no values. labels: int64, any
    shape. On a GPU the number of trained tokens is always there, as a tensor: to see whether it is
    needed would mean to wait for the GPU.
    """
    trained = labels != NO_LOSS
    if labels.device.type != "cpu":
        return {"num_items_in_batch": trained.sum().clamp(min=1)}
    return {} if bool(trained.any()) else {"num_items_in_batch": 1}
