"""Histograms and pack pictures of a report: bins, ranges, ticks, and positions in pixels.

Numbers in, data classes out; page.html draws them, and `text_bars` those of a terminal.
"""

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from packprep.inspect.histograms import COST_UNIT, Counts, Measured, log_edges
from packprep.support.arrays import Int64

_GAP = 8
THIN = 1.5  # pixels; anything above 0 stays visible
_ROOM = 1000  # width of the picture of a pack
_VISIBLE = 4.0  # segments narrower than this are drawn together with their neighbours
_EPSILON = 1e-9
_BINS, _TICKS = 24, 8  # of a histogram, at most
_WIDTH, _HEIGHT = 360, 174  # of a histogram
_CHARACTERS = 40  # of the longest bar in text
_ABOVE, _BELOW = 16, 26  # for the text above and below
_LETTER = 7.0  # width of a digit in tick labels on a phone, where the text is largest


@dataclass(frozen=True)
class Bin:
    """One bar of a histogram. rest: it collects the few values below the axis."""

    label: str
    count: int
    rest: bool = False


@dataclass(frozen=True)
class Axis:
    """Bins and their tick labels. edges: int64 [bins + 1].

    Positions count bins from the left: 1.5 is the middle of the second bin.
    """

    edges: Int64
    labels: list[str]
    ticks: list[tuple[float, str]]
    scale: str = ""
    rest: bool = False

    def place(self, value: float) -> float:
        """Position of a value.

        An integer extends to the next one, so the middle of 3 is 3.5.
        """
        number = int(
            np.clip(np.searchsorted(self.edges, value, side="right") - 1, 0, len(self.labels) - 1)
        )
        low, high = self.edges[number : number + 2].tolist()
        return number + float(np.clip((value - low) / (high - low), 0, 1))


@dataclass(frozen=True)
class Histogram:
    """One histogram as pages and terminals show it: counts of `of` along an axis of `unit`.

    marks: positions by name.
    """

    title: str
    note: str
    of: str
    unit: str
    bins: list[Bin]
    ticks: list[tuple[float, str]]
    marks: dict[str, float]

    @property
    def most(self) -> int:
        """Count of the highest bar, at least 1."""
        return max(1, *(each.count for each in self.bins))


def histogram(
    counts: Counts, axis: Axis, *, title: str, note: str, of: str, unit: str, room: int = 0
) -> Histogram:
    """Histogram of the counts along the axis, with a mark at the median.

    A second mark is at `room`, the length of a pack, if some values are larger.
    """
    numbers = counts.bins(axis.edges).tolist()
    bins = [Bin(label, count) for label, count in zip(axis.labels, numbers, strict=True)]
    if axis.rest:
        bins[0] = Bin(bins[0].label, bins[0].count, rest=True)
    marks = {"median": axis.place(counts.quantile(0.5) + 0.5)}
    if room and counts.quantile(1) > room:
        marks["a pack"] = axis.place(room + 1)
    return Histogram(title, note, of, unit + axis.scale, bins, axis.ticks, marks)


def histograms(measured: Measured) -> list[Histogram]:
    """Histograms of lengths and packs."""
    documents, per_pack = measured.documents, measured.documents_per_pack
    fill, cost = measured.fill, measured.cost
    full = int(fill.counts[fill.values * 100 >= 99 * measured.max_length].sum())
    return [
        histogram(
            documents,
            amounts(documents),
            title="Length of documents",
            of="documents",
            unit="tokens",
            room=measured.max_length,
            note=f"Median {documents.quantile(0.5):,} tokens, 95% have up to "
            f"{documents.quantile(0.95):,}, longest {documents.quantile(1):,}.",
        ),
        histogram(
            per_pack,
            amounts(per_pack),
            title="Documents in a pack",
            of="packs",
            unit="documents",
            note=f"Median {per_pack.quantile(0.5):,}, 95% have up to "
            f"{per_pack.quantile(0.95):,}, maximum {per_pack.quantile(1):,}. A piece counts "
            "as a document.",
        ),
        histogram(
            fill,
            percents(fill, measured.max_length),
            title="Fill of packs",
            of="packs",
            unit="of a pack",
            note=f"{full:,} of {fill.total:,} packs are at least 99% full.",
        ),
        histogram(
            cost,
            percents(cost, COST_UNIT),
            title="Attention cost of packs",
            of="packs",
            unit="of the cost of one full document",
            note="Attention compute of a pack; 100% is one document that fills the pack. "
            f"Median {cost.quantile(0.5) / COST_UNIT:.0%}, the cheapest 5% have up to "
            f"{cost.quantile(0.05) / COST_UNIT:.0%}.",
        ),
    ]


