"""Every block of shell and Python of README and docs runs, or its fence says why it cannot."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from .blocks import PAGES, ROOT, load
from .sessions import run_page


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", PAGES, ids=_name)
def test_the_blocks_of_a_page_run_from_top_to_bottom(
    path: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    blocks = load(path)
    folder, cache = tmp_path / "work", tmp_path / "cache"
    folder.mkdir()
    try:
        run_page(blocks, folder, cache)
    finally:
        shutil.rmtree(tmp_path, ignore_errors=True)
    code = [block for block in blocks if block.is_code]
    exempt = [[block.where, block.why_not] for block in code if block.why_not is not None]
    # tests/conftest.py adds these up, for the last lines of the run
    record_property("docs_blocks", {"ran": len(code) - len(exempt), "exempt": exempt})


def test_at_most_15_percent_of_all_blocks_give_a_reason_not_to_run() -> None:
    code = [block for path in PAGES for block in load(path) if block.is_code]
    exempt = [f"{block.where}: {block.why_not}" for block in code if block.why_not is not None]
    assert len(exempt) <= 0.15 * len(code), "\n".join(exempt)
