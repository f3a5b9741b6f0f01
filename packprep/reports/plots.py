"""Charts of the report page as PNG and SVG files, for slides and papers. Needs matplotlib."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from packprep.reports.facts import Facts, percent
from packprep.reports.flows import sums
from packprep.support.errors import ConfigError

_BLUE, _RED, _GREY = "#2f6fde", "#cf222e", "#818b98"


def write_plots(facts: Facts, directory: Path) -> list[Path]:
    """Write one PNG and one SVG for each plot; the same facts give the same SVG bytes.

    Raises ConfigError if matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise ConfigError(
            "plots need matplotlib, which is not installed; run pip install 'packprep[plots]'"
        ) from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    directory.mkdir(parents=True, exist_ok=True)
    written = []
    # A fixed salt and no date: else each SVG would have other bytes.
    with matplotlib.rc_context(
        {"svg.hashsalt": "packprep", "figure.constrained_layout.use": True, "font.size": 11}
    ):
        for name, draw in _PLOTS.items():
            figure, axes = pyplot.subplots(figsize=(7, 4))
            axes.spines[["top", "right"]].set_visible(False)
            draw(facts, axes)
            for kind, metadata in (("png", {}), ("svg", {"Date": None})):
                written.append(directory / f"{name}.{kind}")
                figure.savefig(written[-1], dpi=150, metadata=metadata)
            pyplot.close(figure)
    return written


def _histogram(number: int, facts: Facts, axes: Any) -> None:
    shown = facts.histograms()[number]
    colors = [_GREY if each.rest else _BLUE for each in shown.bins]
    counts = [each.count for each in shown.bins]
    axes.bar(
        range(len(counts)),
        counts,
        1.0,
        align="edge",
        color=colors,
        edgecolor="white",
        linewidth=0.5,
    )
    axes.set_xticks([place for place, _ in shown.ticks], [text for _, text in shown.ticks])
    for name, place in shown.marks.items():
        color, style = (_RED, "-") if name == "a pack" else ("black", "--")
        axes.axvline(place, color=color, linestyle=style, linewidth=1, label=name)
    axes.set(xlim=(0, len(counts)), xlabel=shown.unit, ylabel=shown.of, title=shown.title)
    axes.legend(frameon=False)
    _whole_numbers(axes, "y", 8)


def _tokens(facts: Facts, axes: Any) -> None:
    totals = sums(facts.links(), "outcome")
    colors = {"kept": _BLUE, "lost": _RED}
    bars = axes.barh(
        [name for name, _, _ in totals],
        [count for _, count, _ in totals],
        color=[colors.get(kind, _GREY) for _, _, kind in totals],
    )
    axes.bar_label(bars, [f"{count:,}" for _, count, _ in totals], padding=4)
    axes.set(xlabel="tokens", title="Where every token went")
    axes.invert_yaxis()
    axes.margins(x=0.2)
    _whole_numbers(axes, "x", 4)


def _whole_numbers(axes: Any, axis: str, most: int) -> None:
    """Write tick labels in full: 12,000,000, not 1.2 with 1e7 in a corner."""
    axes.locator_params(axis=axis, nbins=most, integer=True)
    getattr(axes, f"{axis}axis").set_major_formatter("{x:,.0f}")


def _strategies(facts: Facts, axes: Any) -> None:
    rows = facts.strategies()
    bars = axes.barh(
        [row.outcome.strategy for row in rows],
        [100 * row.empty for row in rows],
        color=[_BLUE if row.ours else _GREY for row in rows],
    )
    axes.bar_label(bars, [percent(row.empty) for row in rows], padding=4)
    axes.set(
        xlabel="empty room, %",
        title=f"Strategies on the same documents (built: {facts.options.get('strategy')})",
    )
    axes.invert_yaxis()
    axes.margins(x=0.15)


_PLOTS: dict[str, Callable[[Facts, Any], None]] = {
    "tokens": _tokens,
    "document_lengths": partial(_histogram, 0),
    "documents_per_pack": partial(_histogram, 1),
    "fill": partial(_histogram, 2),
    "attention_cost": partial(_histogram, 3),
    "strategies": _strategies,
}
