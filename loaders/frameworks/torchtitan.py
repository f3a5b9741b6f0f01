"""Packs by number for torchtitan's Grain dataloader."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from packprep.schemas.columns import NO_LOSS

from ..shape import has_sides, refuse_pairs
from ..shards import PackedShards
from ..trees import refuse_trees


@dataclass(frozen=True, kw_only=True)
class TorchtitanSource:
    """Source of a `SingleDatasetConfig` of torchtitan: one TextSequence per pack.

    torchtitan shuffles the packs, gives each data-parallel rank its share, repeats and resumes.
    Packs are not packed again: a batch of torchtitan's is one pack and its padding, so build with
    --max-length of a batch's tokens. A longer pack is refused by torchtitan's collator.

    path: an output of `packprep build`, or its URL.
    split: its split. For torchtitan's main branch since 73aed7f6c; follows and was run with the
    code of b5bcd76c.
    """

    path: str
    split: str | None = None

    def build(self, **_: Any) -> "_TextSequences":
        """The source that torchtitan reads by number; its dataset applies the iteration policy."""
        return _TextSequences(PackedShards(self.path, split=self.split))


class _TextSequences:
    def __init__(self, shards: PackedShards) -> None:
        refuse_trees(shards.has_trees, "TorchtitanSource")
        refuse_pairs(has_sides(shards.column_kinds), "TorchtitanSource")
        self._shards = shards

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, index: int) -> Any:
        from torchtitan.components.data.dataset import TextSequence

        pack = self._shards[index]
        labels = (pack.tokens if pack.labels is None else pack.labels).astype(np.int64)
        labels[pack.cu_seqlens[:-1]] = NO_LOSS
        return TextSequence(
            input_ids=pack.tokens.astype(np.int64),
            labels=np.roll(labels, -1),
            positions=pack.position_ids.astype(np.int64),
        )
