"""The pages: their blocks run, and links, public names and options are those that exist."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from packprep.next.cli.main import COMMANDS
from tests.docs.blocks import ROOT, Block, check_page, load
from tests.docs.outputs import difference
from tests.docs.test_links import wrong_links

from .test_budget import BUDGET, TREE

sys.path.insert(0, str(ROOT / "scripts" / "docs"))

import option_tables

FOLDER = ROOT / "docs" / "next"
PAGES = sorted(FOLDER.glob("*.md"))
QUICK = "README.md"  # the quick start; all other pages are long
SHIM = """#!/bin/sh
if [ "$*" = "sample data" ] && [ -e "$SAMPLE/data" ]; then
  cp -R "$SAMPLE/data" . && exec cat "$SAMPLE/printed"
fi
exec "$PYTHON" -m packprep "$@"
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a reader: `packprep`, no network, and sample data made once."""
    folder = tmp_path_factory.mktemp("reader")
    for name in ("bin", "lib", "sample", "home"):
        (folder / name).mkdir()
    (folder / "lib" / "packprep").symlink_to(ROOT / "packprep" / "next")
    (folder / "bin" / "packprep").write_text(SHIM)
    (folder / "bin" / "packprep").chmod(0o755)
    values = {
        "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(folder / "lib"),
        "PYTHON": sys.executable,
        "SAMPLE": str(folder / "sample"),
        "COLUMNS": "80",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "home"),
        "PACKPREP_CACHE": str(folder / "home"),
    }
    whole = {**os.environ, **values}
    printed = run_shell("packprep sample data", folder / "sample", whole, 0)
    (folder / "sample" / "printed").write_text(printed)
    return whole


def run_shell(command: str, folder: Path, environment: dict[str, str], code: int) -> str:
    """Output of a command; an AssertionError if it ends with another code."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, f"$ {command}\nended with {done.returncode}\n{done.stdout}"
    return done.stdout


def run_block(block: Block, printed: str, folder: Path, environment: dict[str, str]) -> str:
    """Run a block, unless its fence says why not; return what it printed. printed: before it."""
    if block.why_not is not None:
        return printed
    if block.file is not None:
        (folder / block.file).write_text(block.text)
        return printed
    if block.language == "text" and block.attributes.get("output") == "above":
        wrong = difference(block.text.splitlines(), printed.splitlines())
        assert not wrong, f"{block.where}: {wrong}"
    if block.language == "python":
        (folder / "block.py").write_text(block.text)
        return run_shell("python block.py", folder, environment, 0)
    commands = block.commands() if block.language == "console" else []
    for command in commands:
        last = command is commands[-1]
        code = int(block.attributes.get("exit", 0)) if last else 0
        printed = run_shell(command.text, folder, environment, code)
        if command.output and block.attributes.get("output") != "varies":
            wrong = difference(command.output, printed.splitlines())
            assert not wrong, f"{block.page}:{command.line}: $ {command.text}\n{wrong}"
    return printed


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if page.name == QUICK else [pytest.mark.long], id=page.name)
        for page in PAGES
        if any(block.is_code for block in load(page))
    ],
)
def test_the_blocks_of_a_page_run_from_top_to_bottom(
    page: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    blocks, printed = load(page), ""
    check_page(blocks)
    for block in blocks:
        printed = run_block(block, printed, tmp_path, environment)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_a_page_and_a_heading(page: Path) -> None:
    wrong = wrong_links(page)
    if page.name == "README.md":  # its place will be the top level
        paths = [link.partition("#")[0] for link in wrong]
        here = [FOLDER / path.removeprefix("docs/") for path in paths]
        wrong = [path for path, at in zip(paths, here, strict=True) if not at.exists()]
        wrong = [path for path in wrong if not (ROOT / path).exists()]
    assert wrong == []


def test_pages_are_few_and_short() -> None:
    pages = [page for page in PAGES if page.name != "README.md"]
    assert len(pages) <= 24
    assert sum(len(page.read_text().split()) for page in PAGES) <= 45_000
    assert len((FOLDER / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("package", ["", ".loaders"])
def test_the_page_of_python_lists_exactly_the_public_names(package: str) -> None:
    page = (FOLDER / "python.md").read_text()
    table = page.split(f"\n## packprep{package}\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    listed = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(listed) == sorted(importlib.import_module(f"packprep.next{package}").__all__)


def test_the_tables_of_options_are_those_of_the_code() -> None:
    page = option_tables.PAGE.read_text()
    assert option_tables.with_tables(page) == page, "run scripts/docs/option_tables.py"


def test_the_page_for_contributors_has_the_budgets_and_names_what_exists() -> None:
    page = (FOLDER / "contributing.md").read_text()
    rows = re.findall(r"^\| `([a-z]+)/` \| .* \| ([\d,]+) \|$", page, re.MULTILINE)
    assert {room: int(lines.replace(",", "")) for room, lines in rows} == BUDGET
    named = re.findall(r"`([a-z_]+/[a-z_/]+\.py)`(?:: `([\w.]+)`)?", page)
    for path, name in named:
        assert name == "" or name.split(".")[-1] in (TREE / path).read_text(), (path, name)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_runs_on_a_page(name: str) -> None:
    blocks = [block for page in PAGES for block in load(page) if block.language == "console"]
    commands = [each.text for block in blocks if not block.why_not for each in block.commands()]
    assert any(re.search(rf"\bpackprep {name}\b", command) for command in commands)
