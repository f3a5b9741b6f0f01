"""Packs by number for Grain, with the fields that MaxText's trainer reads."""

import numpy as np
from numpy.typing import NDArray

from packprep.schemas.columns import FILLER, NO_LOSS

from ..pack import Pack
from ..shape import has_sides, refuse_pairs
from ..shards import PackedShards
from ..trees import refuse_trees


class MaxTextSource:
    """A Grain RandomAccessDataSource with one pack per record, as Grain's packers give MaxText.

    `grain.MapDataset.source(MaxTextSource(shards))` shuffles, shards, batches and resumes as any
    dataset of Grain. Each record has six arrays, int32 [length]: inputs, inputs_position,
    inputs_segmentation (segments from 1, 0 for padding), targets (of the next token, already
    shifted), targets_position and targets_segmentation (0 where there is no loss: at the end of
    each segment, in padding, and at labels of -100). MaxText shifts across the ends of documents
    instead, and trains the last token of one on the first of the next.

    length: of every record; by default the shards' max_length. Pickles as the path of the shards.
    Follows the code of MaxText at e591f30c; tested with the packer of Grain 0.2.18.
    """

    def __init__(self, shards: PackedShards, length: int | None = None) -> None:
        refuse_trees(shards.has_trees, "MaxTextSource")
        refuse_pairs(has_sides(shards.column_kinds), "MaxTextSource")
        self.shards = shards
        self.length = shards.max_length if length is None else length
        if self.length < shards.max_length:
            raise ValueError(
                f"length is {length}; {shards.path} has packs of up to {shards.max_length} tokens"
            )

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, index: int) -> dict[str, NDArray[np.int32]]:
        fields = {name: np.zeros(self.length, np.int32) for name in _FIELDS}
        for name, values in _fields(self.shards[index]).items():
            fields[name][: len(values)] = values
        return fields

    def __repr__(self) -> str:
        """Grain compares this with its checkpoint, so it names the packs and not their place."""
        return (
            f"MaxTextSource(fingerprint={self.shards.fingerprint:x}, packs={len(self)}, "
            f"length={self.length})"
        )


_FIELDS = tuple(
    kind + part for kind in ("inputs", "targets") for part in ("", "_position", "_segmentation")
)


def _fields(pack: Pack) -> dict[str, NDArray[np.int32]]:
    """The arrays of a pack without the padding behind it."""
    lengths = np.diff(pack.cu_seqlens)
    segments = np.repeat(np.arange(1, len(lengths) + 1, dtype=np.int32), lengths)
    positions = pack.position_ids
    real = lengths if pack.segment_lengths is None else pack.segment_lengths
    if pack.document_ids is not None:
        real = np.where(pack.document_ids == FILLER, 0, real)
    inside = positions < np.repeat(real, lengths)
    labels = pack.tokens if pack.labels is None else pack.labels
    trained = np.append(inside[1:] & (positions[1:] > 0) & (labels[1:] != NO_LOSS), False)
    position, segmentation = positions * inside, segments * inside
    return {
        "inputs": pack.tokens * inside,
        "inputs_position": position,
        "inputs_segmentation": segmentation,
        "targets": np.where(trained, np.append(labels[1:], 0), 0),
        "targets_position": position,
        "targets_segmentation": segmentation * trained,
    }
