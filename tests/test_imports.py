"""The house rules of DESIGN: who may import whom, and what stays unloaded until it is needed."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = ("datasets", "numba", "tokenizers", "torch", "transformers", "pandas")


def imports(folder: str) -> Iterator[tuple[Path, str, bool]]:
    """(file, absolute name, at module level) of everything imported under a top-level folder."""
    package = "packprep" if folder == "packprep" else f"packprep.{folder}"
    for path in sorted((ROOT / folder).glob("*.py")):
        tree = ast.parse(path.read_text(), str(path))
        lazy = {
            inner
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
                module = ".".join([*base, *([node.module] if node.module else [])])
                names = [f"{module}.{alias.name}" for alias in node.names]
            else:
                continue
            yield from ((path, name, node not in lazy) for name in names)


def is_under(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def is_stdlib(name: str) -> bool:
    return name.split(".")[0] in sys.stdlib_module_names


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after `statement`."""
    code = f"import sys; {statement}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("folder", ["packprep", "schemas", "loaders"])
def test_the_walk_sees_the_modules_of_each_folder(folder: str) -> None:
    assert len({path for path, _, _ in imports(folder)}) >= 2


def test_schemas_imports_only_the_standard_library_numpy_and_pyarrow() -> None:
    for path, name, at_top in imports("schemas"):
        of_stores = path.stem == "stores" and not at_top and is_under(name, "fsspec")  # for whoever names a URL
        allowed = is_stdlib(name) or is_under(name, "numpy", "pyarrow", "packprep.schemas")
        assert allowed or of_stores, f"{path} imports {name}"


def test_loaders_import_only_numpy_pyarrow_schemas_and_libraries_where_they_are_used() -> None:
    for path, name, at_top in imports("loaders"):
        allowed = is_stdlib(name) or is_under(name, "numpy", "pyarrow", "packprep.schemas", "packprep.loaders")
        assert allowed or not at_top, f"{path} imports {name} at module level"
        assert not is_under(name, "packprep") or is_under(name, "packprep.schemas", "packprep.loaders"), (
            f"{path} imports {name}"
        )
        assert not is_under(name, "numba", "datasets", "tokenizers"), f"{path} imports {name}"


def test_packprep_never_imports_loaders_or_torch() -> None:
    for path, name, _ in imports("packprep"):
        assert not is_under(name, "packprep.loaders", "torch"), f"{path} imports {name}"


def test_importing_the_loaders_loads_neither_datasets_numba_tokenizers_nor_torch() -> None:
    loaded = loaded_by("import packprep.loaders")
    assert "pyarrow" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_importing_packprep_alone_loads_nothing_heavy() -> None:
    loaded = loaded_by("import packprep")
    assert "packprep" in loaded
    assert loaded.isdisjoint({*HEAVY, "numpy", "pyarrow", "click", "rich"})


def test_reading_a_pack_loads_nothing_more() -> None:
    loaded = loaded_by(
        "from packprep.loaders import PackedShards; PackedShards('tests/golden/v1-example', verify=True)[0]"
    )
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("name", ["packprep.schemas", "packprep.loaders"])
def test_all_lists_exactly_the_public_names(name: str) -> None:
    module = __import__(name, fromlist=["__all__"])
    submodules = {path.stem for path in (ROOT / name.split(".")[1]).glob("*.py")}
    public = {name for name in vars(module) if not name.startswith("_")} - submodules
    assert sorted(module.__all__) == sorted(public)
    assert set(module.__all__).isdisjoint(submodules)
