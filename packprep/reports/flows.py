"""Flow chart of tokens, from sources on the left to outcomes on the right.

Numbers in, positions in pixels out; page.html draws them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from packprep.reports.charts import THIN

_BAR = 10  # width of the bars at both ends of a flow
_SLOT = 40  # minimum height of a node: a label has two lines
_GAP = 8
_FLOW_HEIGHT = 260  # of all tokens together


@dataclass(frozen=True)
class Link:
    """`tokens` that flow from `source` to `outcome`.

    kind and color name classes of the page's style.
    """

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
    """Sources on the left, outcomes on the right, bands between them.

    The height of a band is its number of tokens.
    """

    width: int
    height: int
    nodes: list[Node]
    ribbons: list[Ribbon]
    bar: int = _BAR


def sums(links: Sequence[Link], side: Literal["source", "outcome"]) -> list[tuple[str, int, str]]:
    """Name, tokens and class of each source or outcome, in the order of the links."""
    tokens: dict[str, int] = {}
    css: dict[str, str] = {}
    for link in links:
        name = getattr(link, side)
        tokens[name] = tokens.get(name, 0) + link.tokens
        css.setdefault(name, link.color if side == "source" else link.kind)
    return [(name, count, css[name]) for name, count in tokens.items()]


def flow(links: Sequence[Link], width: int) -> Flow:
    """Positions in a flow chart of this width, in the order of the links."""
    links = [link for link in links if link.tokens]
    total = sum(link.tokens for link in links)
    scale = _FLOW_HEIGHT / max(total, 1)
    sides: tuple[Literal["source", "outcome"], ...] = ("source", "outcome")
    nodes, places = [], []
    for side in sides:
        y, tops = 2.0, {}
        for name, tokens, css in sums(links, side):
            height = max(THIN, tokens * scale)
            tops[name] = y
            nodes.append(
                Node(
                    name=name,
                    tokens=tokens,
                    share=tokens / total,
                    y=y,
                    height=height,
                    css=css,
                    x=0 if side == "source" else width - _BAR,
                    label_x=_BAR + 8 if side == "source" else width - _BAR - 8,
                    anchor="start" if side == "source" else "end",
                )
            )
            y += max(height, _SLOT) + _GAP
        places.append(tops)
    ribbons = []
    for link in links:
        thick = max(THIN, link.tokens * scale)
        left, right = places[0][link.source], places[1][link.outcome]
        ribbons.append(
            Ribbon(
                _band(_BAR, left, width - _BAR, right, thick), link.color + " " + link.kind, link
            )
        )
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
