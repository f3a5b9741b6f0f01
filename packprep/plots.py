"""Plots of an output as PNG and SVG files, with matplotlib, for slides and papers: the pictures of the report page."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from packprep.errors import ConfigError
from packprep.facts import Facts, lost, percent
from packprep.histograms import COST_UNIT, Counts, Int64, linear_edges, log_edges

_BLUE, _RED, _GREY = "#2f6fde", "#cf222e", "#818b98"


def write_plots(facts: Facts, directory: Path) -> list[Path]:
    """One PNG and one SVG per plot; the same facts give the same SVG bytes. ConfigError without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("plots need matplotlib, which is not installed; pip install 'packprep[plots]'") from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    directory.mkdir(parents=True, exist_ok=True)
    written = []
    # Without a salt and with a date, every SVG would be another.
    with matplotlib.rc_context({"svg.hashsalt": "packprep", "figure.constrained_layout.use": True, "font.size": 11}):
        for name, draw in _PLOTS.items():
            figure, axes = pyplot.subplots(figsize=(7, 4))
            axes.spines[["top", "right"]].set_visible(False)
            draw(facts, axes)
            for kind, metadata in (("png", {}), ("svg", {"Date": None})):
                written.append(directory / f"{name}.{kind}")
                figure.savefig(written[-1], dpi=150, metadata=metadata)
            pyplot.close(figure)
    return written


def _bars(axes: Any, counts: Counts, edges: Int64, scale: float = 1.0) -> None:
    found = counts.bins(edges)
    axes.bar(
        edges[:-1] / scale, found, np.diff(edges) / scale, align="edge", color=_BLUE, edgecolor="white", linewidth=0.5
    )


def _documents(facts: Facts, axes: Any) -> None:
    counts = facts.measured.documents
    _bars(axes, counts, log_edges(counts.quantile(1)))
    axes.set(xscale="log", xlabel="tokens", ylabel="documents", title="Length of documents")
    axes.axvline(facts.manifest.max_length, color=_RED, linestyle="--", linewidth=1, label="a pack")
    axes.legend(frameon=False)


def _per_pack(facts: Facts, axes: Any) -> None:
    counts = facts.measured.documents_per_pack
    _bars(axes, counts, linear_edges(counts.quantile(1), 40))
    axes.set(xlabel="documents", ylabel="packs", title="Documents in a pack")


def _fill(facts: Facts, axes: Any) -> None:
    _bars(axes, facts.measured.fill, linear_edges(facts.manifest.max_length, 40))
    axes.set(xlabel="tokens", ylabel="packs", yscale="log", title="Fill of packs")


def _cost(facts: Facts, axes: Any) -> None:
    _bars(axes, facts.measured.cost, linear_edges(COST_UNIT, 40), COST_UNIT / 100)
    axes.set(xlabel="% of the cost of one document that fills a pack", ylabel="packs", title="Attention cost of packs")


def _tokens(facts: Facts, axes: Any) -> None:
    tokens = facts.report["tokens"]
    counts = {"in the packs": tokens["tokens_packed"] - tokens["filler"], **lost(tokens), "padding": tokens["filler"]}
    names = [name for name, count in counts.items() if count]
    colors = {"in the packs": _BLUE, "padding": _GREY}
    bars = axes.barh(names, [counts[name] for name in names], color=[colors.get(name, _RED) for name in names])
    axes.bar_label(bars, [f"{counts[name]:,}" for name in names], padding=4)
    axes.set(xlabel="tokens", title="Where every token went")
    axes.invert_yaxis()
    axes.margins(x=0.2)


def _strategies(facts: Facts, axes: Any) -> None:
    names = [outcome.strategy for outcome in facts.outcomes]
    empty = [1 - outcome.utilization for outcome in facts.outcomes]
    ours = facts.options.get("strategy")
    bars = axes.barh(
        names, [100 * share for share in empty], color=[_BLUE if name == ours else _GREY for name in names]
    )
    axes.bar_label(bars, [percent(share) for share in empty], padding=4)
    axes.set(xlabel="empty room, %", title=f"Strategies on the same documents (built: {ours})")
    axes.invert_yaxis()
    axes.margins(x=0.15)


_PLOTS: dict[str, Callable[[Facts, Any], None]] = {
    "tokens": _tokens,
    "document_lengths": _documents,
    "documents_per_pack": _per_pack,
    "fill": _fill,
    "attention_cost": _cost,
    "strategies": _strategies,
}
