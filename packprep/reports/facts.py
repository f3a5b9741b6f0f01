"""Everything that the report page shows of a finished output, read once."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any

from packprep.inspect.histograms import Measured, measure_output
from packprep.inspect.report_file import read_report
from packprep.output.report import shown_names
from packprep.packing.account import Dropped, Sums
from packprep.preview.sweep import Row
from packprep.reports.flows import Link
from packprep.reports.replan import replan
from packprep.schemas.manifest import Manifest, Output, read_manifest
from packprep.schemas.report import Ledger, Report
from packprep.support.progress import Progress

COLORS = 8
"""Colours of a page, c0 to c7. If there are more sources, the smaller ones share the last."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One strategy in the comparison.

    ours: the strategy of the build. fewest: no other strategy needs fewer packs. empty: share of
    the room of its packs that holds no token.
    """

    outcome: Row
    ours: bool
    fewest: bool
    empty: float


@dataclass(frozen=True)
class Facts:
    """An output, and the plans of other strategies for the same documents.

    measured: counts from its shards. outcomes: one row for each strategy.
    """

    output: Output
    manifest: Manifest
    report: Report
    measured: Measured
    outcomes: list[Row]

    @property
    def ranks(self) -> int:
        """Number of GPUs that step together, as the build planned for."""
        return self.report["straggler_ranks"]

    @property
    def options(self) -> dict[str, Any]:
        """The options that affect the bytes."""
        return dict(self.manifest.data["inputs"]["options"])

    @cached_property
    def names(self) -> list[str]:
        """Short names of the sources."""
        sources = self.report["sources"]
        files = short_names([source["name"] for source in sources])
        return [visible(name) for name in shown_names(sources, files)]

    @cached_property
    def by_size(self) -> list[int]:
        """Numbers of the sources, most tokens first."""
        tokens = [source["tokens"]["tokens_in"] for source in self.report["sources"]]
        return sorted(range(len(tokens)), key=lambda number: -tokens[number])

    @cached_property
    def _places(self) -> dict[int, int]:
        return {number: place for place, number in enumerate(self.by_size)}

    def color(self, source: int) -> str:
        """Colour of a source; c0 is the largest source."""
        return f"c{min(self._places[source], COLORS - 1)}"

    def label(self, source: int) -> str:
        """Name of a source in the legend; small sources share one entry."""
        rest = len(self.names) - COLORS + 1
        return (
            self.names[source]
            if rest <= 1 or self._places[source] < COLORS - 1
            else f"{rest:,} smaller files"
        )

    def links(self) -> list[Link]:
        """Tokens of each source by outcome, those in packs first."""
        totals: dict[tuple[str, str, str, str], int] = {}
        filler_packs = self.report["tokens"]["filler"]
        for number in self.by_size:
            tokens = self.report["sources"][number]["tokens"]
            filler_packs -= tokens["filler"]
            outcomes = [("in the packs", "kept", Sums.of_ledger(tokens).tokens_kept)]
            outcomes += [(reason, "lost", count) for reason, count in lost(tokens).items()]
            outcomes += [("not drawn for the mix", "undrawn", not_drawn(tokens))]
            outcomes += [("padding", "padding", tokens["filler"])]
            for outcome, kind, count in outcomes:
                key = (self.label(number), outcome, self.color(number), kind)
                totals[key] = totals.get(key, 0) + count
        if filler_packs:
            totals["packs added", "padding", "filler", "padding"] = filler_packs
        links = [
            Link(source, outcome, count, color, kind)
            for (source, outcome, color, kind), count in totals.items()
        ]
        order = ("kept", "lost", "undrawn", "padding")
        return sorted(
            (link for link in links if link.tokens), key=lambda link: order.index(link.kind)
        )

    def strategies(self) -> list[Strategy]:
        """The strategy of the build and all others, for the page."""
        fewest = min((outcome.figures["packs"] for outcome in self.outcomes), default=0)
        return [
            Strategy(
                outcome=outcome,
                ours=outcome.strategy == self.options.get("strategy"),
                fewest=outcome.figures["packs"] == fewest,
                empty=1 - outcome.figures["utilization"],
            )
            for outcome in self.outcomes
        ]


def gather(output: Output, progress: Progress | None = None) -> Facts:
    """Read everything that a report shows; no tokens are read.

    Raises FormatError if `output` is damaged or not a finished build.
    """
    manifest = read_manifest(output)
    return Facts(
        output,
        manifest,
        read_report(output, manifest),
        measure_output(output, progress),
        replan(output, progress=progress),
    )


def lost(tokens: Ledger) -> dict[str, int]:
    """Lost tokens of a ledger by reason, in words. Tokens that a mix did not draw are not lost."""
    counts = {"cut off: longer than a pack": tokens["truncated"]}
    dropped = {
        reason: count for reason, count in tokens["dropped"].items() if reason != Dropped.NOT_DRAWN
    }
    counts |= {f"dropped: {_words(reason)}": count for reason, count in dropped.items()}
    return {words: count for words, count in counts.items() if count}


def _words(reason: str) -> str:
    """Words for a reason; an output of a later version may have reasons unknown here."""
    return Dropped(reason).words if reason in set(Dropped) else reason.replace("_", " ")


def not_drawn(tokens: Ledger) -> int:
    """Tokens that a mix did not draw, to keep its shares; these are not lost."""
    return tokens["dropped"].get(Dropped.NOT_DRAWN, 0)


def short_names(names: Sequence[str]) -> list[str]:
    """Remove the folders that all names share.

    Example: a/b/x.txt, a/c.txt -> b/x.txt, c.txt.
    """
    parts = [name.split("/") for name in names]
    shared = sum(
        1
        for _ in takewhile(
            lambda place: len(set(place)) == 1, zip(*(path[:-1] for path in parts), strict=False)
        )
    )
    return [visible("/".join(path[shared:])) for path in parts]


def visible(text: str) -> str:
    """Replace characters that a page cannot show by U+FFFD.

    These are control characters, and bytes of a file name that are not UTF-8.
    """
    return "".join(part if part.isprintable() else "\ufffd" for part in text)


def short(count: float) -> str:
    """Format a count in four digits or fewer: 12,172,244 -> 12.2M, 4,096 -> 4,096."""
    for unit, size, least in (("T", 1e12, 1e12), ("G", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e3, 1e4)):
        if count >= least:
            return f"{count / size:.1f}".removesuffix(".0") + unit
    return f"{count:,.0f}"


def percent(share: float) -> str:
    """Format a share with two decimals, never rounded to 0% or 100%.

    Example: 0.999999 -> 99.99%, 0.000001 -> <0.01%.
    """
    if 0 < share < 0.0001:
        return "<0.01%"
    return "99.99%" if 0.9999 < share < 1 else f"{share:.2%}".replace(".00%", "%")


def decimals(value: float) -> str:
    """Format with two decimals, without a minus before zero."""
    return f"{round(value, 2) + 0.0:.2f}"
