"""The page of claims: each row is decided, and what shows it exists."""

import re
from pathlib import Path

import click
import pytest

from packprep.cli.commands import build, plan

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/documents.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| statement ")
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:60])
def test_a_row_is_decided_and_shown_by_something_that_exists(row: list[str]) -> None:
    statement, source, verdict, shown = row
    assert statement.endswith(".")
    assert set(source.split(", ")) <= {"Axolotl", "slime", "Forgather", "LLaMA-Factory"}
    assert re.match(r"(yes|other|measured|GPU)\b", verdict)
    for path in re.findall(r"\b(?:tests|scripts)/[\w/.]+\.py", shown):
        assert (ROOT / path).is_file(), path
    assert shown == "not measured" or re.search(r"tests/|scripts/|\]\(", shown)


def test_options_on_the_page_are_options_of_build_or_plan() -> None:
    known = {
        option
        for command in (build.command, plan.command)
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
    }
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE)) <= known
