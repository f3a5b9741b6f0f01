"""Counts from the boundaries of packs; no tokens are read."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..schemas.arrays import Int64
from ..schemas.columns import FILLER
from ..schemas.manifest import Output, packs
from ..schemas.views import list_view, segments_of

_READ = (
    *("tokens", "cu_seqlens", "seq_lengths", "segment_lengths"),
    *("document_ids", "turn_ids", "pair_sides"),
)
_PARTS = 24  # bits of the part of a row in a key


@dataclass
class Counts:
    """How often each value occurs."""

    of: Counter[int] = field(default_factory=Counter)

    def add(self, numbers: NDArray[Any]) -> None:
        """Count these too."""
        each, counts = np.unique(numbers.astype(np.int64), return_counts=True)
        self.of.update(dict(zip(each.tolist(), counts.tolist(), strict=True)))

    @property
    def sorted(self) -> tuple[Int64, Int64]:
        """Distinct values, ascending, and their counts, int64 [distinct] each."""
        each = np.array(sorted(self.of), np.int64)
        return each, np.array([self.of[value] for value in each.tolist()], np.int64)

    def quantile(self, share: float) -> int:
        """Smallest value that at least this share of all do not exceed; 0 if there are none."""
        each, counts = self.sorted
        if not len(each):
            return 0
        return int(each[np.searchsorted(np.cumsum(counts), share * counts.sum())])

    def below(self, limit: int) -> int:
        """Number of values below a limit."""
        return sum(count for value, count in self.of.items() if value < limit)


@dataclass(kw_only=True)
class Measured:
    """Counts of an output, all splits.

    documents: tokens in packs of each document, its pieces together. per_pack: segments of each
    pack. fill: tokens of each pack; none of these has padding. segments: those of documents.
    continued: those after the first one of a document. first: segments of the first packs, each its
    length and its document, FILLER for padding.
    """

    documents: Counts = field(default_factory=Counts)
    per_pack: Counts = field(default_factory=Counts)
    fill: Counts = field(default_factory=Counts)
    segments: int = 0
    continued: int = 0
    first: list[list[tuple[int, int]]] = field(default_factory=list)


def measure(output: Output, windows: list[Mapping[str, Any]], shown: int = 24) -> Measured:
    """Measure an output. windows: of its report. shown: packs of the picture.

    Memory is about 50 bytes for each segment of a window. Raises FormatError for a damaged shard.
    """
    measured = Measured()
    for split, counts in output.manifest.splits.items():
        sizes = [window["packs"] for window in windows if window["split"] == split]
        batches, left = _batches(output, split, measured, shown), 0
        for size in sizes if sum(sizes) == counts["packs"] else [counts["packs"]]:
            left += size
            keys, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
            while left > 0:
                number, of_batch, tokens = next(batches)
                left -= number
                keys.append(of_batch)
                lengths.append(tokens)
            _, places = np.unique(np.concatenate(keys), return_inverse=True)
            documents = np.bincount(places, np.concatenate(lengths)).astype(np.int64)
            measured.documents.add(documents)
            measured.segments += len(places)
            measured.continued += len(places) - len(documents)
    return measured


def _batches(
    output: Output, split: str, measured: Measured, shown: int
) -> Iterator[tuple[int, Int64, Int64]]:
    """Packs, keys and lengths [segments] of documents, batch by batch."""
    columns = {name: each for name, each in output.manifest.columns.items() if name in _READ}
    numbers = 0
    for part in packs(output, split, check=False):
        where = part.shard.path
        views = {key: list_view(part.batch, each.name, where) for key, each in columns.items()}
        flat = {name: view.flat for name, view in views.items()}
        segments, count = segments_of(views, where, part.first), len(part.batch)
        pack = np.repeat(np.arange(count), np.diff(segments.first))
        real = flat.get("segment_lengths", segments.ends - segments.starts).astype(np.int64)
        # Without ids each segment counts as a document: nothing tells pieces from them.
        own = np.arange(numbers, numbers + len(real))
        ids, numbers = flat.get("document_ids", own), numbers + len(real)
        kept = (ids != FILLER) & (real > 0)
        measured.fill.add(np.bincount(pack[kept], real[kept], count))
        measured.per_pack.add(np.bincount(pack[kept], minlength=count))
        for number in range(min(count, shown - len(measured.first))):
            inside = slice(segments.first[number], segments.first[number + 1])
            lengths = (segments.ends - segments.starts)[inside]
            documents = np.where(kept, ids, FILLER)[inside]
            measured.first.append([*zip(lengths.tolist(), documents.tolist(), strict=True)])
        parts = flat.get("pair_sides", flat.get("turn_ids", np.zeros(len(real), np.int64)))
        keys = (ids.astype(np.int64) << _PARTS) + parts + 1
        yield count, keys[kept], real[kept]
