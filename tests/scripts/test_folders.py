"""Every script that a text of the project names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("packprep", "loaders", "schemas", "scripts", "tests", "docs", ".ci")


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
