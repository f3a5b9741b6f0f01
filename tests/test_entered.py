"""A plain build and an epoch of its loader enter few modules, and call few lines of code."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import written
from tests.helpers.corpus import texts, write_jsonl
from tests.helpers.entered import entered

MODULES, MODULES_OF_CHATS, LINES = 55, 65, 3500
"""Most that a build may have; lines: one of text."""
EPOCH = """
import sys
from packprep.loaders import PackedLoader
assert len([*PackedLoader(sys.argv[1], packs_per_batch=2)]) > 1
"""


@pytest.mark.long
@pytest.mark.parametrize("chats", [False, True])
def test_a_plain_build_enters_few_modules(
    chats: bool, record_inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two builds, so that verdicts and tables of the cache are there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rows: list[Any] = [{"messages": turns * (1 + number % 3)} for number in range(40)]
    if not chats:
        rows = [*texts(80), " ".join(texts(80)) * 5]  # the last: more than a pack holds
    source = write_jsonl(tmp_path / "few.jsonl", rows)
    options = ["--tokenizer", f"{record_inputs}/{'qwen3' if chats else 'gpt2'}", "-q"]
    for number in range(2):
        command = ["build", str(source), "-o", str(tmp_path / str(number)), *options]
        called = entered("packprep", command + ["--messages", "auto"] * chats, tmp_path / "traced")
    print("\n".join(f"{lines:5} {name}" for name, lines in called.items()))
    assert len(called) <= (MODULES_OF_CHATS if chats else MODULES)
    assert chats or sum(called.values()) <= LINES


@pytest.mark.long
def test_an_epoch_of_a_plain_output_enters_few_modules(tmp_path: Path) -> None:
    out = written.build(tmp_path / "out", [{"ids": [*range(40)]}] * 40, "--max-length", "64")
    (tmp_path / "traced").mkdir()
    (tmp_path / "traced" / "epoch.py").write_text(EPOCH)
    called = entered("epoch", [str(out)], tmp_path / "traced")
    print("\n".join(f"{lines:5} {name}" for name, lines in called.items()))
    assert len([name for name, lines in called.items() if lines]) <= 10  # functions of it run
    assert sum(called.values()) <= 700
