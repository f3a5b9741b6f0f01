"""The table of figures: every number of report.json that is computed, printed, planned or judged.

A row of `FIGURES` is one figure, and loops over them make report.json and its JSON Schema, merges,
the closing table, the page, the columns of `plan` and the rules of the CI gate. A new figure is a
row and its function; `scripts/docs/reference.py` then writes it into schemas/report.schema.json.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, cast

from packprep.packing.account import Sums
from packprep.packing.padding import batch_padding
from packprep.schemas.plans.cost import Cost
from packprep.schemas.report import ReportEpoch, SumFigures
from packprep.support.arrays import Int32

if TYPE_CHECKING:
    from packprep.packing.plan import PackPlan

FigureUnit = Literal["count", "share", "number"]
Better = Literal["higher", "lower", "lower above 1", "nearer 0", "as it was", "neither"]
Weight = Literal["segments", "packs", "tokens_packed"]

BATCH = 8
"""Documents of a batch of `padding_of_batch`: the default of transformers and TRL for a device."""


@dataclass(frozen=True)
class PlannedWindow:
    """A window as figures measure it.

    documents: int32 [documents], tokens of each in stored order; 0 if nothing of it is kept.
    ranks, cost: arguments of `PackPlan.straggler`.
    """

    plan: "PackPlan"
    documents: Int32
    ranks: int
    cost: Cost


@dataclass(frozen=True)
class Figure:
    """A number of report.json, or the numbers whose names match a pattern.

    name: path in report.json, with dots; * matches anything.
    unit: shares are shown in percent, counts are whole numbers.
    of: computes it from sums; None if a window gives it, or if sums do not decide it.
    window: computes it from a window; the figure is the mean over windows, weighted by `weight`.
    optional: a report may lack it, since older ones do or rows have no labels.
    limits: least and greatest value; by default 0 for a count, 0 and 1 for a share.
    better: the direction in which it gets better.
    tolerance: how much worse the gate lets it get by default; None: it is checked only on request.
    relative: the tolerance is a share of the baseline.
    ratio: it depends on the machine, so only a relative change is meaningful.
    caption, text: its line in the closing table and on the page; text formats keys of report.json.
    plan: head of its column in `plan`; "" for its JSON only; None if unknown before a build.
    in_epochs: it is also a figure of each epoch.
    words: its description in report.schema.json.
    """

    name: str
    unit: FigureUnit = "count"
    of: Callable[[Sums], float | None] | None = None
    window: Callable[[PlannedWindow], float] | None = None
    weight: Weight = "segments"
    optional: bool = False
    limits: tuple[float | None, float | None] | None = None
    better: Better = "neither"
    tolerance: float | None = None
    relative: bool = False
    ratio: bool = False
    caption: str = ""
    text: str = ""
    plan: str | None = None
    in_epochs: bool = False
    words: str = ""

    @property
    def is_computed(self) -> bool:
        """True if sums decide it, so it is a key of report.json of that name."""
        return self.of is not None or self.window is not None

    def value(self, sums: Sums) -> float | None:
        """The figure of these sums; None if they do not have it."""
        if self.of is not None:
            return self.of(sums)
        if self.optional and self.name not in sums.measured:
            return None
        return sums.mean(self.name, self.weight)

    @property
    def schema(self) -> dict[str, object]:
        """Its JSON Schema, without the description."""
        default: dict[FigureUnit, tuple[float | None, float | None]]
        default = {"count": (0, None), "share": (0, 1), "number": (None, None)}
        least, most = default[self.unit] if self.limits is None else self.limits
        limits = {"minimum": least, "maximum": most}
        kind = "integer" if self.unit == "count" else "number"
        return {"type": kind} | {key: value for key, value in limits.items() if value is not None}


def _padding_of_batch(window: PlannedWindow) -> float:
    """Share of padding in batches of BATCH documents that are padded to their longest.

    Documents are in stored order; longer ones are cut at max_length.
    """
    return batch_padding([window.documents], BATCH, window.plan.max_length).share


FIGURES = (
    Figure(
        "utilization",
        "share",
        attrgetter("utilization"),
        better="higher",
        tolerance=0.001,
        caption="utilization",
        text="{utilization:.3%}",
        plan="utilization",
        in_epochs=True,
        words="(tokens_packed - filler) / (packs * max_length).",
    ),
    Figure(
        "tokens_lost",
        of=attrgetter("tokens_lost"),
        better="lower",
        plan="",
        words="truncated + sum(dropped), with the tokens that a mix did not draw "
        "(dropped.not_drawn).",
    ),
    Figure(
        "tokens_lost_share",
        "share",
        attrgetter("tokens_lost_share"),
        limits=(None, None),
        better="lower",
        plan="tokens lost",
    ),
    Figure("packs", of=attrgetter("packs"), plan="packs", in_epochs=True),
    Figure("segments", of=attrgetter("segments"), in_epochs=True),
    Figure(
        "loss_tokens",
        of=attrgetter("loss_tokens"),
        optional=True,
        in_epochs=True,
        words="Labels in the shards that are not -100; only if rows have labels.",
    ),
    Figure(
        "loss_utilization",
        "share",
        lambda sums: None if sums.loss_tokens is None else sums.loss_utilization,
        optional=True,
        caption="tokens trained",
        text="{loss_tokens:,} ({loss_utilization:.3%} of all packs)",
        words="loss_tokens / (packs * max_length); only if rows have labels.",
    ),
    Figure("tokens.truncated", better="lower", tolerance=0),
    # A mix leaves out what its sources have too much of: more data of them is no loss. Scarce data
    # are: then shares move, a source is repeated more often, or the mix gets smaller.
    Figure("tokens.dropped.not_drawn", better="lower"),
    Figure("tokens.dropped.*", better="lower", tolerance=0),
    Figure("documents.skipped.*", better="lower", tolerance=0),
    Figure("documents.cut_characters", better="lower", tolerance=0),
    Figure("left_out.characters", better="lower", tolerance=0),
    Figure("left_out.tokens", better="lower", tolerance=0),
    Figure(
        "bos_rate",
        "share",
        attrgetter("bos_rate"),
        optional=True,
        better="as it was",
        tolerance=0,
        words="Share of the documents with tokens whose first token is BOS, read from the tokens.",
    ),
    Figure(
        "eos_rate",
        "share",
        attrgetter("eos_rate"),
        optional=True,
        better="as it was",
        tolerance=0,
        words="Share of the documents with tokens whose last token is EOS, read from the tokens.",
    ),
    Figure("mix.sources.*.share", "share", better="as it was", tolerance=0.005),
    Figure("mix.sources.*.epochs", "number", better="lower above 1", tolerance=0.01),
    Figure("mix.sources.*.trained_tokens", better="higher", tolerance=0.01, relative=True),
    Figure("phases.*.sources.*.share", "share", better="as it was", tolerance=0.005),
    Figure(
        "bound",
        of=attrgetter("bound"),
        caption="lower bound",
        text="{bound:,} packs; gap {gap:,} ({gap_share:.3%})",
        plan="",
        in_epochs=True,
        words="Lower bound on the packs of any plan, summed over windows.",
    ),
    Figure(
        "gap",
        of=attrgetter("gap"),
        limits=(None, None),
        better="lower",
        plan="",
        in_epochs=True,
        words="Packs above the bound, before remainders are dropped or filled.",
    ),
    Figure(
        "gap_share",
        "share",
        attrgetter("gap_share"),
        limits=(None, None),
        better="lower",
        tolerance=0.001,
        plan="gap",
    ),
    Figure(
        "bias",
        "number",
        window=lambda window: window.plan.bias,
        weight="segments",
        better="nearer 0",
        caption="bias",
        text="{bias:.2f} (1: equal lengths, 0: random, below 0: long with short)",
        plan="bias",
        in_epochs=True,
        words="Share of the variance of log length that is explained by the pack, adjusted; mean "
        "over windows.",
    ),
    Figure(
        "straggler",
        "number",
        window=lambda window: window.plan.straggler(window.ranks, window.cost),
        weight="packs",
        better="lower",
        tolerance=0.05,
        caption="straggler",
        text="{straggler:.2f}x at {straggler_ranks} ranks",
        plan="straggler",
        in_epochs=True,
        words="Highest attention cost of straggler_ranks neighbouring packs over their mean; mean "
        "over windows.",
    ),
    Figure(
        "padding_of_batch",
        "share",
        window=_padding_of_batch,
        weight="tokens_packed",
        optional=True,
        caption="padding of a batch",
        text=f"{{padding_of_batch:.3%}}, if {BATCH} documents were padded to their longest",
        plan="",
        words=f"Share of padding if batches of {BATCH} documents, in stored order and cut at "
        "max_length, were padded to their longest; mean over windows.",
    ),
    Figure(
        "max_length", of=attrgetter("max_length"), limits=(1, None), better="as it was", tolerance=0
    ),
    Figure("straggler_ranks", better="as it was", tolerance=0),
    Figure("tokens_per_second", "number", better="higher", ratio=True),
    Figure("seconds.*", "number", better="lower", ratio=True),
    Figure("peak_memory_bytes", better="lower", ratio=True),
    Figure("tokens.filler", better="lower"),
    Figure("documents.cut", better="lower"),
    Figure("left_out.*", better="lower"),
    Figure("documents.dropped.*", better="lower"),
    # Numbers inside other tables, by the ends of their names.
    Figure("*utilization", "share"),
    Figure("*share", "share"),
    Figure("*_rate", "share"),
)
"""The first row that matches a name applies, and the gate reports numbers in this order."""


def figure_row(name: str) -> Figure:
    """The row of a number.

    A number of one source has the row of the total, but CI checks it only on request.
    """
    in_total = re.sub(r"^sources\.\d+\.", "", name)
    row = next((row for row in FIGURES if fnmatchcase(in_total, row.name)), Figure(name, "number"))
    return row if in_total == name else replace(row, tolerance=None, relative=False)


def window_figures(window: PlannedWindow) -> dict[str, float]:
    """Figures of a window, by name."""
    return {row.name: row.window(window) for row in FIGURES if row.window is not None}


def terms(figures: Mapping[str, object], weights: Sums) -> dict[str, list[float]]:
    """Terms of `Sums.measured` for figures that windows give; keys of others are ignored.

    weights: the sums of the same windows.
    """
    return {
        row.name: [cast("float", figures[row.name]) * getattr(weights, row.weight)]
        for row in FIGURES
        if row.window is not None and row.name in figures
    }


def figures_of(sums: Sums) -> SumFigures:
    """The numbers of report.json that sums decide, by their keys."""
    tokens = {**sums.ledger, "bos_added": sums.bos_added, "eos_added": sums.eos_added}
    return cast("SumFigures", {"tokens": tokens, **_values(sums)})


def epoch_figures(sums: Sums, epoch: int) -> ReportEpoch:
    """Figures of these sums as those of one epoch."""
    figures = _values(sums)
    kept = {row.name: figures[row.name] for row in FIGURES if row.in_epochs and row.name in figures}
    return cast("ReportEpoch", {"epoch": epoch, "tokens": sums.ledger, **kept})


def _values(sums: Sums) -> dict[str, float]:
    values = {row.name: row.value(sums) for row in FIGURES if row.is_computed}
    return {name: value for name, value in values.items() if value is not None}
