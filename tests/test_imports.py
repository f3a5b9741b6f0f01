"""Modules that stay unloaded until they are needed, and the public names.

test_layers.py says which room may import which.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = ("datasets", "numba", "tokenizers", "torch", "transformers", "pandas")


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after `statement`."""
    code = (
        f"import sys; {statement}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return set(done.stdout.split())


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
        "from packprep.loaders import PackedShards; PackedShards('tests/golden/v1-example', "
        "verify=True)[0]"
    )
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("name", ["packprep.schemas", "packprep.loaders"])
def test_all_lists_exactly_the_public_names(name: str) -> None:
    module = __import__(name, fromlist=["__all__"])
    submodules = {path.stem for path in (ROOT / name.split(".")[1]).glob("*.py")}
    public = {name for name in vars(module) if not name.startswith("_")} - submodules
    assert sorted(module.__all__) == sorted(public)
    assert set(module.__all__).isdisjoint(submodules)
