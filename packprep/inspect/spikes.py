"""Find the segments of a training whose losses are out of line, and their documents.

A loss is compared with those of its peers: segments of the same source and about the same length
(within a factor of 2), trained at about the same time. Its score is

    (log loss - median of the peers) / (1.4826 * median absolute deviation of the peers)

after the falling curve is taken out, by the median of every 128 losses. Logarithms, because what
makes a document hard multiplies its loss. Scores have tails that are longer than a normal one's, so
the limit is not a fixed number: above the highest 2% of the scores, a generalized Pareto
distribution continues them (Pickands 1975; Siffer et al., "Anomaly Detection in Streams with
Extreme Value Theory", KDD 2017). It is fitted by the median and the ninth decile of what exceeds
that place, so a hundred broken documents do not move it, and its shape is at least -0.1: close to
the tail of a normal distribution, which is the least that is assumed. A spike is a score that sound
documents of such a tail reach in about one log of a hundred.

A loss that is no number, or infinite, is a spike at the first step that has one: after it nothing
can be said, because the weights are broken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from packprep.schemas.columns import FILLER, WHOLE_ROW
from packprep.schemas.errors import FormatError
from packprep.schemas.loss_log import LOSSES, LoggedLosses, read_fingerprint, read_losses
from packprep.schemas.manifest import Manifest, Output
from packprep.schemas.names import column_view
from packprep.schemas.sources import Sources
from packprep.support.arrays import Bools, Float64, Int64
from packprep.support.errors import ConfigError
from packprep.tokens.reading import reader

_LEAST = 1000  # losses of a log
_CURVE = 128  # losses of a median of the curve
_TIME = 1 << 14  # losses that are trained at about the same time
_PEERS = 32  # losses, at least
_TAIL = 0.02  # share of the scores that the limit is fitted to
_TAIL_LEAST = 250
_CHANCE = 0.01  # of one sound document above the limit, in a log
_SHAPES = np.linspace(-0.1, 2, 2101) + 1e-7  # never 0, which is the exponential


class Trained(NamedTuple):
    """One time that a segment was trained."""

    step: int
    loss: float
    spiked: bool


@dataclass(frozen=True, kw_only=True)
class Spike:
    """A segment whose loss is out of line.

    pack, segment: its place in the split. usual: median loss of its peers. score: see the module;
    infinite if the loss is no number. before: the last time that it was trained before, if the log
    has it.
    """

    step: int
    loss: float
    usual: float
    score: float
    pack: int
    segment: int
    tokens: int
    document: int
    before: Trained | None


class SegmentTable(NamedTuple):
    """Segments of a split, [segments] each: where they are, and what they hold."""

    first: Int64  # [packs + 1], first segment of each pack, and the end
    document: Int64
    part: Int64  # number that tells documents of a row apart
    start: Int64
    length: Int64


def find_spikes(log: Path, output: Output, manifest: Manifest) -> tuple[str, list[Spike]]:
    """Return the split that was trained, and its spikes in the order of their steps.

    log: folder of a `LossLog`, or one of its files. Takes 40 bytes for each segment of the split,
    and as many for each loss. Raises ConfigError for a log that is too short, FormatError for
    damage or other packs.
    """
    files = sorted(log.glob(f"*{LOSSES}")) if log.is_dir() else [log]
    if not files or not all(file.is_file() for file in files):
        raise ConfigError(f"{log} has no files *{LOSSES}; expected the folder of a LossLog")
    split = _split_of(files, output, manifest)
    losses = read_losses(files)
    if len(losses) < _LEAST:
        raise ConfigError(
            f"{log} has the losses of {len(losses):,} segments; expected {_LEAST:,} or more, to "
            "know which losses are usual"
        )
    segments = segments_of(output, manifest, split)
    losses, at = places(losses, segments, log)
    sources = Sources(manifest).indices(segments.document[at])
    scores, usual = score(losses.loss, sources, segments.length[at])
    broken = ~np.isfinite(losses.loss)
    if broken.any():
        later = broken & (losses.step > losses.step[broken].min())
        scores = np.where(broken & ~later, np.inf, scores)
    spiked = scores > limit(scores)
    keys = np.stack([segments.document, segments.part, segments.start])[:, at]
    spikes = []
    for place in np.flatnonzero(spiked).tolist():
        same = np.flatnonzero(keys[0, :place] == keys[0, place])
        same = same[(keys[:, same] == keys[:, place, None]).all(axis=0)]
        before = None
        if len(same):
            last = int(same[-1])
            before = Trained(int(losses.step[last]), float(losses.loss[last]), bool(spiked[last]))
        spikes.append(
            Spike(
                step=int(losses.step[place]),
                loss=float(losses.loss[place]),
                usual=float(usual[place]),
                score=float(scores[place]),
                pack=int(losses.pack[place]),
                segment=int(at[place] - segments.first[losses.pack[place]]),
                tokens=int(segments.length[at[place]]),
                document=int(segments.document[at[place]]),
                before=before,
            )
        )
    return split, spikes


def score(losses: Any, sources: Int64, lengths: Int64) -> tuple[Float64, Float64]:
    """Score of each loss, and the median loss of its peers, [losses] in the order of training.

    sources, lengths: of the segments. A loss that is 0 or no number has the score 0.
    """
    known = np.isfinite(losses) & (losses > 0)
    logs = np.log(np.where(known, losses, 1.0).astype(np.float64))
    curve = _curve(logs, known)
    rest, count = logs - curve, len(logs)
    time = np.minimum(np.arange(count) // _TIME, max(count // _TIME - 1, 0))
    sizes = np.log2(np.maximum(lengths, 1)).astype(np.int64)
    middle, spread = np.zeros(count), np.ones(count)
    undecided = known.copy()
    for groups in (((time * 64 + sizes) << 32) + sources, time * 64 + sizes, time):
        of_group = np.unique(groups, return_inverse=True)[1]
        peers = np.bincount(of_group[known], minlength=int(of_group.max()) + 1)
        medians = _medians(rest, of_group, known)
        deviations = _medians(np.abs(rest - medians[of_group]), of_group, known)
        decided = undecided & (peers[of_group] >= _PEERS)
        middle[decided] = medians[of_group][decided]
        spread[decided] = 1.4826 * np.maximum(deviations[of_group][decided], 1e-3)
        undecided &= ~decided
    scores = np.where(known & ~undecided, (rest - middle) / spread, 0.0)
    return scores, np.exp(curve + middle)


def limit(scores: Float64) -> float:
    """The score above which a loss is a spike."""
    finite = np.sort(scores[np.isfinite(scores)])
    count = max(int(_TAIL * len(finite)), min(_TAIL_LEAST, len(finite) // 2))
    begin = finite[-count - 1]
    half, most = np.quantile(finite[-count:] - begin, [0.5, 0.9])
    # Quantile p of the distribution is scale / shape * ((1 - p)^-shape - 1).
    ratios = (10**_SHAPES - 1) / (2**_SHAPES - 1)
    shape = float(np.interp(most / max(half, 1e-9), ratios, _SHAPES))
    scale = half * shape / (2**shape - 1)
    fitted = float(begin + scale / shape * ((count / _CHANCE) ** shape - 1))
    return max(fitted, NormalDist().inv_cdf(1 - _CHANCE / len(finite)))


def _curve(logs: Float64, known: Bools) -> Float64:
    """The falling curve: medians of consecutive losses, and lines between them."""
    places = np.flatnonzero(known)
    if not len(places):
        return np.zeros(len(logs))
    parts = max(len(places) // _CURVE, 1)
    edges = np.linspace(0, len(places), parts + 1).astype(np.int64)
    part = np.repeat(np.arange(parts), np.diff(edges))
    medians = _medians(logs[places], part, np.ones(len(places), np.bool_))
    middles = places[(edges[:-1] + edges[1:] - 1) // 2]
    return np.interp(np.arange(len(logs)), middles, medians)


def _medians(values: Float64, groups: Int64, known: Bools) -> Float64:
    """Median of the known values of each group, 0 for a group without one."""
    values, of_values = values[known], groups[known]
    counts = np.bincount(of_values, minlength=int(groups.max()) + 1)
    ordered = values[np.lexsort((values, of_values))]
    first = np.cumsum(counts) - counts
    some = np.flatnonzero(counts)
    medians = np.zeros(len(counts))
    low, high = first[some] + (counts[some] - 1) // 2, first[some] + counts[some] // 2
    medians[some] = (ordered[low] + ordered[high]) / 2
    return medians


def _split_of(files: Sequence[Path], output: Output, manifest: Manifest) -> str:
    """The split whose packs all files are of."""
    known = {
        manifest.fingerprint(split, epoch): split
        for split in manifest.splits
        for epoch in (None, *range(manifest.epochs))
    }
    splits = set()
    for file in files:
        with file.open("rb") as stream:
            fingerprint = read_fingerprint(stream.read(64), str(file))
        if fingerprint is not None:
            splits.add(known.get(fingerprint))
            if None in splits:
                raise FormatError(
                    f"{file} is a log of other packs than those of {output}; give the output that "
                    "was trained"
                )
    if len(splits) != 1:
        raise ConfigError(
            f"the logs in {files[0].parent} are of {len(splits)} splits; give those of one"
        )
    return str(splits.pop())


def segments_of(output: Output, manifest: Manifest, split: str) -> SegmentTable:
    """All segments of a split."""
    stored = {column.name for column in manifest.columns}
    if "document_ids" not in stored:
        raise ConfigError(
            f"the shards of {output} have no document_ids, which documents are named by; build "
            "again without --columns"
        )
    names = [name for name in _COLUMNS if name in stored]
    parts: dict[str, list[Any]] = {name: [] for name in names}
    counts = []
    for batch in reader(output, manifest).packs(split, names):
        for name in names:
            view = column_view(batch.rows, name, batch.where)
            if name == "cu_seqlens":
                ends = np.diff(view.flat.astype(np.int64))
                inner = np.cumsum(np.diff(view.offsets))[:-1] - 1  # from one pack to the next
                parts[name].append(np.delete(ends, inner))
                counts.append(np.diff(view.offsets) - 1)
            else:
                parts[name].append(view.flat)
    columns = {
        name: np.concatenate([np.empty(0), *each]).astype(np.int64) for name, each in parts.items()
    }
    zeros = np.zeros(len(columns["document_ids"]), np.int64)
    turns, sides = columns.get("turn_ids", zeros + WHOLE_ROW), columns.get("pair_sides", zeros)
    return SegmentTable(
        first=np.cumsum(np.concatenate([[0], *counts])),
        document=columns["document_ids"],
        part=turns * 2 + sides,
        start=columns.get("document_starts", zeros),
        length=columns["cu_seqlens"],
    )


_COLUMNS = ("cu_seqlens", "document_ids", "document_starts", "turn_ids", "pair_sides")


def places(losses: LoggedLosses, segments: SegmentTable, log: Path) -> tuple[LoggedLosses, Int64]:
    """The losses of documents, and the segment of the split that each is of.

    If the loader left out the rejected sides of pairs, segments of a pack are those that are left.
    """
    counts = np.diff(segments.first)
    if len(losses) and int(losses.pack.max()) >= len(counts):
        raise FormatError(
            f"{log} has pack {int(losses.pack.max()):,}; the split has {len(counts):,}"
        )
    kept = np.arange(len(segments.document))
    if (losses.segments != counts[losses.pack]).any():
        kept = np.flatnonzero((segments.part % 2 == 0) | (segments.document == FILLER))
        counts = np.diff(np.searchsorted(kept, segments.first))
        if (wrong := losses.segments != counts[losses.pack]).any():
            place = int(np.flatnonzero(wrong)[0])
            pack = int(losses.pack[place])
            raise FormatError(
                f"{log} has {int(losses.segments[place])} segments of pack {pack:,}, which has "
                f"{int(np.diff(segments.first)[pack])}; give the output that was trained"
            )
    firsts = np.append(0, np.cumsum(counts))
    at = kept[firsts[losses.pack] + losses.segment]
    real = np.flatnonzero(segments.document[at] != FILLER)
    return losses.take(real), at[real]
