"""Strict type checks of the Python that users write: pages, and each kind of option."""

import subprocess
import sys
from pathlib import Path

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


def errors_in(path: Path, code: str) -> str:
    path.write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", ROOT / "pyproject.toml", path],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return done.stdout.replace(str(path), path.name) if done.returncode else ""


def test_every_kind_of_option_is_given_as_a_list_a_path_or_text(tmp_path: Path) -> None:
    assert errors_in(tmp_path / "sample.py", _SAMPLE) == ""
    wrong = _SAMPLE.replace("max_length=4096", 'max_lenght="4096"')
    assert 'Unexpected keyword argument "max_lenght"' in errors_in(tmp_path / "wrong.py", wrong)


def test_blocks_of_pages_that_name_build_config_are_typed(tmp_path: Path) -> None:
    blocks = [
        (page, block.text)
        for page in PAGES
        for block in load(page)
        if block.language == "python" and "BuildConfig(" in block.text
    ]
    assert blocks
    for number, (page, text) in enumerate(blocks):
        assert errors_in(tmp_path / f"block{number}.py", text) == "", page
