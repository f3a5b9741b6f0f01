"""The numbers of a report by name.

Which way each gets better, how it reads, and how far CI lets it move.

A name is the path of a number in report.json with dots: utilization, tokens.truncated,
tokens.dropped.too_long, sources.0.bos_rate. What the schema adds later has a name at once, and no
better or worse until a rule here says so.
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

Better = Literal["higher", "lower", "nearer 0", "as it was", "neither"]

GROUPS: Mapping[str, type[StrEnum]] = {
    "tokens.dropped": Dropped,
    "documents.dropped": Dropped,
    "documents.skipped": BadRow,
}
"""Tables from reason to count, and their reasons; a reason that is not there has the count 0."""


@dataclass(frozen=True)
class Rule:
    """Rule for the numbers whose name fits `pattern`, in which * is anything.

    tolerance: how much worse CI lets it get where nobody says otherwise; None: CI looks at it only
    when asked. ratio: it depends on the machine, so only a change in per cent means anything.
    """

    pattern: str
    better: Better
    tolerance: float | None = None
    ratio: bool = False


RULES = (
    Rule("utilization", "higher", 0.001),
    Rule("tokens.truncated", "lower", 0),
    Rule("tokens.dropped.*", "lower", 0),
    Rule("documents.skipped.*", "lower", 0),
    Rule("documents.cut_characters", "lower", 0),
    Rule("bos_rate", "as it was", 0),
    Rule("eos_rate", "as it was", 0),
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
    Rule("documents.dropped.*", "lower"),
    Rule("gap", "lower"),
    Rule("bias", "nearer 0"),
)
"""The first that fits decides."""


def rule_of(name: str) -> Rule:
    """The rule of a number.

    Those of one source follow the rules of the whole but are looked at only when asked.
    """
    own = re.sub(r"^sources\.\d+\.", "", name)
    rule = next((rule for rule in RULES if fnmatchcase(own, rule.pattern)), Rule(name, "neither"))
    return rule if own == name else Rule(name, rule.better, None, rule.ratio)


def by_rule(name: str) -> tuple[int, str]:
    """Sorts names as RULES lists them, which is by how much a reader cares."""
    first = next(
        (place for place, rule in enumerate(RULES) if fnmatchcase(name, rule.pattern)), len(RULES)
    )
    return first, name


def figures(report: Mapping[str, Any]) -> dict[str, float]:
    """Every number of a report by its name, in the report's order.

    The windows, which are its details, left out.
    """
    found: dict[str, float] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, Mapping):
            for key, item in value.items():
                walk(item, f"{name}.{key}" if name else str(key))
        elif isinstance(value, list):
            for number, item in enumerate(value):
                walk(item, f"{name}.{number}")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = value

    walk(
        {key: value for key, value in report.items() if key not in ("windows", "report_version")},
        "",
    )
    return found


def figure_of(name: str, values: Mapping[str, float]) -> float | None:
    """The number of that name; None where the report does not have it.

    A reason that did not occur is 0.
    """
    return values.get(name, 0 if name.startswith(tuple(f"{group}." for group in GROUPS)) else None)


def resolve_name(name: str, known: Iterable[str]) -> list[str]:
    """The numbers that a user means by a name.

    One, or all reasons of a table such as tokens.dropped.

    tokens_dropped means tokens.dropped. An unknown name raises ConfigError that suggests the
    nearest.
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
    if found := [each for each in names if each == name] or [
        each for each in names if each.replace(".", "_") == plain
    ]:
        return found
    for group in GROUPS:
        if group.replace(".", "_") == plain:
            return [each for each in names if each.startswith(f"{group}.")]
    own = [each for each in names if not each.startswith("sources.")]
    raise ConfigError(f"{name!r} is no number of report.json{nearest(name, own)}")


def figure_text(name: str, value: float | None) -> str:
    """A number as a person reads it: shares in per cent, counts with thousands."""
    if value is None:
        return "none"
    if name.endswith(("utilization", "_share", "_rate")):
        return f"{100 * value:.4f}".rstrip("0").rstrip(".") + "%"
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:,.4g}"
        if abs(value) < 1e4
        else f"{value:,.0f}"
    )


def shown_change(name: str, change: float) -> str:
    """A difference of two of them, with its sign."""
    if name.endswith(("utilization", "_share", "_rate")):
        return f"{100 * change:+.4f}".rstrip("0").rstrip(".") + " points"
    return (
        f"{change:+,}"
        if isinstance(change, int)
        else f"{change:+,.4g}"
        if abs(change) < 1e4
        else f"{change:+,.0f}"
    )
