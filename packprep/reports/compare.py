"""Two reports side by side.

Which numbers differ, which way that is better, and which options differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packprep.reports.figures import figure_of, figures, rule_of
from packprep.schemas.manifest import Output, read_manifest

Judgement = Literal["better", "worse", "differs", "same"]


@dataclass(frozen=True, kw_only=True)
class ComparedFigure:
    """One number of two reports; None where a report does not have it. judgement: how b is to a."""

    name: str
    a: float | None
    b: float | None
    judgement: Judgement

    @property
    def change(self) -> float | None:
        return None if self.a is None or self.b is None else self.b - self.a


def compare_reports(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[ComparedFigure]:
    """Every number of either report, in the order of the report.

    Those of a source belong to the source's name.

    A number is better or worse where packprep.reports.figures knows which way it should go; seconds
    and tokens per second are judged too, which means something on one machine only.
    """
    left, right = _named(a), _named(b)
    return [
        _difference(name, figure_of(name, left), figure_of(name, right))
        for name in dict.fromkeys([*left, *right])
    ]


def _named(report: Mapping[str, Any]) -> dict[str, float]:
    """Numbers by name, sources under their own names.

    The third source here may be the first one there.
    """
    whole = figures({key: value for key, value in report.items() if key != "sources"})
    for source in report.get("sources", []):
        whole |= {f"{source['name']}: {name}": value for name, value in figures(source).items()}
    return whole


def _difference(name: str, a: float | None, b: float | None) -> ComparedFigure:
    judgement: Judgement = "same" if a == b else "differs"
    better = rule_of(name.rpartition(": ")[2]).better
    if a is not None and b is not None and a != b:
        gain = {"higher": b - a, "lower": a - b, "nearer 0": abs(a) - abs(b)}.get(better, 0)
        judgement = "better" if gain > 0 else "worse" if gain < 0 else "differs"
    return ComparedFigure(name=name, a=a, b=b, judgement=judgement)


def options_of(path: Output) -> dict[str, str]:
    """The options that decided an output, as text.

    {} for a report by itself, which does not say them.
    """
    if isinstance(path, Path) and not path.is_dir():
        return {}
    inputs = read_manifest(path).data["inputs"]
    options = {key: str(value) for key, value in inputs.get("options", {}).items()}
    digests = [str(source.get("sha256", ""))[:12] for source in inputs.get("sources", [])]
    return options | {
        "tokenizer": str(inputs.get("tokenizer", {}).get("sha256", ""))[:12],
        "sources": " ".join(digests),
    }
