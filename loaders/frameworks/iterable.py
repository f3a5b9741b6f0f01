"""The batches of a loader as a streaming dataset of Hugging Face."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..batch import PackedBatch
from ..loader import PackedLoader
from ..trees import refuse_trees

# Rows of a shard of the dataset: so many are read again at most when it resumes.
_ROWS = 64


def to_iterable_dataset(loader: PackedLoader) -> Any:
    """A `datasets.IterableDataset` of the loader's epoch: a row per batch, in the same order.

    A row has the arrays tokens, position_ids, cu_seqlens, and as the loader has them labels
    (unshifted), document_ids, segment_lengths, loss_weights and its columns, so `[row]` is what the
    adapters take: `DataLoader(dataset, batch_size=1, collate_fn=to_hf)`.

    The rows are this rank's. Its workers, or `split_dataset_by_node` for a loader of rank=0 and
    world_size=1, each have their share, exactly once. `state_dict` and `load_state_dict` of the
    dataset resume exactly and make at most 63 batches again. Make the dataset of another epoch
    after `set_epoch`.
    """
    from datasets import IterableDataset

    firsts = [*range(0, len(loader), _ROWS)]
    return IterableDataset.from_generator(_rows, gen_kwargs={"first": firsts, "loader": loader})


def _rows(first: list[int], loader: PackedLoader) -> Iterator[dict[str, NDArray[Any]]]:
    """Rows of the steps first to first + 63, for each first; `datasets` divides the list."""
    for start in first:
        for step in range(start, min(start + _ROWS, len(loader))):
            yield _row(loader[step])


def _row(batch: PackedBatch) -> dict[str, NDArray[Any]]:
    refuse_trees(batch.segment_parents is not None, "to_iterable_dataset")
    values = {
        "tokens": batch.tokens,
        "position_ids": batch.position_ids,
        "cu_seqlens": batch.cu_seqlens,
        "labels": batch.labels_as("hf"),
        "document_ids": batch.document_ids,
        "segment_lengths": batch.segment_lengths,
        "loss_weights": batch.loss_weights,
        **batch.extra,
    }
    return {name: np.asarray(value) for name, value in values.items() if value is not None}
