"""The documents say what the code does: commands, options, files and names cannot drift apart."""

import re
import sys
from pathlib import Path

import packprep
from packprep import loaders
from packprep.cli import COMMANDS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
sys.path.insert(0, str(ROOT / "scripts"))

import readme_options  # noqa: E402


def test_the_table_of_options_is_the_one_the_code_makes() -> None:
    assert readme_options.BEGIN + readme_options.table() + readme_options.END in README, "run scripts/readme_options.py"


def test_every_command_is_in_the_readme() -> None:
    for command in COMMANDS:
        assert f"packprep {command}" in README


def test_every_public_name_is_in_the_readme() -> None:
    for name in [*packprep.__all__, *loaders.__all__]:
        assert name in README, name


def test_the_house_in_the_readme_names_every_module_and_no_other() -> None:
    house = README.split("## The house")[1].split("```")[1]
    named = set(re.findall(r"(?:^ {2}|\S {2,})([a-z_]+) {2,}(?=\S)", house, re.MULTILINE))
    modules = {
        path.stem
        for folder in ("packprep", "schemas", "loaders")
        for path in (ROOT / folder).glob("*.py")
        if not path.stem.startswith("__")
    }
    assert modules - named == set()
    assert named - modules == {"scripts", "tests"} & named


def test_readme_and_changelog_hold_no_placeholder() -> None:
    for name in ("README.md", "CHANGELOG.md", "schemas/README.md"):
        assert not re.search(r"TODO|TBD|XXX|[A-Z]+_TABLES?\b|DEMO_OUTPUT", (ROOT / name).read_text())
