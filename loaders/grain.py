"""Packs by number for Grain, with the fields that MaxText's trainer reads."""

import numpy as np

from ..schemas.arrays import Int32
from ..schemas.columns import FILLER, NO_LOSS
from .shards import PackedShards

_PARTS = ("", "_position", "_segmentation")


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
        if "pair_sides" in shards.columns:
            raise ValueError(
                f"{shards.path} has preference pairs, and MaxText would train on the rejected "
                "answers; use PackedLoader(sides='chosen')"
            )
        self.shards, self.length = shards, length or shards.max_length
        if self.length < shards.max_length:
            raise ValueError(
                f"length is {length}; {shards.path} has packs of up to {shards.max_length} tokens"
            )

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, index: int) -> dict[str, Int32]:
        pack = self.shards[index]
        lengths, positions = np.diff(pack["cu_seqlens"]), pack["position_ids"].astype(np.int32)
        segments = np.repeat(np.arange(1, len(lengths) + 1), lengths)
        real = pack.get("segment_lengths", lengths)
        real = np.where(pack.get("document_ids", real) == FILLER, 0, real)
        inside = positions < np.repeat(real, lengths)
        labels = pack.get("labels", pack["tokens"])
        trained = np.append(inside[1:] & (positions[1:] > 0) & (labels[1:] != NO_LOSS), False)
        inputs = (pack["tokens"], positions, segments)
        targets = (np.append(labels[1:], 0), positions, segments * trained)
        values = [each * inside for each in inputs]
        values += [targets[0] * trained, targets[1] * inside, targets[2] * inside]
        names = [kind + part for kind in ("inputs", "targets") for part in _PARTS]
        room = (0, self.length - len(positions))
        return {
            name: np.pad(value.astype(np.int32), room)
            for name, value in zip(names, values, strict=True)
        }

    def __repr__(self) -> str:
        """Grain compares this with its checkpoint, so it names the packs and not their place."""
        return (
            f"MaxTextSource(fingerprint={self.shards.fingerprint:x}, packs={len(self)}, "
            f"length={self.length})"
        )
