"""Reports side by side: the options and the figures that differ, each compared with the first."""

from collections.abc import Iterator, Sequence
from string import ascii_uppercase

from .figures import GAIN, OF_SOURCE, as_text, figure_of, values
from .places import Place


def compared(places: Sequence[Place]) -> Iterator[str]:
    """Lines of the comparison. places: with reports."""
    letters = [ascii_uppercase[at % 26] * (at // 26 + 1) for at in range(len(places))]
    for letter, place in zip(letters, places, strict=True):
        yield f"{letter}  {place.name}"
    facts = [place.facts for place in places if place.facts is not None]
    options = {name: None for each in facts for name in each.options}
    settings = [
        [name, *("default" if (v := each.options.get(name)) is None else str(v) for each in facts)]
        for name in sorted(options)
    ]
    if differ := [row for row in settings if len({*row[1:]}) > 1]:
        yield "\noptions that differ"
        yield from grid([["", *letters], *differ])
    numbers = [values(each.report) for each in facts]
    every = dict.fromkeys(name for each in numbers for name in each)
    names = [name for name in every if not name.startswith(OF_SOURCE)]
    rows = [
        [name, *(_judged(name, each.get(name), numbers[0].get(name)) for each in numbers)]
        for name in names
        if len({each.get(name) for each in numbers}) > 1
    ]
    if rows:
        yield "\nnumbers that differ (+ better, - worse than A)"
        yield from grid([["", *letters], *rows])
    yield f"\n{len(names) - len(rows):,} numbers are equal; --json has those of sources too"


def _judged(name: str, value: float | None, first: float | None) -> str:
    """A number with its mark: + better, - worse than the first."""
    better, mark = figure_of(name).better, "  "
    if better in GAIN and value is not None and first is not None and better != "same":
        gain = GAIN[better](value, first)
        mark = " +" if gain > 0 else " -" if gain < 0 else mark
    return as_text(name, value) + mark


def grid(rows: Sequence[Sequence[str]], right: slice = slice(1, None)) -> Iterator[str]:
    """Rows as lines with aligned columns. right: columns of numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numbers = range(len(widths))[right]
    for row in rows:
        cells = [
            cell.rjust(width) if at in numbers else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
