"""Output of the CI gate: Markdown for summary pages, JSON."""

import os
from collections.abc import Sequence
from pathlib import Path

from packprep.reports.figures import figure_text, shown_change
from packprep.reports.gate import NumberVerdict


def rows(verdicts: Sequence[NumberVerdict]) -> list[tuple[str, ...]]:
    """A row for each number: result, name, baseline, value, change, allowed change."""
    return [
        (
            "ok" if verdict.passed else "FAILED",
            verdict.name,
            "" if verdict.baseline is None else figure_text(verdict.name, verdict.baseline),
            figure_text(verdict.name, verdict.value),
            ""
            if verdict.change is None
            else shown_change(verdict.name, verdict.change)
            if verdict.change
            else "0",
            verdict.allowed,
        )
        for verdict in verdicts
    ]


def as_json(verdicts: Sequence[NumberVerdict]) -> dict[str, object]:
    """The verdicts as plain JSON values."""
    return {
        "passed": all(verdict.passed for verdict in verdicts),
        "figures": [
            {
                "name": verdict.name,
                "baseline": verdict.baseline,
                "value": verdict.value,
                "change": verdict.change,
                "allowed": verdict.allowed,
                "passed": verdict.passed,
                "sources": list(verdict.sources),
            }
            for verdict in verdicts
        ],
    }


def markdown(title: str, verdicts: Sequence[NumberVerdict]) -> str:
    """Headline, a sentence for each failed number, and a table of all numbers."""
    failed = [verdict for verdict in verdicts if not verdict.passed]
    headline = (
        f"{len(failed)} of {len(verdicts)} numbers failed"
        if failed
        else f"all {len(verdicts)} numbers passed"
    )
    lines = [f"### packprep check: {headline}", "", f"`{title}`", ""]
    lines += [f"- :x: {_cell(verdict.sentence)}" for verdict in failed] + ([""] if failed else [])
    lines += ["| | number | baseline | now | change | allowed |", "|---|---|--:|--:|--:|---|"]
    for result, name, *rest in rows(verdicts):
        mark = ":white_check_mark:" if result == "ok" else ":x:"
        lines.append("| " + " | ".join([mark, f"`{name}`", *map(_cell, rest)]) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def append_github_summary(text: str) -> None:
    """Append the Markdown to the summary file of a GitHub workflow, if there is one."""
    if name := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(name).open("a", encoding="utf-8") as file:
            file.write(text)
