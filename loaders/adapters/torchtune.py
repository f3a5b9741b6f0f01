"""Batches for torchtune."""

from packprep.schemas.columns import NO_LOSS

from ..batch import PackedBatch, Tensor
from ..rows import Rows
from .boundaries import to_flex_block_mask, to_seq_idx
from .fields import as_tensors, labels_of


def to_torchtune(
    batch: PackedBatch | Rows, *, padding_idx: int = 0, ignore_idx: int = NO_LOSS
) -> dict[str, Tensor]:
    """Batch of torchtune's padded_collate_packed.

    tokens, labels, input_pos int64 [1, T], labels unshifted, mask.

    mask: bool [1, T, T], True where a token sees another; for a batch on a GPU a BlockMask, as in
    torchtune. padding_idx, ignore_idx: torchtune's recipes pass them to a collate_fn. Nothing is
    padded, so padding_idx has no effect; ignore_idx is the label without loss. Tested with
    PackedDataset and models of torchtune 0.6.1.
    """
    batch = as_tensors(batch)
    labels = labels_of(batch, "hf")
    if batch.tokens.is_cuda:
        mask = to_flex_block_mask(batch)
    else:
        segment = to_seq_idx(batch)
        mask = (segment[:, :, None] == segment[:, None, :]).tril()
    return {
        "tokens": batch.tokens[None],
        "labels": labels.masked_fill(labels == NO_LOSS, ignore_idx)[None],
        "input_pos": batch.position_ids[None],
        "mask": mask,
    }
