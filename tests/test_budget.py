"""Budgets of code, tests and options, and arrows: what a room may import."""

import ast
import importlib
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig
from packprep.cli.main import COMMANDS
from tests.helpers.entered import code_lines

ROOT = Path(__file__).parents[1]
TREE = ROOT / "packprep"
BUDGET = {
    "schemas": 1250,
    "support": 400,
    "config": 692,
    "packing": 2017,
    "chat": 2024,
    "read": 1222,
    "tokens": 1200,
    "plan": 1000,
    "write": 640,
    "run": 920,
    "look": 1855,
    "exports": 450,
    "cli": 980,
    "loaders": 3250,
}
"""Rooms, the lowest first, with the code lines that each may have. Raising one lowers another."""
ALL = 18_000
FILES, LONGEST = 190, 260
LONGER = {"chat/turn_locator.py"}
LONG_FUNCTIONS = 20  # of more than 40 code lines
DENSITY = 10.1
"""Python tokens of a code line. The house allows 9.4: lower this until it is met."""
ALONE = {"loaders": ["schemas"]}
"""Rooms that import these of the others, and not all before them."""
READS = {"numpy", "pyarrow"}
"""What a reader needs besides the standard library."""
TREE_IS_FLAT = ("__main__", "__init__", "axolotl", "in_trainer")
TOKENS = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)


def modules() -> dict[str, Path]:
    """Modules by their place in the package, each once: two rooms are links to the top."""
    found = dict[str, Path]()
    for room in (TREE, *(TREE / name for name in BUDGET)):
        deep = room.glob("*.py") if room == TREE else room.rglob("*.py")
        found |= {path.relative_to(TREE).as_posix(): path for path in deep}
    return found


MODULES = modules()
LINES = {name: code_lines(path) for name, path in MODULES.items()}


def room_of(name: str) -> str:
    """Name of the room of a module; "" for those of the tree itself."""
    room, slash, _ = name.partition("/")
    return room if slash else ""


def imports(name: str) -> Iterator[str]:
    """Rooms that a module imports, and whole names of what is outside of the tree."""
    package = ["packprep", *name.split("/")[:-1]]
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            full = [*base, *(node.module or "").split(".")] if node.module else base
            if not node.level:
                yield ".".join(full)
            elif len(full) > 1:
                yield full[1]
            else:
                yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("room", BUDGET)
def test_a_room_has_no_more_lines_than_its_budget(room: str) -> None:
    lines = sum(len(lines) for name, lines in LINES.items() if room_of(name) == room)
    assert 0 < lines <= BUDGET[room]


def test_the_whole_has_few_lines_in_small_files() -> None:
    assert sum(map(len, LINES.values())) <= ALL
    assert len(MODULES) <= FILES
    long = {name for name, lines in LINES.items() if len(lines) > LONGEST}
    assert long <= LONGER


def test_few_functions_are_long_and_lines_are_not_dense() -> None:
    long, tokens = list[str](), 0
    for name, path in MODULES.items():
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = {*range(node.body[0].lineno, (node.end_lineno or 0) + 1)}
                if len(LINES[name] & body) > 40:
                    long.append(f"{name} {node.name}")
        read = tokenize.generate_tokens(io.StringIO(text).readline)
        tokens += sum(each.type in TOKENS and each.start[0] in LINES[name] for each in read)
    assert len(long) <= LONG_FUNCTIONS, long
    if sys.version_info < (3, 12):  # which counts what is in an f-string
        assert tokens / sum(map(len, LINES.values())) <= DENSITY


GENERATED = ("lock.txt", "lock-build.txt", "constraints.txt")
RECORDED = ROOT / "tests" / "record" / "setups.json"


def counted(folder: str) -> list[Path]:
    """Files of a folder that people write: no links, nothing cached, no locks, no digests."""
    files = (path for path in (ROOT / folder).rglob("*") if path.parent.name != "__pycache__")
    files = (path for path in files if path.is_file() and not path.is_symlink())
    return [path for path in files if path.name not in GENERATED and path != RECORDED]


def lines_below(folder: str) -> int:
    """Lines of the files of a folder, in any format."""
    return sum(len(path.read_bytes().splitlines()) for path in counted(folder))


@pytest.mark.parametrize(("folder", "most"), [("tests", 14_000), ("scripts", 4_500)])
def test_tests_and_scripts_have_few_lines(folder: str, most: int) -> None:
    assert lines_below(folder) <= most
    assert RECORDED.stat().st_size <= 1 << 20


def test_the_file_that_people_copy_stands_by_itself() -> None:
    name = "loaders/packs.py"
    assert len(LINES[name]) <= 80
    assert {each.split(".")[0] for each in imports(name)} <= {*sys.stdlib_module_names, *READS}
    assert max(map(len, MODULES[name].read_text().splitlines())) <= 100


def test_every_module_is_in_a_room() -> None:
    folders = {path.name for path in TREE.iterdir() if path.is_dir()} - {"__pycache__"}
    assert folders == {*BUDGET}
    assert {name.removesuffix(".py") for name in MODULES if not room_of(name)} == {*TREE_IS_FLAT}


def test_a_room_imports_those_before_it_by_relative_names() -> None:
    order = [*BUDGET]

    def allowed(room: str) -> list[str]:
        return [*ALONE.get(room, order[: order.index(room)]), room]

    wrong = [
        f"{name} imports {imported}"
        for name in MODULES
        if (room := room_of(name))
        for imported in imports(name)
        if imported.split(".")[0] == "packprep"
        or (imported in order and imported not in allowed(room))
    ]
    assert wrong == []


def test_options_and_commands_are_few() -> None:
    flags = set[str]()
    for name in ("build", "tokenize", "pack"):
        command: Any = importlib.import_module(f"packprep.cli.{name}").command
        flags |= {each.name for each in command.params if each.param_type_name == "option"}
    assert len(flags - {"help"}) <= 42
    assert len({field.name for field in fields(BuildConfig)} - flags - {"sources"}) <= 12
    assert len(COMMANDS) == 10
