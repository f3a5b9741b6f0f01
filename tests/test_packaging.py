"""The wheel holds every module and file of the package; readers need numpy and pyarrow alone."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.test_budget import MODULES, ROOT, TREE

# setuptools of this environment makes it, so that nothing is fetched.
MAKE = "from setuptools import build_meta; print(build_meta.build_wheel({!r}))"
READS = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {missing!r}:
            raise ImportError(name)

sys.meta_path.insert(0, Nothing())
import packprep
{code}
assert not {missing!r} & {{name.split(".")[0] for name in sys.modules}}
"""


def files_of_package() -> set[str]:
    """Modules, and what is read besides them, by place in the package."""
    rooms = [TREE, TREE / "loaders", TREE / "schemas"]
    every = [path for room in rooms for path in room.rglob("*") if path.is_file()]
    return {
        path.relative_to(TREE).as_posix()
        for path in every
        if path.suffix != ".pyc" and "__pycache__" not in path.parts
    }


def test_every_folder_with_modules_is_named_for_the_wheel() -> None:
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {"/".join(["packprep", *name.split("/")[:-1]]) for name in MODULES}
    assert sorted(named) == sorted(folder.replace("/", ".") for folder in folders)


@pytest.mark.long
def test_the_wheel_has_every_file_of_the_package(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE", "packprep", "loaders", "schemas"):
        source = ROOT / name
        skip = shutil.ignore_patterns("__pycache__", "*.kernel")
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, symlinks=True, ignore=skip)
        else:
            shutil.copy(source, tmp_path / name)
    code = MAKE.format(str(tmp_path / "made"))
    command = [sys.executable, "-W", "ignore", "-c", code]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    [wheel] = (tmp_path / "made").glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path / "unpacked", "zip")
    packed = tmp_path / "unpacked" / "packprep"
    made = {path.relative_to(packed).as_posix() for path in packed.rglob("*") if path.is_file()}
    assert files_of_package() - made == set()


@pytest.mark.parametrize(
    ("code", "missing"),
    [
        ("import packprep.loaders", {"numba", "datasets", "torch", "tokenizers", "pandas"}),
        ("import packprep.schemas", {"numba", "datasets", "torch", "tokenizers", "pandas"}),
        ("packprep.build, packprep.pack_lengths", {"torch", "transformers", "ray", "numba"}),
        ("import packprep.cli.main", {"torch", "transformers", "ray", "numba", "datasets"}),
    ],
)
def test_what_is_not_used_is_not_imported(code: str, missing: set[str]) -> None:
    subprocess.run([sys.executable, "-c", READS.format(code=code, missing=missing)], check=True)
