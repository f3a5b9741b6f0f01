"""The computed numbers of report.json: a row each, for the report, tools and the CI gate."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..packing.plan import PackPlan
from ..schemas.arrays import Int32
from ..schemas.cost import Cost
from .account import Sums

BATCH = 8
"""Documents of a batch of `padding_of_batch`: the default of transformers and TRL for a device."""

Better = Literal["higher", "lower", "nearer 0", "as it was", "neither"]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number of report.json.

    name: its key. unit: shares are shown in percent. of: f(sums, max_length); None if windows give
    it. weight: sums by which the figure of windows is averaged. better: the direction in which it
    gets better. tolerance: how much worse the gate lets it get; None: it is not checked. caption,
    text: its line in the closing table. words: its meaning.
    """

    name: str
    unit: Literal["count", "share", "number"]
    of: Callable[[Sums, int], float | None] | None = None
    weight: str = ""
    better: Better = "neither"
    tolerance: float | None = None
    caption: str = ""
    text: str = ""
    words: str = ""


def _share(part: float, total: float, if_empty: float = 0.0) -> float:
    return part / total if total else if_empty


FIGURES = (
    Figure(
        name="utilization",
        unit="share",
        of=lambda s, n: _share(s.tokens_packed - s.filler, s.packs * n, 1.0),
        better="higher",
        tolerance=0.001,
        caption="utilization",
        text="{utilization:.3%}",
        words="(tokens_packed - filler) / (packs * max_length)",
    ),
    Figure(
        name="tokens_lost",
        unit="count",
        of=lambda s, _: s.tokens_lost,
        better="lower",
        words="truncated + sum(dropped)",
    ),
    Figure(
        name="tokens_lost_share",
        unit="share",
        of=lambda s, _: _share(s.tokens_lost, s.tokens_in),
        better="lower",
        words="tokens_lost / tokens_in",
    ),
    Figure(name="packs", unit="count", of=lambda s, _: s.packs),
    Figure(name="segments", unit="count", of=lambda s, _: s.segments),
    Figure(
        name="loss_tokens",
        unit="count",
        of=lambda s, _: s.loss_tokens,
        words="labels in the shards that are not -100, if rows have labels",
    ),
    Figure(
        name="loss_utilization",
        unit="share",
        of=lambda s, n: None if s.loss_tokens is None else _share(s.loss_tokens, s.packs * n, 1.0),
        caption="tokens trained",
        text="{loss_tokens:,} ({loss_utilization:.3%} of all packs)",
        words="loss_tokens / (packs * max_length)",
    ),
    Figure(
        name="bos_rate",
        unit="share",
        of=lambda s, _: _share(s.bos_found, s.documents - s.empty),
        better="as it was",
        tolerance=0,
        words="share of the documents with tokens whose first token is BOS, read from the tokens",
    ),
    Figure(
        name="eos_rate",
        unit="share",
        of=lambda s, _: _share(s.eos_found, s.documents - s.empty),
        better="as it was",
        tolerance=0,
        words="share of the documents with tokens whose last token is EOS, read from the tokens",
    ),
    Figure(
        name="bound",
        unit="count",
        of=lambda s, _: s.bound,
        caption="lower bound",
        text="{bound:,} packs; gap {gap:,} ({gap_share:.3%})",
        words="lower bound on the packs of any plan, summed over windows",
    ),
    Figure(
        name="gap",
        unit="count",
        of=lambda s, _: s.planned - s.bound,
        better="lower",
        words="packs above the bound, before multiples are made",
    ),
    Figure(
        name="gap_share",
        unit="share",
        of=lambda s, _: _share(s.planned - s.bound, s.bound),
        better="lower",
        tolerance=0.001,
    ),
    Figure(
        name="bias",
        unit="number",
        weight="segments",
        better="nearer 0",
        caption="bias",
        text="{bias:.2f} (1: equal lengths, 0: random, below 0: long with short)",
        words="share of the variance of log length that the pack explains; mean over windows",
    ),
    Figure(
        name="straggler",
        unit="number",
        weight="packs",
        better="lower",
        tolerance=0.05,
        caption="straggler",
        text="{straggler:.2f}x at {straggler_ranks} ranks",
        words="highest cost of straggler_ranks neighbouring packs over their mean",
    ),
    Figure(
        name="padding_of_batch",
        unit="share",
        weight="tokens",
        caption="padding of a batch",
        text=f"{{padding_of_batch:.3%}}, if {BATCH} documents were padded to their longest",
        words=f"padding of batches of {BATCH} documents in stored order, cut at max_length",
    ),
)


def window_figures(plan: PackPlan, kept: Int32, ranks: int, cost: Cost) -> dict[str, float]:
    """Figures of one window. kept: tokens of each document, 0 if nothing of it is in a pack."""
    return {
        "bias": plan.bias,
        "straggler": plan.straggler(ranks, cost),
        "padding_of_batch": padding(kept, BATCH, plan.max_length),
    }


def padding(lengths: Int32, batch: int, max_length: int) -> float:
    """Share of padding in batches of documents that are padded to their longest; 0 are left out."""
    cut = np.minimum(lengths[lengths > 0], max_length)
    starts = np.arange(0, len(cut), batch)
    if not len(starts):
        return 0.0
    places = np.maximum.reduceat(cut, starts) * np.minimum(len(cut) - starts, batch)
    return float(1 - cut.sum(dtype=np.int64) / places.sum(dtype=np.int64))


def figures_of(
    sums: Sums, max_length: int, windows: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """The computed numbers of report.json. windows: facts of each, with their figures."""
    values: dict[str, float] = {}
    for row in FIGURES:
        if row.of is not None:
            value = row.of(sums, max_length)
        else:
            weights = [window[row.weight] for window in windows]
            terms = sum(w * window[row.name] for w, window in zip(weights, windows, strict=True))
            value = _share(terms, sum(weights))
        if value is not None:
            values[row.name] = value
    return values
