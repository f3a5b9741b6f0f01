"""The CI gate: compares the numbers of a report with a baseline.

A baseline is a small JSON file for version control: name, number. A report.json works too. A
tolerance is an allowed change for the worse: `-0.001` lets a number fall by 0.001, `+10` lets it
rise by 10, `-20%` lets it fall by a fifth of its baseline. A number that gets better passes.
Numbers that describe settings must not change.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packprep.inspect.report_file import read_json
from packprep.output.report import shown_names
from packprep.packing.account import Dropped
from packprep.packing.figures import figure_row
from packprep.reports.figures import (
    GROUPS,
    by_row,
    figure_of,
    figure_text,
    figures,
    resolve_name,
    shown_change,
)
from packprep.schemas.report import Report
from packprep.schemas.storage.writing import write_file
from packprep.support.errors import ConfigError, InputError, nearest

_NAMED = 3  # sources named in a sentence
_ROUNDING = 1e-12  # relative; 0.999 - 0.998 is not exactly 0.001 in binary


@dataclass(frozen=True, kw_only=True)
class NumberVerdict:
    """One number, compared with its baseline or with a limit.

    baseline: None for a limit. value: None if the report lacks the number. allowed: the allowed
    change, in words. sources: for a failed number, the sources it comes from with their numbers,
    worst first.
    """

    name: str
    baseline: float | None
    value: float | None
    allowed: str
    passed: bool
    sources: tuple[str, ...] = ()

    @property
    def change(self) -> float | None:
        return None if self.baseline is None or self.value is None else self.value - self.baseline

    @property
    def sentence(self) -> str:
        """Sentence for a failed number: value, baseline, change, and the allowed change."""
        if self.value is None:
            return (
                f"{self.name} was {figure_text(self.name, self.baseline)} in the baseline and is "
                "not in the report"
            )
        now = figure_text(self.name, self.value)
        if self.change is None:
            return f"{self.name} is {now}; {self.allowed}"
        was, change = figure_text(self.name, self.baseline), shown_change(self.name, self.change)
        by_source = f" ({', '.join(self.sources)})" if self.sources else ""
        return (
            f"{self.name} was {was} and is {now}, a change of {change}; {self.allowed}{by_source}"
        )


@dataclass(frozen=True)
class Tolerance:
    """Allowed change for the worse: an amount, or a share of the baseline if relative."""

    amount: float
    relative: bool = False


def parse_tolerances(texts: Iterable[str], known: Iterable[str]) -> dict[str, Tolerance]:
    """Parse NAME=CHANGE, such as utilization=-0.001, tokens_lost=+10, tokens_per_second=-20%.

    Returns tolerances by full name. The last one wins; the name of one number wins over the name
    of a table. Raises ConfigError.
    """
    names = list(known)
    tables: dict[str, Tolerance] = {}
    singles: dict[str, Tolerance] = {}
    for text in texts:
        name, separator, change = text.partition("=")
        if not separator:
            raise ConfigError(
                f"tolerance {text!r} has no =, expected NAME=CHANGE such as utilization=-0.001"
            )
        resolved = resolve_name(name.strip(), names)
        for each in resolved:
            (singles if len(resolved) == 1 else tables)[each] = _tolerance(
                each, change.strip(), text
            )
    return tables | singles


def _tolerance(name: str, change: str, text: str) -> Tolerance:
    relative = change.endswith("%")
    try:
        amount = float(change.removesuffix("%"))
        if amount != amount or abs(amount) == float("inf"):
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"tolerance {text!r} allows {change!r}, expected a number or a number with %"
        ) from None
    row = figure_row(name)
    wrong = {"higher": "+", "lower": "-", "lower above 1": "-"}.get(row.better)
    if amount and change[0] == wrong:
        worse, sign = ("falls", "-") if wrong == "+" else ("rises", "+")
        raise ConfigError(
            f"tolerance {text!r}: {name} gets worse when it {worse}; write "
            f"{name}={sign}{change[1:]}"
        )
    if row.ratio and amount and not relative:
        raise ConfigError(
            f"tolerance {text!r}: {name} depends on the machine; give a share such as {name}=-20%"
        )
    return Tolerance(abs(amount) / 100 if relative else abs(amount), relative)


def check_figures(
    report: Report,
    baseline: Mapping[str, float],
    tolerances: Sequence[str] = (),
    *,
    min_utilization: float | None = None,
    max_loss: float | None = None,
) -> list[NumberVerdict]:
    """Verdicts on each number that has a tolerance, by default or given, and on each limit.

    baseline: {} to check the limits only. min_utilization, max_loss: limits of the report, 0 to 1.
    Raises ConfigError for a tolerance of a number that neither file has.
    """
    values = figures(report)
    asked = parse_tolerances(tolerances, [*values, *baseline])
    for name in baseline:  # a misspelt name would never be checked
        if name.split(".")[0] not in report and figure_row(name).tolerance is None:
            raise ConfigError(
                f"the baseline has {name!r}, which report.json does not have{nearest(name, values)}"
            )
    verdicts = [
        _compared(name, asked.get(name), baseline[name], values)
        for name in sorted(baseline, key=by_row)
        if name in asked or figure_row(name).tolerance is not None
    ]
    reasons = [name for name in values if name.startswith(tuple(f"{group}." for group in GROUPS))]
    for name in (*asked, *reasons) if baseline else ():
        if name in baseline or (name not in asked and figure_row(name).tolerance is None):
            continue
        if figure_of(name, baseline) is None:
            raise ConfigError(f"the baseline has no {name}; update it with --update-baseline")
        if name in values:  # a reason that is new since the baseline
            verdicts.append(_compared(name, asked.get(name), 0, values))
    limits = (
        ("utilization", min_utilization, "at least"),
        ("tokens_lost_share", max_loss, "at most"),
    )
    for name, limit, side in limits:
        if limit is not None:
            value = values.get(name)
            fine = value is not None and (value >= limit if side == "at least" else value <= limit)
            allowed = f"the limit is {side} {figure_text(name, limit)}{_undrawn(name, report)}"
            verdicts.append(
                NumberVerdict(name=name, baseline=None, value=value, allowed=allowed, passed=fine)
            )
    return [
        verdict if verdict.passed else replace(verdict, sources=_sources(verdict, report))
        for verdict in dict.fromkeys(verdicts)
    ]


def _undrawn(name: str, report: Report) -> str:
    """Note on tokens that a mix did not draw; report.json counts them among the lost."""
    count = figures(report).get(f"tokens.dropped.{Dropped.NOT_DRAWN}", 0)
    if name != "tokens_lost_share" or not count:
        return ""
    return f"; this counts {count:,} tokens that the mix did not draw"


def _sources(verdict: NumberVerdict, report: Report) -> tuple[str, ...]:
    """Sources that a failed number comes from, worst first; none if there is only one source."""
    if of_mix := re.fullmatch(r"(mix|phases\.\d+)\.sources\.(\d+)\..*", verdict.name):
        mixed = report.get("mix", {}).get("sources", [])
        return tuple(source["name"] for source in mixed[int(of_mix[2]) :][:1])
    sources = report.get("sources", [])
    if len(sources) < 2 or verdict.baseline is None:
        return ()
    names = shown_names(sources, [source["name"] for source in sources])
    by_source = [
        (name, figures(source).get(verdict.name))
        for name, source in zip(names, sources, strict=True)
    ]
    rate = verdict.name.endswith("_rate")
    bad = [
        (name, value)
        for name, value in by_source
        if value is not None and (value != verdict.baseline if rate else value)
    ]
    bad.sort(key=lambda pair: pair[1] if rate else -pair[1])
    named = [f"{name} {figure_text(verdict.name, value)}" for name, value in bad[:_NAMED]]
    return (*named, f"and {len(bad) - _NAMED} more sources") if len(bad) > _NAMED else tuple(named)


def _compared(
    name: str, asked: Tolerance | None, baseline: float, values: Mapping[str, float]
) -> NumberVerdict:
    """Compare one number. asked: the tolerance asked for; None for the default."""
    row, value = figure_row(name), figure_of(name, values)
    tolerance = asked or Tolerance(row.tolerance or 0, row.relative)
    amount = tolerance.amount * abs(baseline) if tolerance.relative else tolerance.amount
    difference, words = _WORSE.get(row.better, _OTHER)
    worse = None if value is None else difference(value, baseline)
    allowed = (
        f"{words} by {_amount(name, tolerance)}" if amount else words.replace("may", "may not")
    )
    passed = worse is not None and worse <= amount + _ROUNDING * max(1.0, abs(baseline))
    return NumberVerdict(name=name, baseline=baseline, value=value, allowed=allowed, passed=passed)


_WORSE: Mapping[str, tuple[Callable[[float, float], float], str]] = {
    "higher": (lambda now, was: was - now, "it may fall"),
    "lower": (lambda now, was: now - was, "it may rise"),
    "lower above 1": (lambda now, was: max(now, 1) - max(was, 1), "above 1 it may rise"),
    "nearer 0": (lambda now, was: abs(now) - abs(was), "it may move away from 0"),
}
"""By the better direction: f(value, baseline), the amount by which it got worse, and its words."""
_OTHER = (lambda now, was: abs(now - was), "it may change")


def _amount(name: str, tolerance: Tolerance) -> str:
    if tolerance.relative:
        return f"{100 * tolerance.amount:g}% of the baseline"
    return shown_change(name, tolerance.amount).removeprefix("+")


def not_in_baseline(report: Report, baseline: Mapping[str, float]) -> list[str]:
    """Numbers that the gate checks by default and the baseline lacks, for instance an old one."""
    return [
        name
        for name in figures(report)
        if figure_row(name).tolerance is not None and figure_of(name, baseline) is None
    ]


def read_baseline(path: Path) -> dict[str, float]:
    """Read the numbers of a baseline or of a report.json, by name. Raises InputError."""
    expected = "a baseline, which `packprep check OUT --baseline FILE --update-baseline` writes"
    if not path.exists():
        raise InputError(f"{path} does not exist; write it with --update-baseline")
    baseline = figures(read_json(path, expected))
    if not baseline:
        raise InputError(f"{path} has no numbers; expected {expected}")
    return baseline


def write_baseline(path: Path, report: Report, tolerances: Sequence[str]) -> dict[str, float]:
    """Write the numbers that the gate checks and those that tolerances name.

    There is one line for each, sorted by name.
    """
    values = figures(report)
    asked = parse_tolerances(tolerances, values)
    kept = {
        name: value
        for name, value in values.items()
        if name in asked or figure_row(name).tolerance is not None
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, (json.dumps(kept, indent=2, sort_keys=True) + "\n").encode())
    return kept
