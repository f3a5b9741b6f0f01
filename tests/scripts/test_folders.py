"""The folders of scripts: named paths exist, and programs take their arguments through click."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("packprep", "loaders", "schemas", "scripts", "tests", "docs", ".ci")
NAMING = [
    ROOT / "README.md",
    ROOT / "pyproject.toml",
    *(
        path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in ("", ".md", ".py") and path.is_file() and "golden" not in path.parts
    ),
]
LIBRARIES = ("common.py", "crop_to_fill.py", "family_sizes.py", "tables.py")
PROGRAMS = sorted(
    path
    for path in [
        *(path for path in (ROOT / "scripts").rglob("*.py") if path.name not in LIBRARIES),
        *(
            ROOT / "tests" / "faults" / f"{name}.py"
            for name in ("bombs", "fuzz", "guided/run", "remote", "soak")
        ),
    ]
)


def test_every_script_that_is_named_is_there() -> None:
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in NAMING
        for name in re.findall(r"(?<![\w/])scripts/[\w./]*\w", path.read_text())
        if not (ROOT / name).exists()
    }
    assert missing == set()


def test_the_top_holds_commands_and_what_they_read() -> None:
    top = {path.name for path in (ROOT / "scripts").iterdir() if path.name != "__pycache__"}
    assert top == {
        *(
            "check",
            "check_datasets_versions",
            "check_stores",
            "check_trainers",
            "demo",
            "gate",
            "install",
        ),
        *("fuzz", "soak", "test", "constraints.txt"),
        *("audit", "check_lowest", "lock", "lock.txt", "lock-build.txt", "release"),
        *("demo_baseline.json", "demo_show.py"),
        *("bench", "checks", "docs", "examples"),
    }


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_program_takes_its_arguments_through_click(path: Path) -> None:
    tree = ast.parse(path.read_text())
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    (main,) = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main"
    ]
    assert "argparse" not in names
    assert re.match(r"click\.(command|group)\b", ast.unparse(main.decorator_list[0]))


@pytest.mark.parametrize("script", ["check_datasets_versions", "checks/datasets_versions"])
def test_a_check_is_one_program_by_both_of_its_paths(script: str) -> None:
    done = subprocess.run(
        [ROOT / "scripts" / script], capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 1
    assert "usage: scripts/check_datasets_versions OUT [VERSION[/TORCH]...]" in done.stderr


def test_help_of_a_script_is_its_first_lines() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "bench" / "peers.py", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"COLUMNS": "100"},
    )
    assert done.stdout.startswith("Usage: peers.py [OPTIONS] {raw-hf|raw-fastokens|gigatoken-bin|")
    assert "Programs that a build is compared with, each in a separate process." in done.stdout
