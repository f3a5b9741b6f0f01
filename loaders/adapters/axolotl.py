"""Batches for Axolotl."""

from typing import Any

from ..batch import PackedBatch
from ..rows import Rows
from .fields import as_tensors, sequence_fields


def to_axolotl(batch: PackedBatch | Rows) -> dict[str, Any]:
    """Fields of Axolotl's V2 collator where it packs.

    input_ids, position_ids, labels int64 [1, T]; use_cache False.

    No attention_mask: Axolotl itself drops it since 0.19. Do not set sample_packing: true for
    packed rows, for its add_position_ids then numbers a pack as one document. Proven in Trainers of
    transformers 4.57.6 and 5.23, and with the collator of Axolotl 0.19.0 in those of 5.16.1, which
    it requires, and 5.23.
    """
    return sequence_fields(as_tensors(batch))
