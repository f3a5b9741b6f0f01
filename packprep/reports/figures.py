"""Numbers of a report by name, with the rules of the CI gate.

A name is the path of a number in report.json, with dots: utilization, tokens.truncated,
tokens.dropped.too_long, sources.0.bos_rate. A rule says which direction is better and how much
worse CI lets a number get. A number that a later report adds has a name, but no rule.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Literal

from packprep.packing.account import Dropped
from packprep.support.errors import ConfigError, nearest
from packprep.support.problems import BadRow

Better = Literal["higher", "lower", "lower above 1", "nearer 0", "as it was", "neither"]

GROUPS: Mapping[str, type[StrEnum]] = {
    "tokens.dropped": Dropped,
    "documents.dropped": Dropped,
    "documents.skipped": BadRow,
}
"""Tables from reason to count, and their reasons; a missing reason has the count 0."""


_SHARES = ("utilization", "share", "_rate")  # ends of names of shares, shown in percent


@dataclass(frozen=True)
class Rule:
    """Rule for the numbers whose name matches `pattern`; * matches anything.

    tolerance: how much worse the number may get by default; None: CI checks it only on request.
    ratio: the number depends on the machine, so only a relative change is meaningful. relative: the
    tolerance is a share of the baseline.
    """

    pattern: str
    better: Better
    tolerance: float | None = None
    ratio: bool = False
    relative: bool = False


RULES = (
    Rule("utilization", "higher", 0.001),
    Rule("tokens.truncated", "lower", 0),
    # A mix leaves out what its sources have too much of: more data of them is no loss. Scarce data
    # are: then shares move, a source is repeated more often, or the mix gets smaller.
    Rule("tokens.dropped.not_drawn", "lower"),
    Rule("tokens.dropped.*", "lower", 0),
    Rule("documents.skipped.*", "lower", 0),
    Rule("documents.cut_characters", "lower", 0),
    Rule("left_out.characters", "lower", 0),
    Rule("left_out.tokens", "lower", 0),
    Rule("bos_rate", "as it was", 0),
    Rule("eos_rate", "as it was", 0),
    Rule("mix.sources.*.share", "as it was", 0.005),
    Rule("mix.sources.*.epochs", "lower above 1", 0.01),
    Rule("mix.sources.*.trained_tokens", "higher", 0.01, relative=True),
    Rule("phases.*.sources.*.share", "as it was", 0.005),
    Rule("gap_share", "lower", 0.001),
    Rule("straggler", "lower", 0.05),
    Rule("max_length", "as it was", 0),
    Rule("straggler_ranks", "as it was", 0),
    Rule("tokens_per_second", "higher", ratio=True),
    Rule("seconds.*", "lower", ratio=True),
    Rule("peak_memory_bytes", "lower", ratio=True),
    Rule("tokens_lost*", "lower"),
    Rule("tokens.filler", "lower"),
    Rule("documents.cut", "lower"),
    Rule("left_out.*", "lower"),
    Rule("documents.dropped.*", "lower"),
    Rule("gap", "lower"),
    Rule("bias", "nearer 0"),
)
"""The first rule that matches applies."""


def rule_of(name: str) -> Rule:
    """The rule of a number.

    A number of one source has the rule of the total, but CI checks it only on request.
    """
    in_total = re.sub(r"^sources\.\d+\.", "", name)
    rule = next(
        (rule for rule in RULES if fnmatchcase(in_total, rule.pattern)), Rule(name, "neither")
    )
    return rule if in_total == name else Rule(name, rule.better, None, rule.ratio)


def by_rule(name: str) -> tuple[int, str]:
    """Sort key: names in the order of RULES, most important first."""
    first = next(
        (place for place, rule in enumerate(RULES) if fnmatchcase(name, rule.pattern)), len(RULES)
    )
    return first, name


def figures(report: Mapping[str, Any]) -> dict[str, float]:
    """Numbers of a report by name, in the order of the report, without those of windows."""
    numbers: dict[str, float] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, Mapping):
            for key, item in value.items():
                walk(item, f"{name}.{key}" if name else str(key))
        elif isinstance(value, list):
            for number, item in enumerate(value):
                walk(item, f"{name}.{number}")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            numbers[name] = value

    walk(
        {key: value for key, value in report.items() if key not in ("windows", "report_version")},
        "",
    )
    return numbers


def figure_of(name: str, values: Mapping[str, float]) -> float | None:
    """The number of that name, 0 for a reason that did not occur; None if there is none."""
    return values.get(name, 0 if name.startswith(tuple(f"{group}." for group in GROUPS)) else None)


def resolve_name(name: str, known: Iterable[str]) -> list[str]:
    """Full names that a user means by a name: one, or all reasons of a table.

    tokens.dropped and tokens_dropped both name a table. Raises ConfigError for an unknown name,
    and suggests the nearest one.
    """
    names = list(
        dict.fromkeys(
            [
                *known,
                *(f"{group}.{reason}" for group, reasons in GROUPS.items() for reason in reasons),
            ]
        )
    )
    plain = name.replace(".", "_")
    if exact := [each for each in names if each == name] or [
        each for each in names if each.replace(".", "_") == plain
    ]:
        return exact
    for group in GROUPS:
        if group.replace(".", "_") == plain:
            return [each for each in names if each.startswith(f"{group}.")]
    totals = [each for each in names if not each.startswith("sources.")]
    raise ConfigError(f"report.json has no number {name!r}{nearest(name, totals)}")


def figure_text(name: str, value: float | None) -> str:
    """Format a number: shares in percent, counts with thousands separators."""
    if value is None:
        return "none"
    if name.endswith(_SHARES):
        return f"{100 * value:.4f}".rstrip("0").rstrip(".") + "%"
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:,.4g}"
        if abs(value) < 1e4
        else f"{value:,.0f}"
    )


def shown_change(name: str, change: float) -> str:
    """Format a change of a number, with its sign."""
    if name.endswith(_SHARES):
        return f"{100 * change:+.4f}".rstrip("0").rstrip(".") + " points"
    return (
        f"{change:+,}"
        if isinstance(change, int)
        else f"{change:+,.4g}"
        if abs(change) < 1e4
        else f"{change:+,.0f}"
    )
