"""The pages name what the code has: commands, options and public names cannot drift apart."""

import ast
import importlib
import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from packprep.cli.main import COMMANDS
from packprep.config.build_config import BuildConfig
from packprep.config.grammar.option import STRATEGY_NAMES
from packprep.exports.registry import EXPORT_FORMATS
from tests.helpers.command import run

from .blocks import PAGES, ROOT, load, name_of

README = (ROOT / "README.md").read_text()
TEXT = "\n".join(path.read_text() for path in PAGES)


def _listed(command: str, flag: str) -> set[str]:
    """Options on the help page of a command."""
    page = run(command, flag).out.replace("[no-]", "")
    return set(re.findall(r"(?<![\w-])--?\w[\w-]*", page))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_runs_on_a_page(name: str) -> None:
    commands = "\n".join(
        command.text
        for path in PAGES
        for block in load(path)
        if block.language == "console" and block.why_not is None
        for command in block.commands()
    )
    assert re.search(rf"\bpackprep {name}\b", commands)


@pytest.mark.parametrize("package", ["packprep", "packprep.loaders", "packprep.schemas"])
def test_the_python_page_lists_exactly_the_public_names(package: str) -> None:
    page = (ROOT / "docs/reference/python.md").read_text()
    table = page.split(f"\n## {package}\n")[1].split("\n## ")[0]
    listed = [
        name
        for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", cell)
    ]
    assert sorted(listed) == sorted(importlib.import_module(package).__all__)
    assert f"<!-- api {package} -->" in table


def test_the_readme_has_a_row_for_every_strategy() -> None:
    table = README.split("\n## Strategies\n")[1].split("\n## ")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == STRATEGY_NAMES


def test_the_page_of_exports_has_a_row_for_every_format() -> None:
    table = (ROOT / "docs/train/exports.md").read_text().split("\n## ")[0]
    assert re.findall(r"^\| `(\w[\w-]*)` \|", table, re.MULTILINE) == [*EXPORT_FORMATS]


def test_the_page_for_contributors_names_every_room_with_its_sentence() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert dict(re.findall(r"^\| `([a-z_/]+)/` \| (.*) \|$", page, re.MULTILINE)) == {
        path.parent.relative_to(ROOT / "packprep").as_posix(): ast.get_docstring(
            ast.parse(path.read_text())
        )
        for path in (ROOT / "packprep").rglob("__init__.py")
        if path.parent != ROOT / "packprep"
        and ROOT / "packprep" / "next" not in (path.parent, *path.parent.parents)
    }


CLAIMS = (ROOT / "docs/reference/documents.md").read_text()


def test_claims_name_options_and_tests_that_exist() -> None:
    for path in re.findall(r"\b(?:tests|scripts)/[\w/.]+\.py", CLAIMS):
        assert (ROOT / path).is_file(), path
    known = {flag for name in ("build", "plan") for flag in _listed(name, "--help-all")}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", CLAIMS)) <= known


# Pages that a reader follows with `-h` alone: of these rows of the README's table, and the README.
MAIN_PAGES = [ROOT / "README.md"] + [
    ROOT / path
    for row in ("start", "prepare data", "share")
    for path in re.findall(r"\(([\w/-]+\.md)\)", README.split(f"\n| {row} |")[1].splitlines()[0])
]
FIELDS = {field.name for field in fields(BuildConfig)} - {"sources"}


def _used(page: Path, name: str) -> set[str]:
    """Options of a command in the console blocks of a page, and in its files of a build."""
    blocks = load(page)
    shells = [block for block in blocks if block.language == "console"]
    text = "\n".join(
        each.text.replace("\\\n", " ") for shell in shells for each in shell.commands()
    )
    typed = re.findall(rf"packprep {name}\b([^|;&\n]*)", text)
    files = [yaml.safe_load(block.text) for block in blocks if block.language == "yaml"]
    keys = FIELDS & {str(key).replace("-", "_") for file in files for key in file}
    flags = {flag for words in typed for flag in re.findall(r"(?<!\S)--?[a-z][a-z-]*", words)}
    return flags | {"--" + key.replace("_", "-") for key in keys if name == "build"}


@pytest.mark.parametrize("page", MAIN_PAGES, ids=name_of)
def test_the_short_help_has_every_option_that_a_main_page_uses(page: Path) -> None:
    assert _used(page, "build")
    for name in ("build", "plan"):
        assert _used(page, name) <= _listed(name, "-h")
