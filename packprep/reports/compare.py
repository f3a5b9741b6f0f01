"""Comparison of two reports: their numbers, and the options that differ."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packprep.config.spellings import RENAMED
from packprep.reports.figures import figure_of, figures, rule_of
from packprep.schemas.manifest import Output, read_manifest

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


def compare_reports(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[ComparedFigure]:
    """Compare every number of either report, in the order of the report.

    Numbers of sources are matched by the name of the source. A number is better or worse if
    packprep.reports.figures has a rule for it. Seconds and tokens per second are judged too, which
    is meaningful only on the same machine.
    """
    left, right = _named(a), _named(b)
    return [
        _difference(name, figure_of(name, left), figure_of(name, right))
        for name in dict.fromkeys([*left, *right])
    ]


def _named(report: Mapping[str, Any]) -> dict[str, float]:
    """Numbers by name, with the names of sources: the order of sources may differ."""
    numbers = figures({key: value for key, value in report.items() if key != "sources"})
    for source in report.get("sources", []):
        numbers |= {f"{source['name']}: {name}": value for name, value in figures(source).items()}
    return numbers


def _difference(name: str, a: float | None, b: float | None) -> ComparedFigure:
    judgement: Judgement = "same" if a == b else "differs"
    better = rule_of(name.rpartition(": ")[2]).better
    if a is not None and b is not None and a != b:
        gain = {"higher": b - a, "lower": a - b, "nearer 0": abs(a) - abs(b)}.get(better, 0)
        judgement = "better" if gain > 0 else "worse" if gain < 0 else "differs"
    return ComparedFigure(name=name, a=a, b=b, judgement=judgement)


def options_of(path: Output) -> dict[str, str]:
    """Options that affect the bytes of an output, as text; {} for a report.json by itself."""
    if isinstance(path, Path) and not path.is_dir():
        return {}
    inputs = read_manifest(path).data["inputs"]
    options = {
        RENAMED.get(key, key): str(value) for key, value in inputs.get("options", {}).items()
    }
    digests = [str(source.get("sha256", ""))[:12] for source in inputs.get("sources", [])]
    return options | {
        "tokenizer": str(inputs.get("tokenizer", {}).get("sha256", ""))[:12],
        "sources": " ".join(digests),
    }
