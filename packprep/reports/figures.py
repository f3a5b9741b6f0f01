"""Numbers of a report by name, and as text.

A name is the path of a number in report.json, with dots: utilization, tokens.truncated,
tokens.dropped.too_long, sources.0.bos_rate. Its row in `packprep.packing.figures` says its
unit and how much worse CI lets it get. A number that a later report adds has a name, but no row.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from packprep.packing.account import Dropped
from packprep.packing.figures import FIGURES, figure_row
from packprep.support.errors import ConfigError, nearest
from packprep.support.problems import BadRow

GROUPS: Mapping[str, type[StrEnum]] = {
    "tokens.dropped": Dropped,
    "documents.dropped": Dropped,
    "documents.skipped": BadRow,
}
"""Tables from reason to count, and their reasons; a missing reason has the count 0."""


def by_row(name: str) -> tuple[int, str]:
    """Sort key: names in the order of FIGURES, most important first."""
    matches = (place for place, row in enumerate(FIGURES) if fnmatchcase(name, row.name))
    return next(matches, len(FIGURES)), name


def figures(report: Mapping[str, object]) -> dict[str, float]:
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
    if figure_row(name).unit == "share":
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
    if figure_row(name).unit == "share":
        return f"{100 * change:+.4f}".rstrip("0").rstrip(".") + " points"
    return (
        f"{change:+,}"
        if isinstance(change, int)
        else f"{change:+,.4g}"
        if abs(change) < 1e4
        else f"{change:+,.0f}"
    )
