"""The pages: their blocks run, and links, public names and options are those that exist."""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import packprep
import packprep.loaders
from packprep.cli.main import COMMANDS
from packprep.plan.types import Dropped
from tests.helpers.blocks import ROOT, Block, check_page, load
from tests.helpers.links import wrong_links
from tests.helpers.outputs import difference

from .test_budget import BUDGET

sys.path.insert(0, str(ROOT / "scripts" / "docs"))

import option_tables

FOLDER, TREE = ROOT / "docs", ROOT / "packprep"
QUICK = ROOT / "README.md"  # the quick start; blocks of all other pages are long
PAGES = [
    QUICK,
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "schemas" / "README.md",
    *sorted(FOLDER.glob("*.md")),
]
COMMAND = """#!/bin/sh
if [ "$*" = "sample data" ] && [ -e "$SAMPLE/data" ]; then
  cp -R "$SAMPLE/data" . && exec cat "$SAMPLE/printed"
fi
exec "$PYTHON" -m packprep "$@"
"""
"""`packprep` as the pages call it. Sample data, the same each time, is made once and copied."""
OF_OTHERS = {
    *("--all", "--calculate-per-token-loss", "--eod-mask-loss", "--local-dir"),
    *("--reset-attention-mask", "--reset-position-ids", "--seq-length"),
}
"""Options of `scripts/test`, of Megatron and of the hub's client that pages speak of."""


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a reader: `packprep`, no network, and sample data made once."""
    folder = tmp_path_factory.mktemp("reader")
    for name in ("bin", "sample", "home"):
        (folder / name).mkdir()
    (folder / "bin" / "packprep").write_text(COMMAND)
    (folder / "bin" / "packprep").chmod(0o755)
    values = {
        "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
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
    commands = block.commands()
    for command in commands:
        last = command is commands[-1]
        code = int(block.attributes.get("exit", 0)) if last else 0
        printed = run_shell(command.text, folder, environment, code)
        if command.output and block.attributes.get("output") != "varies":
            wrong = difference(command.output, printed.splitlines())
            assert not wrong, f"{block.page}:{command.line}: $ {command.text}\n{wrong}"
    return printed


SLOW = "chats-for-trl other-rows own-loop pretraining trainers troubleshooting yaml-trainers"


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.long] * (page.stem in SLOW.split()), id=page_id(page))
        for page in PAGES
        if any(block.is_code and not block.why_not for block in load(page))
    ],
)
def test_the_blocks_of_a_page_run_from_top_to_bottom(
    page: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    blocks, printed = load(page), ""
    for block in blocks:
        printed = run_block(block, printed, tmp_path, environment)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_block_of_code_runs_or_says_why_not(page: Path) -> None:
    check_page(load(page))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_to_a_page_and_a_heading(page: Path) -> None:
    assert wrong_links(page) == []


def test_pages_are_few_and_short() -> None:
    assert len(list(FOLDER.glob("*.md"))) <= 24
    assert sum(len(page.read_text().split()) for page in PAGES) <= 45_000
    assert len(QUICK.read_text().splitlines()) <= 150


def test_the_five_jobs_are_the_same_on_every_first_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().split("The five jobs:")[1].split("- Data:")[0]
    jobs = re.findall(r": ([\w-]+\.md)", nav)
    index, readme = (FOLDER / "index.md").read_text(), QUICK.read_text()
    assert len(jobs) == 5
    assert re.findall(r"^Page: \[.*\]\(([\w-]+\.md)\)", index, re.MULTILINE) == jobs
    assert re.findall(r"^\| .* \| .* \| \[.*\]\(docs/(.*)\) \|$", readme, re.MULTILINE) == jobs


# --- names, options and files that the pages speak of -------------------------------------------


def words_of_code(page: Path) -> list[str]:
    """What a page has between single backticks; a backslash of a table taken away."""
    text = re.sub(r"^( *)(```+).*?^\1\2\s*$", "", page.read_text(), flags=re.M | re.S)
    return [words.replace("\\|", "|") for words in re.findall(r"`([^`]+)`", text)]


def trees(page: Path) -> Iterator[ast.AST]:
    """The Python of a page: blocks, and expressions between backticks."""
    for block in load(page):
        if block.language == "python":
            yield ast.parse(block.text)
    for words in words_of_code(page):
        if "(" in words:
            try:
                yield ast.parse(words)
            except SyntaxError:
                continue  # a signature such as f(x, ...), or of another language


def flags_of(command: str) -> set[str]:
    module: Any = importlib.import_module(f"packprep.cli.{command}")
    return {flag for each in module.command.params for flag in each.opts} | {"-h", "--help"}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_public_names_and_their_arguments_are_those_of_the_code(page: Path) -> None:
    public = {name: getattr(packprep, name) for name in packprep.__all__}
    public |= {name: getattr(packprep.loaders, name) for name in packprep.loaders.__all__}
    for node in (node for tree in trees(page) for node in ast.walk(tree)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("packprep"):
            module = importlib.import_module(node.module or "")
            assert [each.name for each in node.names if not hasattr(module, each.name)] == []
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).removeprefix("packprep.")
            if name in public and name not in ("dataset", "shards", "pack_dataset"):
                taken = inspect.signature(public[name]).parameters
                assert {each.arg for each in node.keywords if each.arg} <= taken.keys(), name
    for words in words_of_code(page):
        if re.fullmatch(r"packprep(\.\w+)+", words):
            module_name, _, last = words.rpartition(".")
            assert hasattr(importlib.import_module(module_name), last), words


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_options_of_commands_are_those_of_the_code(page: Path) -> None:
    blocks = [block for block in load(page) if block.attributes.get("exit") != "2"]
    commands = [each.text for block in blocks for each in block.commands()]
    for text in [*commands, *words_of_code(page)]:
        called = re.search(rf"(?:^|[ ;(])packprep ({'|'.join(COMMANDS)})\b([^;|&]*)", text)
        if called:
            used = set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", called[2]))
            assert used <= flags_of(called[1]), text


def test_options_between_backticks_are_those_of_the_code_or_of_others() -> None:
    ours = {flag for name in COMMANDS for flag in flags_of(name)} | {"--version"}
    words = (words for page in PAGES for words in words_of_code(page))
    used = {flag for each in words for flag in re.findall(r"^--[a-z][a-z-]*", each)}
    assert used - ours == OF_OTHERS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_runs_on_a_page(name: str) -> None:
    blocks = [block for page in PAGES for block in load(page) if not block.why_not]
    commands = [each.text for block in blocks for each in block.commands()]
    assert any(re.search(rf"\bpackprep {name}\b", command) for command in commands)


@pytest.mark.parametrize("package", ["", ".loaders"])
def test_the_page_of_python_lists_exactly_the_public_names(package: str) -> None:
    page = (FOLDER / "python.md").read_text()
    table = page.split(f"\n## packprep{package}\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    listed = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(listed) == sorted(importlib.import_module(f"packprep{package}").__all__)


def test_the_tables_of_options_are_those_of_the_code() -> None:
    page = option_tables.PAGE.read_text()
    assert option_tables.with_tables(page) == page, "run scripts/docs/option_tables.py"


def test_the_page_for_contributors_has_the_budgets_and_names_what_exists() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| `([a-z]+)/` \| .* \| ([\d,]+) \|$", page, re.MULTILINE)
    assert {room: int(lines.replace(",", "")) for room, lines in rows} == BUDGET
    named = re.findall(r"`([a-z_]+/[a-z_/]+\.py)`(?:: `([\w.]+)`)?", page)
    for path, name in named:
        code = "".join(at.read_text() for at in (ROOT / path, TREE / path) if at.is_file())
        assert re.search(rf"\b{name.split('.')[-1]}\b", code), (path, name)


def test_reasons_of_lost_tokens_and_skipped_rows_are_those_of_the_code() -> None:
    table = (ROOT / "schemas" / "README.md").read_text().split("| reason |")[1].split("\n\n")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} == set(Dropped)
    skipped = (FOLDER / "troubleshooting.md").read_text().split("## Reasons of skipped rows")[1]
    rooms = (path for room in ("read", "chat") for path in (TREE / room).rglob("*.py"))
    code = "".join(path.read_text() for path in rooms)
    reasons = re.findall(r"`([a-z_0-9]+)`", skipped.split("\n## ")[0])
    assert len(reasons) > 15
    assert [reason for reason in reasons if f'"{reason}"' not in code] == []


def test_files_of_the_checkout_that_pages_name_are_there() -> None:
    for page in PAGES:
        for words in words_of_code(page):
            for path in re.findall(r"(?:scripts|tests|packprep)/[\w/.]*\w", words):
                assert (ROOT / path).exists(), (page.name, path)


def test_workflows_call_scripts_and_commands_that_exist() -> None:
    files = [*(ROOT / ".github").rglob("*.yml")]
    lines = [line for file in files for line in file.read_text().splitlines()]
    paths = [path for line in lines for path in re.findall(r"(?:scripts|\.ci)/[\w/.]*\w", line)]
    assert "scripts/release" in paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
    commands = [match for line in lines for match in re.findall(r"^ +packprep (\w+)(.*)", line)]
    assert len(commands) > 2
    for name, rest in commands:
        assert set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", rest)) <= flags_of(name)
