"""Geometry of the pictures of a report page: numbers in, places and sizes in pixels out. page.html draws them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from packprep.histograms import Counts, Int64

_BAR = 10  # width of the bars at both ends of a flow
_SLOT = 40  # at least so much height for a label of two lines
_GAP = 8
_FLOW_HEIGHT = 260  # of all tokens together
_THIN = 1.5  # what is there at all stays visible
_ROOM = 1000  # width of a pack's picture
_VISIBLE = 4.0  # segments narrower than this are drawn together with their neighbours
_EPSILON = 1e-9


@dataclass(frozen=True)
class Link:
    """`tokens` that go from `source` to `outcome`; kind and color name classes of the page's style."""

    source: str
    outcome: str
    tokens: int
    color: str
    kind: str


@dataclass(frozen=True)
class Node:
    """A bar at one side of a flow, with its label at (label_x, label_y)."""

    name: str
    tokens: int
    share: float
    css: str
    x: float
    y: float
    height: float
    label_x: float
    anchor: str

    @property
    def label_y(self) -> float:
        return self.y + max(self.height / 2, 12)


@dataclass(frozen=True)
class Ribbon:
    """A band from a source to an outcome: the path of an SVG."""

    path: str
    css: str
    link: Link


@dataclass(frozen=True)
class Flow:
    """Sources on the left, outcomes on the right, bands between them as high as they have tokens."""

    width: int
    height: int
    nodes: list[Node]
    ribbons: list[Ribbon]
    bar: int = _BAR


def flow(links: Sequence[Link], width: int) -> Flow:
    """Places of a flow of this width. Sources and outcomes stand in the order they first appear in the links."""
    links = [link for link in links if link.tokens]
    total = sum(link.tokens for link in links)
    scale = _FLOW_HEIGHT / max(total, 1)
    nodes, places = [], []
    for side in ("source", "outcome"):
        y, at = 2.0, {}
        for name in dict.fromkeys(getattr(link, side) for link in links):
            mine = [link for link in links if getattr(link, side) == name]
            tokens = sum(link.tokens for link in mine)
            height = max(_THIN, tokens * scale)
            at[name] = y
            nodes.append(
                Node(
                    name=name, tokens=tokens, share=tokens / total, y=y, height=height,
                    css=mine[0].color if side == "source" else mine[0].kind,
                    x=0 if side == "source" else width - _BAR,
                    label_x=_BAR + 8 if side == "source" else width - _BAR - 8,
                    anchor="start" if side == "source" else "end",
                )
            )  # fmt: skip
            y += max(height, _SLOT) + _GAP
        places.append(at)
    ribbons = []
    for link in links:
        thick = max(_THIN, link.tokens * scale)
        left, right = places[0][link.source], places[1][link.outcome]
        ribbons.append(Ribbon(_band(_BAR, left, width - _BAR, right, thick), link.color + " " + link.kind, link))
        places[0][link.source] += link.tokens * scale
        places[1][link.outcome] += link.tokens * scale
    bottom = max((node.y + max(node.height, _SLOT) for node in nodes), default=0.0)
    return Flow(width, math.ceil(bottom), nodes, ribbons)


def _band(x: float, y: float, to_x: float, to_y: float, thick: float) -> str:
    middle = (x + to_x) / 2
    return (
        f"M{x:g} {y:.1f}C{middle:g} {y:.1f} {middle:g} {to_y:.1f} {to_x:g} {to_y:.1f}v{thick:.1f}"
        f"C{middle:g} {to_y + thick:.1f} {middle:g} {y + thick:.1f} {x:g} {y + thick:.1f}z"
    )


@dataclass(frozen=True)
class Bar:
    """One bin of a histogram: values from `first` to `last`, `count` of them."""

    first: int
    last: int
    count: int
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Histogram:
    """Bars over an axis. ticks: place and value. p50: place of the median."""

    width: int
    height: int
    floor: float
    bars: list[Bar]
    ticks: list[tuple[float, int]]
    p50: float
    most: int


def histogram(counts: Counts, edges: Int64, *, width: int = 360, height: int = 170, whole: bool = False) -> Histogram:
    """Bars for the bins between the edges; empty bins at both ends are left out unless the `whole` axis is wanted."""
    found = counts.bins(edges)
    used = np.flatnonzero(found)
    if used.size and not whole:
        found, edges = found[used[0] : used[-1] + 1], edges[used[0] : used[-1] + 2]
    top, floor, most = 16.0, height - 22.0, int(found.max(initial=1))
    step, bins = width / len(found), len(found)
    tall = [max(_THIN, count / most * (floor - top)) if count else 0.0 for count in found.tolist()]
    bars = [
        Bar(int(edges[i]), int(edges[i + 1]) - 1, count, i * step + 0.5, floor - tall[i], max(step - 1, 0.5), tall[i])
        for i, count in enumerate(found.tolist())
    ]
    every = -(-bins // 6)
    ticks = [(i * step, int(edges[i]) if i < bins else bars[-1].last) for i in range(0, bins + 1, every)]
    median = counts.quantile(0.5)
    place = int(np.clip(np.searchsorted(edges, median, side="right") - 1, 0, bins - 1))
    inside = (median - edges[place]) / (edges[place + 1] - edges[place])
    return Histogram(width, height, floor, bars, ticks, float((place + inside) * step), most)


@dataclass(frozen=True)
class Piece:
    """A bar in the picture of a pack, in thousandths of its room."""

    x: float
    width: float
    css: str
    title: str


def pieces(lengths: Sequence[int], css: Sequence[str], titles: Sequence[str], room: int) -> list[Piece]:
    """The segments of a pack side by side; those too narrow to see are drawn as one, coloured like the longest.

    Padding (css "filler") is drawn by itself where it is wide enough, else together with the document beside it.
    """
    drawn: list[Piece] = []
    x, tokens = 0.0, 0
    together: list[int] = []
    for number, length in enumerate(lengths):
        together.append(number)
        tokens += length
        end = tokens / room * _ROOM
        after = number + 1
        last = after == len(lengths) or (css[after] == "filler" and lengths[after] / room * _ROOM >= _VISIBLE)
        if end - x < _VISIBLE - _EPSILON and not last:
            continue
        documents = [part for part in together if css[part] != "filler"] or together[:1]
        longest = max(documents, key=lambda part: lengths[part])
        many = f"{len(documents)} documents, {sum(lengths[part] for part in documents):,} tokens"
        title = titles[longest] if len(documents) == 1 else many
        drawn.append(Piece(round(x, 2), round(end - x, 2), css[longest], title))
        x, together = end, []
    return drawn
