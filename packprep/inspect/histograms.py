"""Counts of a finished output: lengths, documents per pack, fill and attention cost of packs.

One pass over the shards reads the boundaries and no tokens: some milliseconds per million segments.
Memory is about 50 bytes for each segment of one window of the build; only counts by value are kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.config.grammar.settings import OrderSetting
from packprep.inspect.report_file import find_report
from packprep.schemas.batch_view import BatchView
from packprep.schemas.columns import FILLER
from packprep.schemas.manifest import FileEntry, Manifest, Output, read_manifest
from packprep.schemas.plans.cost import ATTENTION_COST, Cost
from packprep.support.arrays import Int64
from packprep.support.progress import Progress, Silent
from packprep.tokens.reading import reader

_READ = ("document_ids", "document_starts", "segment_lengths", "turn_ids", "labels")

COST_UNIT = 10_000
"""Attention cost of one document that fills a pack."""


@dataclass(frozen=True)
class Counts:
    """Distinct values and how often each occurs.

    values: int64 [distinct], ascending. counts: int64 [distinct], 1 or more.
    """

    values: Int64
    counts: Int64

    @property
    def total(self) -> int:
        """Number of values."""
        return int(self.counts.sum())

    @property
    def sum(self) -> int:
        """Sum of the values."""
        return int((self.values * self.counts).sum())

    @property
    def mean(self) -> float:
        """Mean of the values; 0 if there are none."""
        return self.sum / self.total if self.total else 0.0

    def quantile(self, share: float) -> int:
        """Smallest value that at least `share` of all values do not exceed; 0 if there are none."""
        if not self.total:
            return 0
        return int(self.values[np.searchsorted(np.cumsum(self.counts), share * self.total)])

    def bins(self, edges: Int64) -> Int64:
        """Number of values with edges[i] <= value < edges[i + 1], [edges - 1]."""
        return np.histogram(self.values, edges, weights=self.counts)[0].astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Counts over all splits of an output, of the first epoch if documents are packed for several.

    documents: length of each document, from its first token in the shards to its last; a repeated
    document counts once. segments: length of each segment without padding. documents_per_pack:
    segments that are not filler. fill: tokens of each pack that are not filler; of a phase with
    shorter packs, in proportion. cost: attention cost of each pack; COST_UNIT is the cost of one
    document of max_length. loss_tokens: labels other than -100; None if no labels are stored.
    """

    max_length: int
    documents: Counts
    segments: Counts
    documents_per_pack: Counts
    fill: Counts
    cost: Counts
    loss_tokens: int | None


@dataclass(frozen=True, kw_only=True)
class WindowPacks:
    """Boundaries of the packs that one window of a build wrote to one split.

    All arrays are int64 [segments]. lengths, real: tokens with and without padding. pack: number
    in this window, from 0. document, start, turn: columns document_ids (-1 is filler),
    document_starts and turn_ids; None if the column was not written. extra: 1 if the segment begins
    with a continuation BOS. longest: most tokens of a pack of its phase.
    """

    window: int
    split: str
    packs: int
    longest: int
    lengths: Int64
    real: Int64
    pack: Int64
    document: Int64 | None
    start: Int64 | None
    turn: Int64 | None
    extra: Int64
    loss_tokens: int

    def document_lengths(self) -> Int64:
        """Length of each document, first token to last, in input order: [documents]."""
        if self.document is None or self.start is None:
            return self.real[self.real > 0]  # pieces count as documents: nothing tells them apart
        kept = self.document != FILLER
        document, start = self.document[kept], self.start[kept]
        if self.turn is not None:  # turns of a row are documents of their own
            document = (document << 31) + self.turn[kept] + 1
        end = start + self.real[kept] - self.extra[kept]
        order = np.argsort(document, kind="stable")
        first = np.flatnonzero(np.diff(document[order], prepend=-1))
        if not first.size:
            return np.empty(0, np.int64)
        lengths: Int64 = np.maximum.reduceat(end[order], first) - np.minimum.reduceat(
            start[order], first
        )
        return lengths


def measure_output(
    output: Output, progress: Progress | None = None, cost: Cost | None = None
) -> Measured:
    """Counts of an output. Raises FormatError if it is damaged or not a finished output.

    cost: of a segment; None: that of the build.
    """
    progress = progress or Silent()
    manifest = read_manifest(output)
    cost = cost or attention_cost(manifest)
    full = cost.flops(manifest.max_length)
    names = ("documents", "segments", "documents_per_pack", "fill", "cost")
    counts: dict[str, list[Counts]] = {name: [] for name in names}
    loss_tokens = 0
    for window in read_windows(output, manifest):
        # Kernels also attend to padding, so it is part of the cost.
        work = np.bincount(window.pack, cost.flops(window.lengths), window.packs)
        values = {
            "documents": window.document_lengths(),
            "segments": window.real[window.real > 0],
            "documents_per_pack": np.bincount(window.pack[window.real > 0], minlength=window.packs),
            "fill": np.bincount(window.pack, window.real, window.packs)
            * (manifest.max_length / window.longest),
            "cost": np.round(work / full * COST_UNIT),
        }
        for name in names:
            counts[name] = [added_counts([*counts[name], counts_of(values[name])])]
        loss_tokens += window.loss_tokens
        progress.advance(
            "measure", sum(part.total for part in counts["fill"]), manifest.num_packs, "packs"
        )
    has_labels = any(column.name == "labels" for column in manifest.columns)
    return Measured(
        max_length=manifest.max_length,
        loss_tokens=loss_tokens if has_labels else None,
        **{name: added_counts(parts) for name, parts in counts.items()},
    )


