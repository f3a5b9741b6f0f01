"""The table of figures: which numbers of report.json are shown and judged, and how.

A figure has the path of its number in report.json as its name: utilization, tokens.truncated,
sources.web.jsonl.bos_rate. A new figure is one row; the first row whose name matches applies.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any, NamedTuple

from ..plan.account import BATCH

Report = Mapping[str, Any]
"""The content of report.json."""
OF_SOURCE = "sources."
"""Beginning of the names of numbers of one source."""


class Figure(NamedTuple):
    """A number of a report, or those whose names match.

    name: with * for anything. unit: count, share (shown in percent) or number. better: higher,
    lower, lower above 1, same; "" is neither. tolerance: how much worse `packprep check` lets it
    get, with % of its baseline; None: held only on request. words: what it is. cure: what makes it
    better. text: its line in the closing table, of keys of the report, under caption or name. of:
    computes it if it is not in report.json; None if the report has none.
    """

    name: str
    unit: str = "count"
    better: str = ""
    tolerance: str | None = None
    words: str = ""
    cure: str = ""
    caption: str = ""
    text: str = ""
    of: Callable[[Report], float | None] | None = None


def _trained_share(report: Report) -> float | None:
    real = report["tokens"]["tokens_packed"] - report["tokens"]["filler"]
    return report["loss_tokens"] / max(real, 1) if "loss_tokens" in report else None


_PLAN = "compare strategies and lengths with packprep plan"
_REASONS = "packprep report names the reasons"
FIGURES = (
    Figure(
        "utilization",
        "share",
        "higher",
        "0.001",
        "tokens of documents / (packs * max_length)",
        cure=_PLAN,
        text="{utilization:.3%}",
    ),
    Figure(
        "loss_utilization",
        "share",
        words="tokens with a label / (packs * max_length)",
        caption="tokens trained",
        text="{loss_tokens:,} ({loss_utilization:.3%} of all packs)",
    ),
    Figure("trained_share", "share", words="share of tokens with a label", of=_trained_share),
    Figure("tokens_lost_share", "share", "lower", None, "drawn tokens in no pack", _REASONS),
    Figure("tokens.truncated", "count", "lower", "0", "tokens cut off", "raise --max-length"),
    Figure("tokens.dropped.not_drawn", "count", "lower", None, "tokens that no window has"),
    Figure("tokens.dropped.*", "count", "lower", "0", "tokens dropped", _REASONS),
    Figure("documents.skipped.*", "count", "lower", "0", "bad rows", "--on-error stop names them"),
    Figure("documents.cut_characters", "count", "lower", "0", "text removed", "see truncate_at"),
    Figure("left_out.characters", "count", "lower", "0", "text left out", "see --chat-template"),
    Figure("bos_rate", "share", "same", "0", "documents that begin with BOS", "see --bos"),
    Figure("eos_rate", "share", "same", "0", "documents that end with EOS", "see --eos"),
    Figure("mix.sources.*.trained_tokens", "count", "higher", "1%", "", "see --weights"),
    Figure("mix.sources.*.passes", "number", "lower above 1", "0.01", "", "lower its weight"),
    Figure("mix.sources.*.share", "share"),
    Figure(
        "bound",
        words="packs that any plan needs",
        caption="lower bound",
        text="{bound:,} packs; gap {gap:,} ({gap_share:.3%})",
    ),
    Figure("gap_share", "share", "lower", "0.001", "packs above the lower bound", _PLAN),
    Figure(
        "bias",
        "number",
        words="how alike the lengths of the documents in a pack are",
        text="{bias:.2f} (1: equal lengths, 0: random, <0: long with short)",
    ),
    Figure(
        "straggler",
        "number",
        "lower",
        "0.05",
        "time of a step, relative to equal work on all ranks",
        cure="--order balanced makes steps even",
        text="{straggler:.2f}x at {straggler_ranks} ranks",
    ),
    Figure(
        "padding_of_batch",
        "share",
        words="what batches without packing would waste",
        caption="padding of a batch",
        text=f"{{padding_of_batch:.3%}}, if {BATCH} documents were padded to their longest",
    ),
    Figure("max_length", "count", "same", "0", "most tokens of a pack", "see --max-length"),
    Figure("straggler_ranks", "count", "same", "0", "ranks of straggler", "see --order"),
    Figure("tokens_lost", "count", "lower"),
    Figure("gap", "count", "lower"),
    Figure("tokens_per_second", "count", "higher"),
    Figure("seconds.*", "number", "lower"),
    Figure("peak_memory_bytes", "count", "lower"),
)


GAIN: Mapping[str, Callable[[float, float], float]] = {
    "higher": lambda now, was: now - was,
    "lower": lambda now, was: was - now,
    "lower above 1": lambda now, was: max(was, 1) - max(now, 1),
    "same": lambda now, was: -abs(now - was),
}
"""By the better direction of a figure: f(value, baseline), by how much it is better."""


def figure_of(name: str) -> Figure:
    """The row of a number; a number of one source has the row of the total, but no tolerance."""
    if name.startswith(OF_SOURCE):
        rows = (row for row in FIGURES if fnmatchcase(name, f"{OF_SOURCE}*.{row.name}"))
        return next(rows, Figure(name))._replace(tolerance=None)
    return next((row for row in FIGURES if fnmatchcase(name, row.name)), Figure(name))


def values(report: Report) -> dict[str, float]:
    """Numbers of a report by name, in the order of the table, without those of windows."""
    shown = {key: item for key, item in report.items() if key not in ("windows", "report_version")}
    computed = {row.name: row.of(report) for row in FIGURES if row.of is not None}
    shown |= {name: value for name, value in computed.items() if value is not None}
    return dict(sorted(_numbers(shown, ""), key=lambda number: _place(number[0])))


def _place(name: str) -> int:
    rows = () if name.startswith(OF_SOURCE) else enumerate(FIGURES)
    return next((at for at, row in rows if fnmatchcase(name, row.name)), len(FIGURES))


def _numbers(value: Any, name: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
        names = short_names([str(item.get("name", at)) for at, item in enumerate(value)])
        value = dict(zip(names, value, strict=True))
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


def filler_of(report: Mapping[str, Any]) -> int:
    """Packs that only make a multiple; each has one segment."""
    return max(int(report["packs"] - report["bound"] - report["gap"]), 0)


def short_names(names: Sequence[str]) -> list[str]:
    """The last parts of paths, as few as tell them apart: a/x, b/x, c/y -> a/x, b/x, c/y.

    So a name stays as it is where sources move together. Equal names stay whole.
    """
    parts = [PurePath(name).parts for name in names]
    for count in range(1, max(map(len, parts), default=0)):
        short = ["/".join(each[-count:]) for each in parts]
        if len({*short}) == len(names):
            return short
    return [*names]


def as_text(name: str, value: float | None, *, change: bool = False) -> str:
    """A number: shares in percent, counts with commas. change: with its sign, shares in points."""
    if value is None:
        return "none"
    sign = "+" if change else ""
    if figure_of(name).unit == "share":
        number = f"{100 * value:{sign}.4f}".rstrip("0").rstrip(".")
        return number + (" points" if change else "%")
    return f"{value:{sign},{'.15g' if figure_of(name).unit == 'count' else '.4g'}}"
