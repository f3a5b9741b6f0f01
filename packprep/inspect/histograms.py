"""Counts of the packs of a finished output.

Lengths, documents per pack, fill and attention cost.

One pass over the shards that touches the boundaries and never a token: some milliseconds per
million segments. Memory is that of one window of the build, about 50 bytes for each of its
segments; what is kept of it are counts by value.
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
from packprep.schemas.manifest import Manifest, Output, read_manifest
from packprep.schemas.views import list_view
from packprep.support.arrays import Int64
from packprep.support.progress import Progress, Silent

COST_UNIT = 10_000
"""Units of attention cost; one document that fills a pack costs 10,000."""


@dataclass(frozen=True)
class Counts:
    """Distinct values and how often each occurs.

    values: int64 [distinct], rising; counts: int64 [distinct], 1 or more.
    """

    values: Int64
    counts: Int64

    @property
    def total(self) -> int:
        """Number of values."""
        return int(self.counts.sum())

    @property
    def sum(self) -> int:
        """Sum of all of them."""
        return int((self.values * self.counts).sum())

    @property
    def mean(self) -> float:
        """0 where there is none."""
        return self.sum / self.total if self.total else 0.0

    def quantile(self, share: float) -> int:
        """The smallest value that at least `share` of all do not exceed; 0 where there is none."""
        if not self.total:
            return 0
        return int(self.values[np.searchsorted(np.cumsum(self.counts), share * self.total)])

    def bins(self, edges: Int64) -> Int64:
        """Numbers of values with edges[i] <= value < edges[i + 1], [edges - 1]."""
        return np.histogram(self.values, edges, weights=self.counts)[0].astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Counts over all splits of an output.

    documents: tokens of each document, from its first token in the shards to its last, repeated
    ones once. segments: tokens of each segment without padding. documents_per_pack: segments that
    are no filler. fill: tokens of each pack that are no filler. cost: attention cost of each pack
    in 1 / COST_UNIT of that of one document of max_length. loss_tokens: labels other than -100;
    None where no labels are stored.
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

    lengths, real: int64 [segments], tokens with and without padding. pack: int64 [segments], of
    this window, from 0. document: int64 [segments], -1 is filler; start: int64 [segments], both as
    schemas/README.md has them; None where the column was not written. extra: int64 [segments], 1
    where a BOS that is not the document's begins the segment.
    """

    window: int
    split: str
    packs: int
    lengths: Int64
    real: Int64
    pack: Int64
    document: Int64 | None
    start: Int64 | None
    extra: Int64
    loss_tokens: int

    def document_lengths(self) -> Int64:
        """Tokens of each document in input order, [documents].

        From its first token in the shards to its last.
        """
        if self.document is None or self.start is None:
            return self.real[self.real > 0]  # pieces of one document cannot be told from documents
        kept = self.document != FILLER
        document, start = self.document[kept], self.start[kept]
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
    """Counts over a finished output. Raises FormatError where it is damaged or is none."""
    progress = progress or Silent()
    manifest = read_manifest(output)
    a, b = attention_cost(manifest)
    full = a * manifest.max_length + b * manifest.max_length**2
    names = ("documents", "segments", "documents_per_pack", "fill", "cost")
    counts: dict[str, list[Counts]] = {name: [] for name in names}
    loss_tokens = 0
    for window in read_windows(output, manifest):
        # Kernels attend over padding too, so cost counts it.
        cost = a * np.bincount(window.pack, window.lengths, window.packs)
        cost += b * np.bincount(window.pack, window.lengths.astype(np.float64) ** 2, window.packs)
        values = {
            "documents": window.document_lengths(),
            "segments": window.real[window.real > 0],
            "documents_per_pack": np.bincount(window.pack[window.real > 0], minlength=window.packs),
            "fill": np.bincount(window.pack, window.real, window.packs),
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
        **{name: _sum(found) for name, found in counts.items()},
    )


def _count(values: NDArray[Any]) -> Counts:
    distinct, counts = np.unique(values.astype(np.int64), return_counts=True)
    return Counts(distinct, counts.astype(np.int64))


def _sum(parts: list[Counts]) -> Counts:
    """All of them as one."""
    if not parts:
        return _count(np.empty(0))
    values, places = np.unique(np.concatenate([part.values for part in parts]), return_inverse=True)
    counts = np.bincount(places, np.concatenate([part.counts for part in parts]), len(values))
    return Counts(values, counts.astype(np.int64))


