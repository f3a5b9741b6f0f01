"""The scripts: named paths exist, and programs take their arguments through click."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("packprep", "loaders", "schemas", "scripts", "tests", "docs", ".ci")
PROGRAMS = [
    path for path in sorted((ROOT / "scripts").rglob("*.py")) if "__main__" in path.read_text()
]


def test_every_script_that_is_named_is_there() -> None:
    texts = [ROOT / "README.md", ROOT / "pyproject.toml"]
    for folder in FOLDERS:
        texts += [path for path in (ROOT / folder).rglob("*") if path.suffix in ("", ".md", ".py")]
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in texts
        if path.is_file() and "golden" not in path.parts
        for name in re.findall(r"(?<![\w/])scripts/[\w./]*\w", path.read_text())
        if not (ROOT / name).exists()
    }
    assert missing == set()


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_program_takes_its_arguments_through_click(path: Path) -> None:
    text = path.read_text()
    (main,) = [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name == "main"
    ]
    assert "import argparse" not in text
    assert re.match(r"click\.(command|group)\b", ast.unparse(main.decorator_list[0]))
