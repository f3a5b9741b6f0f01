"""Modules that stay unloaded until they are needed, and the public names.

test_layers.py says which room may import which.
"""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from packprep import loaders

ROOT = Path(__file__).parents[1]
HEAVY = {"datasets", "grain", "lightning", "numba", "pandas", "pytorch_lightning", "tokenizers"}
HEAVY |= {"torch", "torchdata", "transformers"}


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after `statement`."""
    code = (
        f"import sys; {statement}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return set(done.stdout.split())


READ = "loaders.PackedShards('tests/golden/v1-example', verify=True)[0]"
LIGHT = {"numpy", "pyarrow", "click", "rich"}


@pytest.mark.parametrize(
    ("statement", "unloaded"),
    [
        (f"import packprep.loaders as loaders; {READ}", HEAVY),
        ("import packprep", HEAVY | LIGHT),
        ("import packprep.schemas", HEAVY | LIGHT),
    ],
)
def test_an_import_loads_no_library_that_it_does_not_need(
    statement: str, unloaded: set[str]
) -> None:
    loaded = loaded_by(statement)
    assert "packprep" in loaded
    assert loaded.isdisjoint(unloaded)


def test_all_of_the_loaders_lists_exactly_the_public_names() -> None:
    submodules = {path.stem for path in (ROOT / "loaders").glob("*")}
    public = {name for name in vars(loaders) if not name.startswith("_")} - submodules
    assert sorted(loaders.__all__) == sorted(public)
    assert set(loaders.__all__).isdisjoint(submodules)


@pytest.mark.parametrize("name", ["packprep", "packprep.schemas"])
def test_a_lazy_package_lists_the_same_names_for_users_type_checkers_and_the_loader(
    name: str,
) -> None:
    package = importlib.import_module(name)
    public = set(package.__all__)
    body = ast.parse(Path(str(package.__file__)).read_text()).body
    checking = next(node for node in body if isinstance(node, ast.If))
    typed = {alias.name for node in ast.walk(checking) for alias in getattr(node, "names", [])}
    assert set(package._HOME) == typed == public
    assert public <= set(dir(package))
    for each in public:
        home = importlib.import_module(f"{name}.{package._HOME[each]}")
        assert getattr(package, each) is getattr(home, each)
    assert not hasattr(package, "nothing_of_ours")