def counts_of(values: NDArray[Any]) -> Counts:
    """Counts of the distinct values, which are rounded down."""
    distinct, counts = np.unique(values.astype(np.int64), return_counts=True)
    return Counts(distinct, counts.astype(np.int64))


def added_counts(parts: list[Counts]) -> Counts:
    """Add counts."""
    if not parts:
        return counts_of(np.empty(0))
    values, places = np.unique(np.concatenate([part.values for part in parts]), return_inverse=True)
    counts = np.bincount(places, np.concatenate([part.counts for part in parts]), len(values))
    return Counts(values, counts.astype(np.int64))


def attention_cost(manifest: Manifest) -> Cost:
    """Cost of a segment, as in the build."""
    option = manifest.data["inputs"]["options"].get("attention_cost")
    return OrderSetting(weights=option).cost if option is not None else ATTENTION_COST


def log_edges(most: int, per_doubling: int = 2) -> Int64:
    """Edges of bins of equal width on a logarithmic scale, from 1 to more than `most`.

    Example: 1, 2, 3, 4, 6, 8, 11, ...
    """
    doublings = max(1, int(most).bit_length())
    steps = np.arange(doublings * per_doubling + 1) / per_doubling
    edges: Int64 = np.unique(np.round(2.0**steps).astype(np.int64))
    return edges


def read_windows(output: Output, manifest: Manifest) -> Iterator[WindowPacks]:
    """Packs of all splits, window by window as the build wrote them.

    Of the first epoch, if documents are packed for several. Raises FormatError for a damaged shard.
    """
    windows: dict[str, list[int]] = {}
    report = find_report(output, manifest)
    for window in [] if report is None else report.get("windows", []):
        if not window.get("epoch"):
            windows.setdefault(window["split"], []).append(window["packs"])
    for split in manifest.splits:
        sizes = windows.get(split, [])
        parts = read_batches(output, manifest, split)
        total = sum(entry.packs or 0 for entry in manifest.shards(split, epoch=0))
        for number, packs in enumerate(sizes if sum(sizes) == total else [total]):
            batches: list[WindowPacks] = []
            while sum(part.packs for part in batches) < packs:
                batches.append(next(parts))
            if batches:
                yield _joined(batches, number)


def read_batches(output: Output, manifest: Manifest, split: str) -> Iterator[WindowPacks]:
    """Record batches of a split, without their windows; packs are numbered from 0 in each.

    Of the first epoch, if documents are packed for several.
    """
    for batch in reader(output, manifest).packs(split, _READ, epoch=0):
        yield _measured(batch.view, manifest, batch.entry)


def _measured(view: BatchView, manifest: Manifest, entry: FileEntry) -> WindowPacks:
    """Boundaries of one record batch."""
    packs, real = len(view.pack_tokens) - 1, view.real
    start = view.columns.get("document_starts")
    extra = np.zeros(len(real), np.int64)
    if start is not None and manifest.data["inputs"]["options"].get("continuation_bos"):
        extra[(start > 0) & (real > 0)] = 1
    trained = len(view.columns.get("labels", ())) and len(view.columns["labels"]) - view.unlabelled
    return WindowPacks(
        window=0,
        split=str(entry.split),
        packs=packs,
        longest=manifest.longest(entry),
        lengths=view.ends - view.starts,
        real=real,
        pack=np.repeat(np.arange(packs), np.diff(view.pack_segments)),
        document=_wide(view.columns.get("document_ids")),
        start=_wide(start),
        turn=_wide(view.columns.get("turn_ids")),
        extra=extra,
        loss_tokens=trained,
    )


def _wide(values: NDArray[Any] | None) -> Int64 | None:
    return None if values is None else values.astype(np.int64)


def _joined(parts: list[WindowPacks], window: int) -> WindowPacks:
    """Join consecutive record batches to one window."""
    firsts = np.cumsum([0, *(part.packs for part in parts)])

    def joined(name: str) -> Int64:
        return np.concatenate([getattr(part, name) for part in parts])

    return WindowPacks(
        window=window,
        split=parts[0].split,
        packs=int(firsts[-1]),
        longest=parts[0].longest,
        lengths=joined("lengths"),
        real=joined("real"),
        pack=np.concatenate(
            [part.pack + first for part, first in zip(parts, firsts[:-1], strict=True)]
        ),
        document=None if parts[0].document is None else joined("document"),
        start=None if parts[0].start is None else joined("start"),
        turn=None if parts[0].turn is None else joined("turn"),
        extra=joined("extra"),
        loss_tokens=sum(part.loss_tokens for part in parts),
    )
