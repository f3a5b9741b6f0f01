"""Counts of a finished output: lengths, documents per pack, fill and attention cost of packs.

One pass over the shards reads the boundaries and no tokens: some milliseconds per million segments.
Memory is about 50 bytes for each segment of one window of the build; only counts by value are kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.config.build_config import BuildConfig
from packprep.inspect.report_file import find_report
from packprep.packing.plan import ATTENTION_COST
from packprep.schemas.columns import FILLER, NO_LOSS
from packprep.schemas.errors import FormatError
from packprep.schemas.listed import check_file
from packprep.schemas.manifest import FileEntry, Manifest, Output, read_manifest
from packprep.schemas.names import column_view
from packprep.support.arrays import Int64
from packprep.support.progress import Progress, Silent
from packprep.tokens.index_shards import as_packs
from packprep.tokens.shard_packs import stored_packs

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


def measure_output(output: Output, progress: Progress | None = None) -> Measured:
    """Counts of an output. Raises FormatError if it is damaged or not a finished output."""
    progress = progress or Silent()
    manifest = read_manifest(output)
    a, b = attention_cost(manifest)
    full = a * manifest.max_length + b * manifest.max_length**2
    names = ("documents", "segments", "documents_per_pack", "fill", "cost")
    counts: dict[str, list[Counts]] = {name: [] for name in names}
    loss_tokens = 0
    for window in read_windows(output, manifest):
        # Kernels also attend to padding, so it is part of the cost.
        cost = a * np.bincount(window.pack, window.lengths, window.packs)
        cost += b * np.bincount(window.pack, window.lengths.astype(np.float64) ** 2, window.packs)
        values = {
            "documents": window.document_lengths(),
            "segments": window.real[window.real > 0],
            "documents_per_pack": np.bincount(window.pack[window.real > 0], minlength=window.packs),
            "fill": np.bincount(window.pack, window.real, window.packs)
            * (manifest.max_length / window.longest),
            "cost": np.round(cost / full * COST_UNIT),
        }
        for name in names:
            counts[name] = [_sum([*counts[name], _count(values[name])])]
        loss_tokens += window.loss_tokens
        progress.advance(
            "measure", sum(part.total for part in counts["fill"]), manifest.num_packs, "packs"
        )
    has_labels = any(column.name == "labels" for column in manifest.columns)
    return Measured(
        max_length=manifest.max_length,
        loss_tokens=loss_tokens if has_labels else None,
        **{name: _sum(parts) for name, parts in counts.items()},
    )


def _count(values: NDArray[Any]) -> Counts:
    distinct, counts = np.unique(values.astype(np.int64), return_counts=True)
    return Counts(distinct, counts.astype(np.int64))


def _sum(parts: list[Counts]) -> Counts:
    """Add counts."""
    if not parts:
        return _count(np.empty(0))
    values, places = np.unique(np.concatenate([part.values for part in parts]), return_inverse=True)
    counts = np.bincount(places, np.concatenate([part.counts for part in parts]), len(values))
    return Counts(values, counts.astype(np.int64))


def attention_cost(manifest: Manifest) -> tuple[float, float]:
    """a, b of the cost of a pack, a * tokens + b * sum(segment**2), as in the build."""
    option = manifest.data["inputs"]["options"].get("attention_cost")
    return BuildConfig(attention_cost=option).cost() if option is not None else ATTENTION_COST


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
    packs_of = as_packs(output, manifest, tokens=False)
    for entry in manifest.shards(split, epoch=0):
        path = check_file(output, entry)
        for _, batch in stored_packs(path, manifest, entry, str(path), packs_of):
            yield _measured(batch, manifest, split, entry)


def _measured(
    batch: pa.RecordBatch, manifest: Manifest, split: str, entry: FileEntry
) -> WindowPacks:
    """Boundaries of one record batch."""
    where = entry.path
    columns = {column.name: column_view(batch, column.name, where) for column in manifest.columns}
    flat = {
        name: columns[name]
        .values[columns[name].offsets[0] : columns[name].offsets[-1]]
        .astype(np.int64)
        for name in (
            "cu_seqlens",
            "document_ids",
            "document_starts",
            "segment_lengths",
            "turn_ids",
        )
        if name in columns
    }
    boundaries = np.diff(columns["cu_seqlens"].offsets).astype(np.int64)
    # There is no segment between the last boundary of a pack and the 0 of the next pack.
    inner = np.ones(max(0, len(flat["cu_seqlens"]) - 1), np.bool_)
    inner[np.cumsum(boundaries)[:-1] - 1] = False
    lengths = np.diff(flat["cu_seqlens"])[inner]
    pack = np.repeat(np.arange(len(batch)), np.maximum(boundaries - 1, 0))
    document, start, real, turn = (
        flat.get(name)
        for name in (
            "document_ids",
            "document_starts",
            "segment_lengths",
            "turn_ids",
        )
    )
    sound = all(
        len(values) == len(pack)
        for values in (lengths, document, start, real, turn)
        if values is not None
    )
    if (
        not sound
        or (np.bincount(pack, lengths, len(batch)) != np.diff(columns["tokens"].offsets)).any()
    ):
        raise FormatError(
            f"{where} has boundaries that do not match its tokens; packprep verify shows the pack"
        )
    if real is None:
        real = lengths if document is None else np.where(document == FILLER, 0, lengths)
    options = manifest.data["inputs"]["options"]
    extra = np.zeros(len(pack), np.int64)
    if start is not None and options.get("continuation_bos"):
        extra[(start > 0) & (real > 0)] = 1
    labels = columns.get("labels")
    trained = (
        0
        if labels is None
        else int((labels.values[labels.offsets[0] : labels.offsets[-1]] != NO_LOSS).sum())
    )
    return WindowPacks(
        window=0,
        split=split,
        packs=len(batch),
        longest=manifest.longest(entry),
        lengths=lengths,
        real=real,
        pack=pack,
        document=document,
        start=start,
        turn=turn,
        extra=extra,
        loss_tokens=trained,
    )


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
