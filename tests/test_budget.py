"""Budgets and arrows of the second edition: code lines of each room, and what it may import."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.entered import code_lines

TREE = Path(__file__).parents[2] / "packprep" / "next"
BUDGET = {
    "schemas": 1250,
    "support": 400,
    "config": 660,
    "packing": 2100,
    "chat": 2000,
    "read": 1200,
    "tokens": 1200,
    "plan": 1000,
    "write": 640,
    "run": 900,
    "look": 1850,
    "exports": 450,
    "cli": 1000,
    "loaders": 3250,
}
"""Rooms, the lowest first, with the code lines that each may have when it is finished."""
ALONE = {"loaders": ["schemas"]}
"""Rooms that import these of the others, and not all before them."""
READS = {"numpy", "pyarrow"}
"""What a reader needs besides the standard library."""
TREE_IS_FLAT = ("__main__", "__init__", "axolotl", "in_trainer")


def room_of(path: Path) -> str:
    """Name of the room of a module; "" for those of the tree itself."""
    parts = path.relative_to(TREE).parts
    return parts[0] if len(parts) > 1 else ""


def imports(path: Path) -> Iterator[str]:
    """Rooms that a module imports, and whole names of what is outside of the tree."""
    package = ["packprep", "next", *path.relative_to(TREE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            full = [*base, *(node.module or "").split(".")] if node.module else base
            if full[:2] != ["packprep", "next"]:
                yield ".".join(full)
            elif len(full) > 2:
                yield full[2]
            else:
                yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("room", BUDGET)
def test_a_room_has_no_more_lines_than_its_budget(room: str) -> None:
    lines = sum(len(code_lines(path)) for path in (TREE / room).rglob("*.py"))
    assert lines <= BUDGET[room]


def test_the_file_that_people_copy_stands_by_itself() -> None:
    path = TREE / "loaders" / "packs.py"
    assert len(code_lines(path)) <= 80
    assert {name.split(".")[0] for name in imports(path)} <= {*sys.stdlib_module_names, *READS}
    assert max(map(len, path.read_text().splitlines())) <= 100


def test_every_module_is_in_a_room() -> None:
    paths = [*TREE.rglob("*.py")]
    assert {room_of(path) for path in paths} == {"", *BUDGET}
    assert {path.stem for path in paths if not room_of(path)} == {*TREE_IS_FLAT}


def test_a_room_imports_those_before_it_and_nothing_of_the_first_edition() -> None:
    order = [*BUDGET]

    def allowed(room: str) -> list[str]:
        return [*ALONE.get(room, order[: order.index(room)]), room]

    wrong = [
        f"{path.relative_to(TREE)} imports {name}"
        for path in TREE.rglob("*.py")
        if (room := room_of(path))
        for name in imports(path)
        if name.split(".")[0] == "packprep" or (name in order and name not in allowed(room))
    ]
    assert wrong == []