def text_bars(shown: Histogram) -> list[str]:
    """A line for each bar: label, count, and a bar relative to the longest."""
    block = "█" if _shows("█") else "#"
    label = max(len(each.label) for each in shown.bins)
    number = len(f"{shown.most:,}")
    return [
        f"{each.label:>{label}}  {each.count:>{number},}  "
        f"{block * -(-each.count * _CHARACTERS // shown.most)}".rstrip()
        for each in shown.bins
    ]


def _shows(character: str) -> bool:
    try:
        character.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def amounts(counts: Counts) -> Axis:
    """Bins for integers over the range of the values.

    They are equally wide, or logarithmic if most values would be in a few of them.
    """
    low, high = (int(counts.values[0]), int(counts.values[-1])) if counts.total else (0, 0)
    even = high - low < _BINS or counts.quantile(0.5) - low >= (high - low) / 8
    if even:
        step = next(step for step in _steps(1) if high // step - low // step < _BINS)
        edges = np.arange(low // step, high // step + 2, dtype=np.int64) * step
        marked = (
            set(range(0, high + 2, every))
            for every in _steps(step)
            if (high - low) / every <= _BINS
        )
    else:
        for finer in (4, 2, 1):
            edges = log_edges(high, finer)
            edges = edges[
                max(0, np.searchsorted(edges, low, side="right") - 1) : np.searchsorted(
                    edges, high, "right"
                )
                + 1
            ]
            if len(edges) <= _BINS:
                break
        edges = edges if low else np.append(0, edges)
        marked = ({0} | {2**power for power in range(0, 64, every)} for every in range(1, 64))
    labels = [
        f"{a:,}" if b - a == 1 else f"{a:,} to {b - 1:,}" for a, b in pairwise(edges.tolist())
    ]
    # A bin of one value has its tick in the middle, any other at its left edge.
    middles = np.where(np.diff(edges) == 1, 0.5, 0.0).tolist()
    middles += [0.0] if middles[-1] == 0 else []
    some = [
        [
            (i + m, f"{e:,}")
            for i, (e, m) in enumerate(zip(edges.tolist(), middles, strict=False))
            if e in chosen
        ]
        for chosen in marked
    ]
    some.append([(middles[0], f"{edges[0]:,}")])  # none of a few edges may be a round number
    return Axis(edges, labels, _fitting(some, len(labels)), "" if even else ", log scale")


def percents(counts: Counts, full: int) -> Axis:
    """Bins for percentages of `full` over the range of the values, at least 1% wide.

    A few values far below all others (at most 1% of them, or one) share a first bin. One pack of
    30% must not hide how packs of 99% to 100% differ. Example: 30, 990, 994, 1000 of 1000 -> below
    99%, 99.0%, 99.1%, ...
    """
    low, high = (int(counts.values[0]), int(counts.values[-1])) if counts.total else (full, full)
    few = int(np.searchsorted(np.cumsum(counts.counts), max(1, counts.total // 100), side="right"))
    bulk = min(
        int(counts.values[few]) if few < len(counts.values) else high, high - max(1, full // 100)
    )
    rest = high - low > 2 * (high - bulk)
    step, bounds = _bounds(max(0, bulk if rest else min(low, bulk)), high, full)
    first = bounds[0]
    edges = [-(-bound * full // 10_000) for bound in bounds]
    edges[-1] = max(edges[-1], high + 1)  # the last bin includes its upper end, mostly 100%
    labels = [f"{_percent(a, step)} to {_percent(b, step)}" for a, b in pairwise(bounds)]
    if rest := rest and low < edges[0]:
        edges, labels = [low, *edges], [f"below {_percent(first, step)}", *labels]
    some = []
    for every in (every for every in _steps(step) if every <= 5 * (bounds[-1] - first)):
        like = math.gcd(every, first) if rest else every
        multiples = range(-(-first // every) * every, bounds[-1] + 1, every)
        some.append([(rest + (at - first) / step, _percent(at, like)) for at in multiples])
        if rest:
            below = (0.5, "<" + _percent(first, like))
            some[-1] = [below, *(tick for tick in some[-1] if _apart(below, tick, len(labels)))]
    return Axis(np.array(edges, np.int64), labels, _fitting(some, len(labels)), rest=rest)


def _bounds(start: int, high: int, full: int) -> tuple[int, list[int]]:
    """Step and its multiples from `start` to `high`, in hundredths of a percent of `full`.

    A step is at least as wide as one integer, and the first multiple is a round number.
    """
    for step in _steps(1):
        first = start * 10_000 // full // (2 * step) * (2 * step)
        last = max(first + step, -(-high * 10_000 // (full * step)) * step)
        if step * full >= 10_000 and last - first <= _BINS * step:
            break
    return step, list(range(first, last + 1, step))


def _steps(least: int) -> Iterator[int]:
    """1, 2, 5, 10, 20, 50, ... from `least`."""
    return (
        step for power in range(20) for digit in (1, 2, 5) if (step := digit * 10**power) >= least
    )


def _percent(at: int, like: int) -> str:
    """Format hundredths of a percent with as many decimals as multiples of `like` need."""
    return f"{at / 100:.{0 if like % 100 == 0 else 1 if like % 10 == 0 else 2}f}%"


def _fitting(some: Iterable[list[tuple[float, str]]], bins: int) -> list[tuple[float, str]]:
    """First list of ticks whose labels do not overlap; the last list if there is none."""
    ticks: list[tuple[float, str]] = []
    for ticks in some:
        if 0 < len(ticks) <= _TICKS and all(_apart(a, b, bins) for a, b in pairwise(ticks)):
            break
    return ticks


def _apart(a: tuple[float, str], b: tuple[float, str], bins: int) -> bool:
    return _text_at(b, bins) - _text_at(a, bins) >= _half(a[1]) + _half(b[1]) + _GAP


def _text_at(tick: tuple[float, str], bins: int) -> float:
    """Middle of a tick label: below its tick, but inside the picture."""
    half = _half(tick[1])
    return min(max(tick[0] / bins * _WIDTH, half), _WIDTH - half)


def _half(text: str) -> float:
    """Half the width of a tick label, rounded up."""
    return (
        _LETTER
        / 2
        * sum({"<": 1.5, "%": 1.5, ",": 0.5, ".": 0.5}.get(letter, 1) for letter in text)
    )


@dataclass(frozen=True)
class Bar:
    """One bin as a rectangle."""

    bin: Bin
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Drawing:
    """A histogram in pixels. ticks: x, middle of the label, label. marks: x by name."""

    bars: list[Bar]
    ticks: list[tuple[float, float, str]]
    marks: dict[str, float]
    width: int = _WIDTH
    height: int = _HEIGHT
    floor: int = _HEIGHT - _BELOW


def drawing(shown: Histogram) -> Drawing:
    """Positions of the bars, ticks and marks of a histogram."""
    bins = len(shown.bins)
    step, room = _WIDTH / bins, _HEIGHT - _BELOW - _ABOVE
    tall = [max(THIN, each.count / shown.most * room) if each.count else 0.0 for each in shown.bins]
    bars = [
        Bar(each, i * step + 0.5, _HEIGHT - _BELOW - tall[i], max(step - 1, 0.5), tall[i])
        for i, each in enumerate(shown.bins)
    ]
    ticks = [(place * step, _text_at((place, text), bins), text) for place, text in shown.ticks]
    return Drawing(bars, ticks, {name: place * step for name, place in shown.marks.items()})


@dataclass(frozen=True)
class PackBar:
    """A bar in the picture of a pack, in thousandths of the pack."""

    x: float
    width: float
    css: str
    title: str


def pack_bars(
    lengths: Sequence[int], css: Sequence[str], titles: Sequence[str], room: int
) -> list[PackBar]:
    """Bars of the segments of a pack.

    Segments too narrow to see share a bar with the colour of the longest. Padding (css "filler")
    has its own bar if it is wide enough, else it joins the document before it.
    """
    drawn: list[PackBar] = []
    x, tokens = 0.0, 0
    together: list[int] = []
    for number, length in enumerate(lengths):
        together.append(number)
        tokens += length
        end = tokens / room * _ROOM
        after = number + 1
        last = after == len(lengths) or (
            css[after] == "filler" and lengths[after] / room * _ROOM >= _VISIBLE
        )
        if end - x < _VISIBLE - _EPSILON and not last:
            continue
        documents = [part for part in together if css[part] != "filler"] or together[:1]
        longest = max(documents, key=lambda part: lengths[part])
        many = f"{len(documents)} documents, {sum(lengths[part] for part in documents):,} tokens"
        title = titles[longest] if len(documents) == 1 else many
        drawn.append(PackBar(round(x, 2), round(end - x, 2), css[longest], title))
        x, together = end, []
    return drawn
