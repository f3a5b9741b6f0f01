"""Comparison of reports: their numbers, and the options that differ."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from packprep.config.aliases import from_recorded
from packprep.packing.figures import figure_row
from packprep.reports.figures import figure_of, figures
from packprep.schemas.manifest import Output, read_manifest
from packprep.schemas.report import Report

Judgement = Literal["better", "worse", "differs", "same"]


@dataclass(frozen=True, kw_only=True)
class ComparedFigure:
    """One number of two reports; None if a report lacks it. judgement: of b, compared with a."""

    name: str
    a: float | None
    b: float | None
    judgement: Judgement

    @property
    def change(self) -> float | None:
        return None if self.a is None or self.b is None else self.b - self.a


def compare_reports(first: Report, *others: Report) -> dict[str, list[ComparedFigure]]:
    """Compare every number of the first report with that of each other one, by name.

    Numbers are in the order of the reports. Those of sources are matched by the name of the source.
    A number is better or worse if its row in packprep.packing.figures says so. Seconds and tokens
    per second are judged too, which is meaningful only on the same machine.
    """
    a, named = _named(first), [_named(other) for other in others]
    return {
        name: [_difference(name, figure_of(name, a), figure_of(name, b)) for b in named]
        for name in dict.fromkeys(chain(a, *named))
    }


def differing_options(outputs: Sequence[Output]) -> dict[str, list[str | None]]:
    """Options that affect the bytes and differ, with their values; {} if one is a report.json."""
    options = [options_of(output) for output in outputs]
    if not all(options):
        return {}
    values = {key: [each.get(key) for each in options] for key in dict.fromkeys(chain(*options))}
    return {key: each for key, each in values.items() if len(set(each)) > 1}


def _named(report: Report) -> dict[str, float]:
    """Numbers by name, with the names of sources: the order of sources may differ."""
    numbers = figures({key: value for key, value in report.items() if key != "sources"})
    for source in report.get("sources", []):
        numbers |= {f"{source['name']}: {name}": value for name, value in figures(source).items()}
    return numbers


def _difference(name: str, a: float | None, b: float | None) -> ComparedFigure:
    judgement: Judgement = "same" if a == b else "differs"
    better = figure_row(name.rpartition(": ")[2]).better
    if a is not None and b is not None and a != b:
        gain = {"higher": b - a, "lower": a - b, "nearer 0": abs(a) - abs(b)}.get(better, 0)
        judgement = "better" if gain > 0 else "worse" if gain < 0 else "differs"
    return ComparedFigure(name=name, a=a, b=b, judgement=judgement)


def options_of(path: Output) -> dict[str, str]:
    """Options that affect the bytes of an output, as text; {} for a report.json by itself."""
    if isinstance(path, Path) and not path.is_dir():
        return {}
    inputs = read_manifest(path).data["inputs"]
    options = {key: str(value) for key, value in from_recorded(inputs.get("options", {})).items()}
    digests = [str(source.get("sha256", ""))[:12] for source in inputs.get("sources", [])]
    return options | {
        "tokenizer": str(inputs.get("tokenizer", {}).get("sha256", ""))[:12],
        "sources": " ".join(digests),
    }
