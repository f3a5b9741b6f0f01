"""Picture of one tree: a line for each row, with its own tokens and those that it shares.

Numbers in, positions out; page.html draws them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from packprep.reports.charts import THIN

_ROOM = 1000  # width of the picture
_LINES = 16  # rows that are drawn
_GAP = 1  # between bars
_LINE = 16  # height of a line


@dataclass(frozen=True)
class TreeBar:
    """A run of tokens of a row. x, width: in thousandths of the longest row.

    segment: that has the tokens, None for all that a row above has too. rows: that have the
    segment.
    """

    segment: int | None
    x: float
    y: int
    width: float
    css: str
    tokens: int
    rows: int
    height: int = _LINE - 2 * _GAP


@dataclass(frozen=True)
class TreeBars:
    """The rows of a tree in depth-first order, as bars.

    rows, shown: rows of the tree, and those in the picture. tokens, row_tokens: in the pack, and of
    all rows. longest: tokens of the longest row.
    """

    bars: list[TreeBar]
    rows: int
    shown: int
    tokens: int
    row_tokens: int
    longest: int

    @property
    def height(self) -> int:
        return _LINE * self.shown


def trees_of(parents: Sequence[int]) -> list[range]:
    """Segments of each tree of a pack. parents: in depth-first order, -1 at a root."""
    roots = [segment for segment, parent in enumerate(parents) if parent < 0]
    ends = [*roots[1:], len(parents)]
    return [range(root, end) for root, end in zip(roots, ends, strict=True)]


def tree_bars(parents: Sequence[int], lengths: Sequence[int], ending: Sequence[int]) -> TreeBars:
    """Bars of a tree.

    parents: [segments], in depth-first order, -1 at the root. lengths: tokens of each. ending: rows
    that end at each. Example: a root of two tokens with two leaves is two lines; the first has the
    root and a leaf, the second the root in grey and the other leaf.
    """
    before, depth = [0] * len(parents), [0] * len(parents)
    for segment, parent in enumerate(parents):
        if parent >= 0:
            before[segment] = before[parent] + lengths[parent]
            depth[segment] = depth[parent] + 1
    rows = list(ending)
    for segment in range(len(parents) - 1, 0, -1):
        rows[parents[segment]] += rows[segment]
    last = [segment for segment, count in enumerate(ending) for _ in range(count)]
    longest = max(start + length for start, length in zip(before, lengths, strict=True))
    bars: list[TreeBar] = []
    drawn = -1  # segments up to this one are in lines above
    for line, end in enumerate(last[:_LINES]):
        path = [end]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        new = [segment for segment in reversed(path) if segment > drawn]
        shared = before[new[0]] if new else before[end] + lengths[end]
        runs: list[tuple[int | None, int]] = [(segment, lengths[segment]) for segment in new]
        for own, tokens in [(None, shared), *runs] if shared else runs:
            start = 0 if own is None else before[own]
            bar = TreeBar(
                segment=own,
                x=round(start / longest * _ROOM, 2),
                y=_LINE * line + _GAP,
                width=round(max(tokens / longest * _ROOM - _GAP, THIN), 2),
                css="filler" if own is None else f"c{depth[own] % 2}",
                tokens=tokens,
                rows=0 if own is None else rows[own],
            )
            bars.append(bar)
        drawn = end
    return TreeBars(
        bars=bars,
        rows=rows[0],
        shown=min(rows[0], _LINES),
        tokens=sum(lengths),
        row_tokens=sum(before[segment] + lengths[segment] for segment in last),
        longest=longest,
    )
