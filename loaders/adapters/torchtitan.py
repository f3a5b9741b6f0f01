"""Batches for torchtitan."""

from typing import Literal

from ..batch import PackedBatch, Tensor
from ..rows import Rows
from .fields import as_tensors, labels_of


def to_torchtitan(
    batch: PackedBatch | Rows, *, version: Literal["0.3", "main"]
) -> tuple[dict[str, Tensor], Tensor]:
    """Batch of torchtitan's dataloader.

    ({"input", "positions"}, labels of the next token), all int64.

    version: "0.3" for release 0.3.0, [1, T]; "main" for later code (since 73aed7f6c), [T]. There is
    no default: main accepts [1, T] without an error and merges the documents. The trainer makes its
    masks for Flex and Varlen attention from positions; with its SDPA, documents see each other.
    Tested with create_varlen_metadata_for_document and get_document_mask_mod of 0.3.0; "main"
    follows the code of b5bcd76c.
    """
    if version not in ("0.3", "main"):
        raise ValueError(
            f"torchtitan's version is {version!r}; expected '0.3', for [1, T], or 'main', for [T]"
        )
    batch = as_tensors(batch)
    fields = {"input": batch.tokens, "positions": batch.position_ids}
    labels = labels_of(batch, "shifted")
    if version == "main":
        return fields, labels
    return {name: value[None] for name, value in fields.items()}, labels[None]
