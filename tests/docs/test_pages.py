"""Every block of shell and Python of README and docs runs, or its fence says why it cannot."""

import os
import re
import shutil
from pathlib import Path

import pytest

from .blocks import PAGES, Block, load, name_of
from .sessions import run_page

EVERY = 8  # of the rows of code.jsonl: a page shows that its commands work, not how fast
WHOLE = {
    "docs/mixes.md": "its dry run takes a sample only of what is large",
    "docs/pretraining.md": "it holds out one document of a hundred",
    "docs/troubleshooting.md": "it stops a build while it runs",
}


TRAINS_OR_SERVES = re.compile(
    r"(from|import|against) (torch|transformers|trl|grain)\b|executor ray|&$", re.MULTILINE
)


def _is_long(blocks: list[Block]) -> bool:
    """True for a page of many commands, one that trains or loads a trainer, or starts a server."""
    parts = sum(
        len(block.commands()) if block.language == "console" else block.is_code
        for block in blocks
        if block.why_not is None
    )
    return parts > 6 or any(TRAINS_OR_SERVES.search(block.text) for block in blocks)


CASES = [
    pytest.param(path, marks=[pytest.mark.long] if _is_long(load(path)) else [], id=name_of(path))
    for path in PAGES
    if any(block.is_code for block in load(path))
]


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which all workers of a test run keep the sample data."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "sample"


@pytest.mark.parametrize("path", CASES)
def test_the_blocks_of_a_page_run_from_top_to_bottom(
    path: Path, sample: Path, warm_server: str, tmp_path: Path
) -> None:
    blocks = load(path)
    every = 1 if name_of(path) in WHOLE else EVERY
    folder = tmp_path / "work"
    cache = Path(warm_server).parent / "cache" if warm_server else tmp_path / "cache"
    folder.mkdir()
    try:
        run_page(blocks, folder, cache, sample, every, warm_server)
    finally:
        shutil.rmtree(tmp_path, ignore_errors=True)


def test_most_blocks_run_and_each_that_trains_a_model_on_packs_shows_the_guard() -> None:
    code = [block for path in PAGES for block in load(path) if block.is_code]
    exempt = [f"{block.where}: {block.why_not}" for block in code if block.why_not is not None]
    assert len(exempt) <= 0.15 * len(code), "\n".join(exempt)
    packed = [block for block in code if not (block.file or "").startswith("unpacked")]
    models = [block for block in packed if "CausalLM" in block.text]
    trained = [block for block in models if re.search(r"Trainer\(|\.backward\(\)", block.text)]
    assert [block.where for block in trained if "guard(" not in block.text] == []
