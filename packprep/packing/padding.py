"""Padding of batches of single documents, which packing avoids."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from packprep.support.arrays import Int32, Int64
from packprep.support.hashing import Purpose, mix, stream


@dataclass(frozen=True)
class BatchPadding:
    """Batches in which each document is padded to the longest of its batch.

    lengths: int32 [documents], tokens of each in the order of the batches, 1 or more.
    batch: documents of a batch; the last one may have fewer.
    """

    lengths: Int32
    batch: int

    @cached_property
    def _longest(self) -> Int32:
        """Longest document of each batch, [batches]."""
        starts = np.arange(0, len(self.lengths), self.batch)
        return np.maximum.reduceat(self.lengths, starts) if len(starts) else self.lengths

    @cached_property
    def _sizes(self) -> Int64:
        """Documents of each batch, [batches]."""
        firsts = self.batch * np.arange(len(self._longest))
        return np.minimum(len(self.lengths) - firsts, self.batch)

    @property
    def tokens(self) -> int:
        """Tokens of the documents."""
        return int(self.lengths.sum(dtype=np.int64))

    @property
    def padded(self) -> int:
        """Places of the batches, padding included."""
        return int((self._longest * self._sizes).sum())

    @property
    def attended(self) -> int:
        """Pairs of tokens that a full attention matrix needs."""
        return int((self.lengths.astype(np.int64) ** 2).sum())

    @property
    def computed(self) -> int:
        """Pairs of tokens that it has."""
        return int((self._longest.astype(np.int64) ** 2 * self._sizes).sum())

    @property
    def share(self) -> float:
        """Share of the places that is padding, 0..1."""
        return 1 - self.tokens / self.padded if self.padded else 0.0

    @property
    def times(self) -> float:
        """Places of the batches for each token: the speed-up if time were in proportion."""
        return self.padded / self.tokens if self.tokens else 1.0

    @property
    def attention_share(self) -> float:
        """Share of the attention matrices that is padding, 0..1."""
        return 1 - self.attended / self.computed if self.computed else 0.0


def batch_padding(
    lengths: Sequence[NDArray[np.int32]], batch: int, max_length: int, seed: int | None = None
) -> BatchPadding:
    """Padding of batches of `batch` documents, as they come or in a seeded random order.

    lengths: of windows, [documents] each, tokens; documents without tokens are in no batch, longer
    ones are cut at max_length.

    Example: 8 documents of 512, 256, 1024, 128, 768, 2048, 384 and 640 tokens -> 64.8 % padding
    """
    joined = lengths[0] if len(lengths) == 1 else np.concatenate([np.zeros(0, np.int32), *lengths])
    documents = np.minimum(joined, np.int32(max_length))
    if not documents.all():
        documents = documents[documents > 0]
    if seed is not None:
        order = np.argsort(mix(stream(seed, Purpose.PLAN_PADDING), np.arange(len(documents))))
        documents = documents[order]
    return BatchPadding(documents, batch)
