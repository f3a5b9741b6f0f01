"""Strict type checks of the Python that users write: pages, and each kind of option."""

import subprocess
import sys
from pathlib import Path

import pytest

from .blocks import PAGES, ROOT, load

_SAMPLE = """
from pathlib import Path

from packprep import BuildConfig, build

config = BuildConfig(
    sources=[
        "docs/*.jsonl",
        Path("a.parquet"),
        {"path": ["b.jsonl"], "label": "b", "weight": 50, "text_column": "body"},
    ],
    output="packed",
    tokenizer="tokenizer.json",
    weights=[50, 30.5, "20"],
    carry=["score:float32"],
    pair_columns=["chosen", "rejected"],
    columns="position_ids,document_ids",
    train_fields=["content"],
    phases=[{"tokens": "80%", "weights": [70, 30]}, {"tokens": "20%"}],
    max_length=4096,
    strategy="best_fit",
    overflow="truncate",
    holdout=0.01,
)
BuildConfig(sources="docs/*.jsonl", columns=())
manifest = build(config)
print(manifest.sha256, config.sources, config.max_length + 1)
"""


@pytest.mark.long
def test_options_of_every_kind_and_blocks_of_pages_are_typed(tmp_path: Path) -> None:
    """One run checks all files, which takes half a minute; only the wrong option is refused."""
    blocks = [
        block.text
        for page in PAGES
        for block in load(page)
        if block.language == "python" and "BuildConfig(" in block.text
    ]
    assert blocks
    wrong = _SAMPLE.replace("max_length=4096", 'max_lenght="4096"')
    for number, code in enumerate([wrong, _SAMPLE, *blocks]):
        (tmp_path / f"block{number}.py").write_text(code)
    files = [str(path) for path in tmp_path.glob("*.py")]
    settings = ["--strict", "--config-file", str(ROOT / "pyproject.toml")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *settings, *files], cwd=ROOT, capture_output=True, text=True
    )
    [error] = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert "block0.py" in error
    assert 'Unexpected keyword argument "max_lenght"' in error
