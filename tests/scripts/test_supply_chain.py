"""Locks, the SBOM and reproducible distributions: what users of a release rely on."""

import importlib.metadata
import io
import json
import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
SBOM = runpy.run_path(str(ROOT / "scripts" / "checks" / "sbom.py"))
DISTRIBUTIONS = runpy.run_path(str(ROOT / "scripts" / "checks" / "distributions.py"))


def pins(path: Path) -> dict[str, str]:
    """Versions by name of a lock or of constraints."""
    found = re.findall(r"^([\w.-]+)==([^\s;\\]+)", path.read_text(), re.M)
    return {SBOM["normalized"](name): version for name, version in found}


@pytest.mark.parametrize("name", ["lock.txt", "lock-build.txt"])
def test_every_line_of_a_lock_is_a_version_with_digests_and_no_address(name: str) -> None:
    text = (ROOT / "scripts" / name).read_text()
    entries = re.split(r"\n(?=\S)", text.strip())
    entry = re.compile(r"[\w.-]+==\S+( ; [^\\]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+")
    assert [line for line in entries if not entry.fullmatch(line)] == []
    assert "//" not in text


def test_the_lock_has_every_dependency_within_its_bounds_and_at_the_version_of_the_tests() -> None:
    locked = pins(ROOT / "scripts" / "lock.txt")
    tested = pins(ROOT / "scripts" / "constraints.txt")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in map(Requirement, project["dependencies"]):
        name = SBOM["normalized"](requirement.name)
        assert locked[name] in requirement.specifier, name
    assert {name: version for name, version in locked.items() if name in tested} == {
        name: version for name, version in tested.items() if name in locked
    }


def test_the_sbom_has_the_installed_dependencies_and_their_licences(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "checks" / "sbom.py")]
    subprocess.run([*command, tmp_path / "sbom", tmp_path / "licences"], check=True)
    document = SBOM["sbom"](SBOM["needed"]())
    assert json.loads((tmp_path / "sbom").read_text()) == document, "the same each time"
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    versions = {entry["name"]: entry["version"] for entry in document["components"]}
    for name in ("numpy", "pyarrow", "numba", "llvmlite", "datasets"):
        assert versions[name] == importlib.metadata.version(name)
    assert not {"pytest", "torch", "ray", "packprep"} & set(versions)
    assert all(entry["licenses"] for entry in document["components"])
    refs = {entry["bom-ref"] for entry in document["components"]}
    refs.add(document["metadata"]["component"]["bom-ref"])
    assert refs == {entry["ref"] for entry in document["dependencies"]}
    assert all(set(entry["dependsOn"]) <= refs for entry in document["dependencies"])
    lines = (tmp_path / "licences").read_text().splitlines()
    listed = [line.split()[0] for line in lines if not line.startswith("packprep ")]
    assert listed == [*versions]


def archive(order: list[str], date: int, owner: str) -> bytes:
    """A tar.gz of files that hold their names."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as file:
        for name in order:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.uname = len(name), date, owner
            entry.mode = 0o700 if name == "run" else 0o600
            file.addfile(entry, io.BytesIO(name.encode()))
    return packed.getvalue()


def test_an_sdist_depends_on_names_contents_and_one_date_only() -> None:
    first = DISTRIBUTIONS["reproducible"](archive(["a", "run"], 5, "me"), 7)
    assert first == DISTRIBUTIONS["reproducible"](archive(["run", "a"], 6, "you"), 7)
    assert first != DISTRIBUTIONS["reproducible"](archive(["b", "run"], 5, "me"), 7)
    with tarfile.open(fileobj=io.BytesIO(first)) as file:
        facts = [(each.name, each.mode, each.mtime, each.uname) for each in file.getmembers()]
        content = file.extractfile("a")
        assert content is not None
        assert content.read() == b"a"
    assert facts == [("a", 0o644, 7, ""), ("run", 0o755, 7, "")]
