"""Sequences of the packs of an output or a plan, which decide what a step of packs holds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from packprep.inspect.histograms import Counts, added_counts, counts_of
from packprep.schemas.batch_view import BatchView
from packprep.schemas.manifest import Output, read_manifest
from packprep.support.arrays import Int64
from packprep.support.errors import ConfigError
from packprep.support.hashing import mix
from packprep.tokens.reading import reader

SequenceUnit = Literal["segment", "row", "pair"]

_STEPS = 1000  # that are drawn for the spread of a step, at least
# row_ids: of trees, whose rows it counts
_READ = ("document_ids", "document_starts", "segment_lengths", "pair_ids", "row_ids", "row_starts")


@dataclass(frozen=True, kw_only=True)
class PackContents:
    """Sequences of the packs of a split, or of a phase of it.

    unit: what a sequence is: a segment that is not filler, a row of a tree, or a preference pair.
    counts: sequences of a pack, and the number of packs that hold so many.
    later_pieces: sequences that continue a document.
    tokens: of all packs, without padding.
    """

    split: str
    unit: SequenceUnit
    max_length: int
    counts: Counts
    later_pieces: int
    tokens: int

    @property
    def packs(self) -> int:
        return self.counts.total

    @property
    def total(self) -> int:
        """Sequences of all packs."""
        return self.counts.sum

    @property
    def mean(self) -> float:
        """Sequences of a pack, on average."""
        return self.counts.mean

    def spread(self, packs_per_step: int) -> dict[str, float]:
        """Sequences of a step of so many packs: mean, and the 5th and 95th percentile.

        The mean is exact. Percentiles are those of 1,000 steps or more of shuffled epochs.
        """
        size = min(packs_per_step, self.packs)
        steps = self.packs // size
        sequences = np.repeat(self.counts.values, self.counts.counts)
        drawn = [
            sequences[np.argsort(mix(np.uint64(epoch), np.arange(self.packs)))][: steps * size]
            .reshape(steps, size)
            .sum(1)
            for epoch in range(-(-_STEPS // steps))
        ]
        low, high = np.percentile(np.concatenate(drawn), (5, 95))
        return {"mean": self.mean * size, "p5": float(low), "p95": float(high)}

    def scaled(self, scale: float) -> "PackContents":
        """The contents of a whole of which this is a sample. scale: its size relative to this."""
        ends = np.round(np.cumsum(self.counts.counts) * scale).astype(np.int64)
        return replace(
            self,
            counts=Counts(self.counts.values, np.diff(ends, prepend=0)),
            later_pieces=round(self.later_pieces * scale),
            tokens=round(self.tokens * scale),
        )

    def as_dict(self) -> dict[str, Any]:
        """The contents as plain JSON values. counts: number of packs, by their sequences."""
        packs = zip(self.counts.values.tolist(), self.counts.counts.tolist(), strict=True)
        return vars(self) | {"counts": {str(sequences): count for sequences, count in packs}}

    @staticmethod
    def of_json(values: Mapping[str, Any]) -> "PackContents":
        """The contents that `as_dict` wrote. KeyError, TypeError or ValueError for other JSON."""
        counts = [(int(sequences), int(packs)) for sequences, packs in values["counts"].items()]
        columns = np.array(counts, np.int64).reshape(-1, 2).T
        return PackContents(**{**values, "counts": Counts(*columns)})


def joined_contents(parts: Iterable[PackContents]) -> PackContents | None:
    """Contents of consecutive packs of one split and phase; None if there are none."""
    if not (parts := [*parts]):
        return None
    return replace(
        parts[0],
        counts=added_counts([part.counts for part in parts]),
        later_pieces=sum(part.later_pieces for part in parts),
        tokens=sum(part.tokens for part in parts),
    )


def training_split(splits: Iterable[str]) -> str:
    """The split "train", or the first one if there are only others."""
    names = [*splits]
    return names[0] if names and "train" not in names else "train"


def read_contents(output: Output) -> dict[int, PackContents]:
    """Contents of the packs of the training split, by phase; of phase 0 if there are no phases.

    Of the first epoch, if documents are packed for several. ConfigError for an output without
    packs.
    """
    manifest = read_manifest(output)
    names = {column.name for column in manifest.columns}
    unit: SequenceUnit = "row" if manifest.has_trees else "segment"
    unit = "pair" if names & {"pair_sides", "row_sides"} else unit
    split = training_split(manifest.splits)
    parts: dict[int, list[PackContents]] = {}
    for batch in reader(output, manifest).packs(split, _READ, epoch=0):
        sequences, later = _sequences(batch.view)
        pairs = unit == "pair"
        contents = PackContents(
            split=split,
            unit=unit,
            max_length=manifest.longest(batch.entry),
            counts=counts_of(sequences // 2 if pairs else sequences),
            later_pieces=0 if pairs else later,
            tokens=int(batch.view.real.sum()),
        )
        parts.setdefault(batch.entry.phase or 0, []).append(contents)
    joined = {phase: joined_contents(each) for phase, each in parts.items()}
    phases = {phase: each for phase, each in joined.items() if each is not None and each.total}
    if not phases:
        raise ConfigError(f"{output} has no packs of {split}; build it again with documents")
    return phases


def _sequences(view: BatchView) -> tuple[Int64, int]:
    """Rows or segments of each pack, and the number of those that continue a document."""
    if view.pack_rows is not None:
        return np.diff(view.pack_rows), int(np.count_nonzero(view.columns["row_starts"]))
    real = view.real > 0
    before = np.append(0, np.cumsum(real))
    starts = view.columns.get("document_starts")
    later = 0 if starts is None else int(np.count_nonzero(starts[real]))
    return np.diff(before[view.pack_segments]), later
