"""`scripts/install` and `scripts/demo` with stand-ins for Python, which install nothing."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_OLD = """import platform, sys
sys.version_info = (3, 10, 12)
platform.python_version = lambda: "3.10.12"
"""
_PYTHON = """#!/usr/bin/env bash
# Says that it is the Python of sitecustomize.py beside it; records other uses.
if [ "$1" = -c ]; then PYTHONPATH=$(dirname "$0") exec {python} "$@"; fi
echo "$(basename "$0") $*" >> {log}
if [ "$1 $2" = "-m venv" ]; then
  rm -rf .venv
  mkdir -p .venv/bin
  cp {new} .venv/bin/python
fi
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the scripts, and in `old` and `new` a python3 of each kind."""
    for name in ("pyproject.toml", "scripts/install", "scripts/demo", "scripts/constraints.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("old", "new"):
        stand_in(tmp_path, tmp_path / name / "python3")
    (tmp_path / "old" / "sitecustomize.py").write_text(_OLD)
    return tmp_path


def stand_in(checkout: Path, path: Path) -> None:
    names = {"python": sys.executable, "log": checkout / "log", "new": checkout / "new/python3"}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_PYTHON.format(**{key: shlex.quote(str(at)) for key, at in names.items()}))
    path.chmod(0o755)


def run(checkout: Path, script: str, folder: str, **variables: str) -> tuple[int, str]:
    """Run a script with the python3 of a folder. Returns its code and its standard error."""
    done = subprocess.run(
        [checkout / "scripts" / script],
        env={"PATH": f"{checkout / folder}:/usr/bin:/bin", "CHROMIUM": "none"} | variables,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stderr


def log(checkout: Path) -> list[str]:
    path = checkout / "log"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("script", ["install", "demo"])
def test_an_old_python_is_refused_before_anything_is_made(checkout: Path, script: str) -> None:
    code, said = run(checkout, script, "old")
    assert code == 2
    assert "python3 is Python 3.10.12, and packprep needs 3.11" in said
    assert log(checkout) == []
    assert not (checkout / ".venv").exists()


def test_the_named_python_makes_the_environment(checkout: Path) -> None:
    new = str(checkout / "new" / "python3")
    assert run(checkout, "install", "old", PYTHON=new) == (0, "")
    assert log(checkout)[0] == "python3 -m venv --clear .venv"
    assert log(checkout)[1].startswith("python -m pip install ")
    missing = run(checkout, "install", "new", PYTHON="python3.99")
    assert missing == (0, ""), "it is there already"
    shutil.rmtree(checkout / ".venv")
    code, said = run(checkout, "install", "new", PYTHON="python3.99")
    assert (code, "no Python at python3.99" in said) == (2, True)


def test_an_environment_with_an_old_python_or_none_is_made_again(checkout: Path) -> None:
    stand_in(checkout, checkout / ".venv" / "bin" / "python")
    (checkout / ".venv" / "bin" / "sitecustomize.py").write_text(_OLD)
    assert run(checkout, "install", "old")[0] == 2
    assert log(checkout) == [], "nothing is deleted before a newer Python is known"
    assert run(checkout, "install", "new") == (0, ".venv has Python 3.10.12; making it again\n")
    assert log(checkout)[0] == "python3 -m venv --clear .venv"
    assert run(checkout, "install", "new") == (0, "")
    assert len(log(checkout)) == 2, "nothing is done twice"
    (checkout / ".venv" / "bin" / "python").unlink()
    assert run(checkout, "install", "new")[0] == 0
    assert (checkout / ".venv" / "bin" / "python").exists()
