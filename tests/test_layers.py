"""The house: which room a module lives in, which way imports run, and what a room may hold.

Imports inside functions and under TYPE_CHECKING count like any other.
"""

import ast
import graphlib
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDERS = {"packprep": "packprep", "schemas": "packprep.schemas", "loaders": "packprep.loaders"}
"""The package of each top-level folder."""

# Lowest first: a module imports from its own room and those before it. `packprep.schemas` is below
# all of them.
ROOMS = (
    "support",
    "config/grammar",
    "config",
    "packing/kernels",
    "packing",
    "engines",
    "chat/rendering",
    "chat",
    "chat/pieces",
    "sources/token_files",
    "sources/formats",
    "sources",
    "tokens",
    "trees",
    "windows",
    "output",
    "inspect",
    "derive",
    "execute",
    "preview",
    "exports",
    "reports",
    "cli",
    "cli/commands",
)
LOADERS = ("loaders", "loaders/samples", "loaders/adapters", "loaders/frameworks")
ORDER = ("schemas", "schemas/plans", "schemas/index", "schemas/storage", *ROOMS, "top", *LOADERS)
# Their `__init__` only names what users import, from anywhere below it.
FACES = ("packprep.schemas", "packprep.loaders")

# They run in a trainer, so they read what `build` wrote, by public names.
IN_TRAINERS = {"in_trainer", "axolotl"}

# By design: every command module has a `command`, and every process an entry point.
TWINS_BY_DESIGN = {"command", "main"}


class Import(NamedTuple):
    """A statement `by` a module.

    `name`: of what it imports, absolute; at_top: not inside a function.
    """

    by: str
    name: str
    at_top: bool


@cache
def modules() -> Mapping[str, Path]:
    """File of every module and package by its dotted name."""
    found = {}
    for folder, package in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            if ROOT / "packprep" / "next" in path.parents:
                continue  # the second edition has layers of its own: tests/second
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join([package, *(parts[:-1] if parts[-1] == "__init__" else parts)])] = path
    return found


@cache
def imports() -> tuple[Import, ...]:
    """Everything that is imported anywhere in the three folders."""
    return tuple(found for by in modules() for found in imports_of(by, modules()[by]))


def imports_of(by: str, path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_text(), str(path))
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    functions = (node for node in ast.walk(tree) if isinstance(node, kinds))
    lazy = {inner for function in functions for inner in ast.walk(function)}
    package = by.split(".") if path.stem == "__init__" else by.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (Import(by, name, node not in lazy) for name in names)


@cache
def arrows() -> Mapping[str, frozenset[str]]:
    """Modules of ours that each module imports.

    A name of a package counts as the package, a module in it as itself.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for by, name, _ in imports():
        longest = next(
            (known for known in (name, name.rpartition(".")[0]) if known in modules()), None
        )
        if longest is not None:
            found[by].add(longest)
    return {by: frozenset(names) for by, names in found.items()}


def short(module: str) -> str:
    """The name as the tables above write it: without `packprep.`, which itself is `__init__`."""
    return module.removeprefix("packprep").removeprefix(".") or "__init__"


def room_of(module: str) -> str:
    folder = modules()[module].parent.relative_to(ROOT).as_posix()
    return "top" if folder == "packprep" else folder.removeprefix("packprep/")


def public_names(path: Path) -> set[str]:
    """Names that a module defines and does not hide."""
    names = set()
    for node in ast.parse(path.read_text(), str(path)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def is_under(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def test_every_module_is_in_a_room_and_every_room_is_a_folder() -> None:
    assert {room_of(module) for module in modules()} == set(ORDER)
    flat = {short(module) for module, path in modules().items() if path.parent == ROOT / "packprep"}
    assert flat == {"__init__", "__main__", *IN_TRAINERS}


def test_every_folder_is_in_the_wheel() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {module for module, path in modules().items() if path.stem == "__init__"}
    assert sorted(packages["packages"]) == sorted(folders)


def test_an_import_points_to_its_own_room_or_a_lower_one() -> None:
    rank = {room: number for number, room in enumerate(ORDER)}
    pairs = ((by, name) for by, names in arrows().items() for name in names)
    assert {
        (short(by), short(name))
        for by, name in pairs
        if rank[room_of(by)] < rank[room_of(name)]
        and not (by in FACES and is_under(name, by))
        and not (short(by) in IN_TRAINERS and name == "packprep.loaders")
    } == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    public = {by: {"packprep"} if short(by) in IN_TRAINERS else set() for by in arrows()}
    graph = {by: names - public[by] for by, names in arrows().items()}
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names them


def test_no_public_name_is_defined_in_two_modules() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for module, path in modules().items():
        for name in sorted(public_names(path) - TWINS_BY_DESIGN):
            homes[name].append(short(module))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


LAZY = {
    "packprep.schemas.storage.stores": ("fsspec",),
    "packprep.schemas.storage.remote": ("platformdirs",),
    "packprep.schemas.canonical": ("xxhash",),
    "packprep.loaders.frameworks.iterable": ("datasets",),
    "packprep.loaders.compiling": ("numba",),
}
"""Libraries that a module imports inside a function only, for users who need them."""
LOOPS = "packprep.schemas.index.copy_loop"
"""A loop for numba, with numba at the top: other modules of its folder and loaders import it inside
functions only."""


def test_schemas_and_loaders_import_numpy_pyarrow_and_libraries_where_they_are_used() -> None:
    for by, name, at_top in imports():
        if not is_under(by, "packprep.schemas", "packprep.loaders"):
            continue
        home = ("packprep.schemas", *(["packprep.loaders"] * is_under(by, "packprep.loaders")))
        if name.split(".")[0] in sys.stdlib_module_names or is_under(
            name, "numpy", "pyarrow", *home
        ):
            assert not (at_top and is_under(name, LOOPS)), f"{by} imports {name} at module level"
            continue
        heavy = is_under(name, "packprep", "numba", "datasets", "tokenizers")
        of_trainers = is_under(by, "packprep.loaders") and not heavy
        if by == LOOPS and is_under(name, "numba"):
            continue
        lazy = is_under(name, *LAZY.get(by, ()))
        assert not at_top, f"{by} imports {name} at module level"
        assert lazy or of_trainers, f"{by} imports {name}"


def test_packprep_never_imports_loaders_or_torch() -> None:
    for by, name, _ in imports():
        if not is_under(by, "packprep.loaders") and short(by) not in IN_TRAINERS:
            assert not is_under(name, "packprep.loaders", "torch"), f"{by} imports {name}"
