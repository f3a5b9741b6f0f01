"""The documents say what the code does: commands, options, files and names cannot drift apart."""

import ast
import importlib
import re
import sys
from pathlib import Path

import pytest

import packprep
from packprep import loaders
from packprep.cli.commands import build
from packprep.cli.main import COMMANDS
from packprep.config.options import STRATEGY_NAMES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
sys.path.insert(0, str(ROOT / "scripts" / "checks"))

import readme_options  # noqa: E402


def test_the_table_of_options_is_the_one_the_code_makes() -> None:
    assert readme_options.BEGIN + readme_options.table() + readme_options.END in README, (
        "run scripts/checks/readme_options.py"
    )


def test_every_command_is_in_the_readme() -> None:
    for command in COMMANDS:
        assert f"packprep {command}" in README


def test_every_public_name_is_in_the_readme() -> None:
    for name in [*packprep.__all__, *loaders.__all__]:
        assert name in README, name


def test_the_readme_has_a_row_for_every_strategy() -> None:
    table = README.split("\n## Strategies\n")[1].split("\n## ")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == STRATEGY_NAMES


def test_help_and_readme_say_that_knapsack_is_first_fit_decreasing() -> None:
    [option] = [param for param in build.command.params if param.name == "strategy"]
    said = "first fit decreasing, filled pack by pack"
    assert f"balanced. knapsack is {said}." in str(getattr(option, "help", ""))
    assert f"| `knapsack` | {said}: the same packs as `first_fit` |" in README


@pytest.mark.parametrize("package", ["packprep", "packprep.loaders", "packprep.schemas"])
def test_docs_python_lists_exactly_the_public_names(package: str) -> None:
    page = (ROOT / "docs/python.md").read_text()
    table = page.split(f"\n## {package}\n")[1].split("\n## ")[0]
    listed = [
        name
        for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", cell)
    ]
    assert sorted(listed) == sorted(importlib.import_module(package).__all__)


def test_the_house_in_the_readme_names_every_room_with_its_sentence() -> None:
    house = README.split("## The house")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `([a-z/]+)/` \| (.*) \|$", house, re.MULTILINE))
    rooms = {
        path.parent.relative_to(ROOT).as_posix().removeprefix("packprep/"): ast.get_docstring(
            ast.parse(path.read_text())
        )
        for path in (ROOT / "packprep").rglob("__init__.py")
        if path.parent != ROOT / "packprep"
    }
    assert rows == {
        room: said for room, said in rooms.items() if room not in ("loaders", "schemas")
    }


def test_readme_and_changelog_hold_no_placeholder() -> None:
    for name in ("README.md", "CHANGELOG.md", "schemas/README.md"):
        assert not re.search(
            r"TODO|TBD|XXX|[A-Z]+_TABLES?\b|DEMO_OUTPUT", (ROOT / name).read_text()
        )
