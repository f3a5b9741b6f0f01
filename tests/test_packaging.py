"""The wheel, the sdist and a bare checkout hold all of packprep: each builds the same shards.

The editable install is the one that runs these tests.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packprep import build
from packprep.schemas import read_manifest
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.files import config

ROOT = Path(__file__).parents[1]
# setuptools of this environment makes both, so that nothing is fetched.
MAKE = "from setuptools import build_meta; print(build_meta.build_{}({!r}))"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracked files of this checkout, and nothing else."""
    folder = tmp_path_factory.mktemp("checkout")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if names.returncode:
        pytest.skip("the tests do not run in a git checkout")
    for name in map(os.fsdecode, filter(None, names.stdout.split(b"\0"))):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            (folder / name).symlink_to((ROOT / name).readlink())
        elif (ROOT / name).exists():
            (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder


def ran(folder: Path, *arguments: object, **variables: str) -> str:
    """Standard output of Python with these arguments, run in a folder."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def unpacked(kind: str, source: Path, target: Path) -> Path:
    """The folder of the unpacked wheel or sdist of `source`."""
    name = ran(source, "-W", "ignore", "-c", MAKE.format(kind, str(target))).splitlines()[-1]
    form: Any = {"format": "zip"} if kind == "wheel" else {"format": "gztar", "filter": "data"}
    shutil.unpack_archive(target / name, target / kind, **form)
    return target / kind


def of_wheel(checkout: Path, folder: Path) -> Path:
    return unpacked("wheel", checkout, folder)


def of_sdist(checkout: Path, folder: Path) -> Path:
    [source] = unpacked("sdist", checkout, folder).iterdir()
    return of_wheel(source, folder)


def of_checkout(checkout: Path, _: Path) -> Path:
    return checkout


def bring_compiled_kernels(installed: Path) -> None:
    """Copy what is compiled of this checkout, which saves half a minute for each place."""
    for compiled in (ROOT / "packprep" / "packing").rglob("__pycache__/*.kernel"):
        target = installed / compiled.relative_to(ROOT)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(compiled, target)


@pytest.mark.long
@pytest.mark.parametrize("install", [of_wheel, of_sdist, of_checkout])
def test_a_build_runs_from_the_wheel_the_sdist_and_a_bare_checkout(
    install: Callable[[Path, Path], Path], checkout: Path, tmp_path: Path
) -> None:
    pytest.importorskip("setuptools", minversion="77")
    source = write_jsonl(tmp_path / "a.jsonl", texts(40))
    tokenizer = save_tokenizer(tmp_path / "tokenizer")
    installed = install(checkout, tmp_path)
    bring_compiled_kernels(installed)
    packed, page = tmp_path / "out", tmp_path / "report.html"

    def python(*arguments: object) -> str:
        return ran(tmp_path, *arguments, PYTHONPATH=str(installed))

    imported = python("-c", "import packprep.loaders as loaders; print(loaders.__file__)")
    assert imported.startswith(str(installed))
    options = ("--tokenizer", tokenizer, "--max-length", 64, "--quiet")
    python("-m", "packprep", "build", source, "-o", packed, *options)
    python("-m", "packprep", "report", packed, "-o", page)
    assert "</html>" in page.read_text()
    here = tmp_path / "here"
    build(config(sources=source, output=here, tokenizer=tokenizer, max_length=64))
    assert read_manifest(packed).data == read_manifest(here).data
