"""The page of an output: cards, findings, histograms and a picture of its first packs.

page.html is the layout; it has no script and loads nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from itertools import pairwise
from typing import Any, NamedTuple

import jinja2
import numpy as np

from ..schemas.columns import FILLER
from ..schemas.files import FormatError
from ..schemas.manifest import Output
from .closing import table
from .figures import FIGURES, as_text, short_names, values
from .findings import Facts, findings
from .measure import Counts, measure

_COLORS = 8  # of sources; if there are more, all have one
_BINS, _TICKS = 24, 5  # of a histogram, at most
_WIDE = 1000  # units of a picture
_NARROWEST = 6  # a segment that is narrower is drawn together with the next ones


class Bar(NamedTuple):
    """A bar of a picture, in units of a thousandth of its width. title: shown by a pointer."""

    x: float
    width: float
    title: str
    color: str = ""
    share: float = 1.0


class Histogram(NamedTuple):
    """A histogram. most: count of its highest bar. ticks: place and text."""

    bars: list[Bar]
    ticks: list[tuple[float, str]]
    most: int


def page(output: Output, facts: Facts) -> str:
    """The page of an output, as HTML. Raises FormatError for a damaged shard."""
    report, data = facts.report, output.manifest.data
    try:
        measured = measure(output, report["windows"])
    except (ValueError, IndexError) as error:  # FormatError too
        raise FormatError(f"{error}; packprep verify {output.files} names all damage") from None
    rows_known = "document_ids" in output.manifest.columns  # else no picture: it would invent them
    names = short_names([source["name"] for source in report["sources"]])
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = resources.files(__package__).joinpath("page.html").read_text("utf-8")
    numbers = values(report)
    return environment.from_string(template).render(
        name=str(output.files),
        report=report,
        trained=numbers.get("trained_share"),
        findings=findings(facts._replace(measured=measured)),
        table=list(table(report, facts.tokenizer)),
        figures=[
            (row.name, as_text(row.name, numbers[row.name]), row.words)
            for row in FIGURES
            if row.words and row.name in numbers
        ],
        histograms=[
            ("Length of documents", "tokens", "documents", measured.documents),
            ("Documents in a pack", "documents", "packs", measured.per_pack),
            ("Fill of packs", "tokens", "packs", measured.fill),
        ],
        histogram=histogram,
        packs=list(pictures(measured.first, data, report)) if rows_known else [],
        colors=_COLORS,
        sources=list(zip(names, report["sources"], strict=True)),
        options=facts.options,
        versions=output.manifest.run["versions"],
    )


def histogram(counts: Counts) -> Histogram:
    """Bars of equal width; the first one has all smaller values too."""
    each, numbers = counts.sorted
    edges = edges_of(counts)
    bars_of = np.clip(np.searchsorted(edges, each, "right") - 1, 0, None)
    heights = np.bincount(bars_of, numbers, len(edges) - 1).astype(int).tolist()
    width, most = _WIDE / len(heights), max([1, *heights])
    bars = list[Bar]()
    for at, ((low, high), count) in enumerate(zip(pairwise(edges), heights, strict=True)):
        inside = f"{low:,}" if high - low == 1 else f"{low:,} to {high - 1:,}"
        words = f"below {high:,}" if at == 0 and len(each) and each[0] < low else inside
        bars.append(Bar(at * width, width, f"{words}: {count:,}", share=count / most))
    every = -(-len(heights) // _TICKS)
    middle = width / 2 if edges[1] - edges[0] == 1 else 0
    places = [at for at in range(0, len(heights), every) if at * width < 0.93 * _WIDE]
    return Histogram(bars, [(at * width + middle, f"{edges[at]:,}") for at in places], most)


def edges_of(counts: Counts) -> list[int]:
    """Edges of at most 24 bins, from where 1% of the values are smaller to above the largest.

    Steps are 1, 2, 5, 10, ...; or edges are powers of two if most values would be in a few bins.
    """
    low, middle, high = (counts.quantile(share) for share in (0.01, 0.5, 1))
    if middle - low < (high - low) / 6 and high - low > 4 * _BINS:
        return [2**at for at in range(64) if low < 2 ** (at + 1) and 2**at <= high] + [high + 1]
    steps = (digit * 10**power for power in range(19) for digit in (1, 2, 5))
    step = next(step for step in steps if high // step - low // step < _BINS)
    return [*range(low // step * step, high // step * step + step + 1, step)]


def pictures(
    packs: Sequence[Sequence[tuple[int, int]]], data: Mapping[str, Any], report: Mapping[str, Any]
) -> Iterator[tuple[list[Bar], float]]:
    """Bars of each pack, and how full it is. packs: see `Measured.first`."""
    firsts, names = [source["first_row"] for source in data["sources"]], report["sources"]
    room = report["max_length"]
    for pack in packs:
        bars, x, tokens, documents = list[Bar](), 0.0, 0, 0
        for number, (length, document) in enumerate(pack):
            tokens, documents = tokens + length, documents + 1
            width = tokens / room * _WIDE
            if width < _NARROWEST and number + 1 < len(pack):
                continue
            source = int(np.searchsorted(firsts, document, "right")) - 1
            title = f"row {document - firsts[source]:,} of {names[source]['name']}"
            title = title if documents == 1 else f"{documents} documents"
            title = f"{title}: {tokens:,} tokens" if document != FILLER else "padding"
            color = f"c{source if len(firsts) <= _COLORS else 0}"
            color = "filler" if document == FILLER else color
            bars.append(Bar(x, width, title, color))
            x, tokens, documents = x + width, 0, 0
        yield bars, sum(length for length, document in pack if document != FILLER) / room