def attention_cost(manifest: Manifest) -> tuple[float, float]:
    """a, b of the cost of a pack, a * tokens + b * sum(segment**2), as the build was told."""
    told = manifest.data["inputs"]["options"].get("attention_cost")
    return BuildConfig(attention_cost=told).cost() if told is not None else ATTENTION_COST


def log_edges(most: int, per_doubling: int = 2) -> Int64:
    """Edges of bins that widen evenly on a logarithmic scale, from 1 to past `most`.

    Example: 1, 2, 3, 4, 6, 8, 11, ...
    """
    doublings = max(1, int(most).bit_length())
    steps = np.arange(doublings * per_doubling + 1) / per_doubling
    edges: Int64 = np.unique(np.round(2.0**steps).astype(np.int64))
    return edges


def read_windows(output: Output, manifest: Manifest) -> Iterator[WindowPacks]:
    """The packs of every split, window by window as the build wrote them.

    FormatError where a shard is damaged.
    """
    windows: dict[str, list[int]] = {}
    report = find_report(output, manifest)
    for window in [] if report is None else report.get("windows", []):
        windows.setdefault(window["split"], []).append(window["packs"])
    for split, counts in manifest.splits.items():
        sizes = windows.get(split, [])
        parts = read_batches(output, manifest, split)
        for number, packs in enumerate(sizes if sum(sizes) == counts.packs else [counts.packs]):
            held: list[WindowPacks] = []
            while sum(part.packs for part in held) < packs:
                held.append(next(parts))
            if held:
                yield _joined(held, number)


def read_batches(output: Output, manifest: Manifest, split: str) -> Iterator[WindowPacks]:
    """Each record batch of a split, as part of no window; packs are counted from 0 in each."""
    for entry in manifest.shards(split):
        path, packs = check_file(output, entry), 0
        try:
            with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
                for batch in stream:
                    packs += len(batch)
                    yield _measured(batch, manifest, split, entry.path)
        except pa.ArrowException as error:
            raise FormatError(
                f"{path} is not a whole Arrow stream: {error}; restore the file or build again"
            ) from None
        if packs != entry.packs:
            raise FormatError(f"{path} holds {packs} packs; the manifest says {entry.packs}")


def _measured(batch: pa.RecordBatch, manifest: Manifest, split: str, where: str) -> WindowPacks:
    """The boundaries of one record batch."""
    columns = {column.name: list_view(batch, column.name, where) for column in manifest.columns}
    flat = {
        name: columns[name]
        .values[columns[name].offsets[0] : columns[name].offsets[-1]]
        .astype(np.int64)
        for name in ("cu_seqlens", "document_ids", "document_starts", "segment_lengths")
        if name in columns
    }
    boundaries = np.diff(columns["cu_seqlens"].offsets).astype(np.int64)
    # From the last boundary of a pack to the 0 of the next is no segment.
    inner = np.ones(max(0, len(flat["cu_seqlens"]) - 1), np.bool_)
    inner[np.cumsum(boundaries)[:-1] - 1] = False
    lengths = np.diff(flat["cu_seqlens"])[inner]
    pack = np.repeat(np.arange(len(batch)), np.maximum(boundaries - 1, 0))
    document, start, real = (
        flat.get(name) for name in ("document_ids", "document_starts", "segment_lengths")
    )
    sound = all(
        len(values) == len(pack)
        for values in (lengths, document, start, real)
        if values is not None
    )
    if (
        not sound
        or (np.bincount(pack, lengths, len(batch)) != np.diff(columns["tokens"].offsets)).any()
    ):
        raise FormatError(
            f"{where} has boundaries that do not fit its tokens; packprep verify says in which pack"
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
        lengths=lengths,
        real=real,
        pack=pack,
        document=document,
        start=start,
        extra=extra,
        loss_tokens=trained,
    )


def _joined(parts: list[WindowPacks], window: int) -> WindowPacks:
    """Record batches that follow each other as one window."""
    firsts = np.cumsum([0, *(part.packs for part in parts)])

    def together(name: str) -> Int64:
        return np.concatenate([getattr(part, name) for part in parts])

    return WindowPacks(
        window=window,
        split=parts[0].split,
        packs=int(firsts[-1]),
        lengths=together("lengths"),
        real=together("real"),
        pack=np.concatenate(
            [part.pack + first for part, first in zip(parts, firsts[:-1], strict=True)]
        ),
        document=None if parts[0].document is None else together("document"),
        start=None if parts[0].start is None else together("start"),
        extra=together("extra"),
        loss_tokens=sum(part.loss_tokens for part in parts),
    )
