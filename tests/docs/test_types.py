"""Strict type checks of the Python that pages show."""

import subprocess
import sys
from pathlib import Path

import pytest

from .blocks import PAGES, ROOT, load

WRONG = 'from packprep import BuildConfig\n\nBuildConfig(max_lenght="4096")\n'


@pytest.mark.long
def test_blocks_of_pages_are_typed_and_a_wrong_option_is_refused(tmp_path: Path) -> None:
    """One run checks all files, which takes half a minute."""
    blocks = [
        block.text
        for page in PAGES
        for block in load(page)
        if block.language == "python" and "BuildConfig(" in block.text
    ]
    assert blocks
    for number, code in enumerate([WRONG, *blocks]):
        (tmp_path / f"block{number}.py").write_text(code)
    files = [str(path) for path in tmp_path.glob("*.py")]
    settings = ["--strict", "--config-file", str(ROOT / "pyproject.toml")]
    command = [sys.executable, "-m", "mypy", *settings, *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert {error.rpartition("block")[2].split(":")[0] for error in errors} == {"0.py"}
    assert any('Unexpected keyword argument "max_lenght"' in error for error in errors)
