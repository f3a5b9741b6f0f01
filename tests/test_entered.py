"""A plain build and an epoch of its loader enter few modules, and call few lines of code."""

from pathlib import Path

import pytest

from tests.helpers.corpus import SHARED, texts, write_jsonl
from tests.helpers.entered import entered

from . import outputs

MODULES, LINES = 55, 3500
"""Most that a build may have."""
EPOCH = """
import sys
from packprep.next.loaders import PackedLoader
assert len([*PackedLoader(sys.argv[1], packs_per_batch=2)]) > 1
"""


@pytest.mark.long
def test_a_plain_build_enters_few_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two builds, so that verdicts and tables of the cache are there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    long = " ".join(texts(80)) * 5  # more than a pack holds
    source = write_jsonl(tmp_path / "few.jsonl", [*texts(80), long])
    for number in range(2):
        options = ["-o", str(tmp_path / str(number)), "--tokenizer", f"{SHARED}/tokenizers/gpt2"]
        command = ["build", str(source), *options, "-q"]
        called = entered("packprep.next", command, tmp_path / "traced")
    print("\n".join(f"{lines:5} {name}" for name, lines in called.items()))
    assert len(called) <= MODULES
    assert sum(called.values()) <= LINES


@pytest.mark.long
def test_an_epoch_of_a_plain_output_enters_few_modules(tmp_path: Path) -> None:
    out = outputs.build(tmp_path / "out", [{"ids": [*range(40)]}] * 40, "--max-length", "64")
    (tmp_path / "traced").mkdir()
    (tmp_path / "traced" / "epoch.py").write_text(EPOCH)
    called = entered("epoch", [str(out)], tmp_path / "traced")
    print("\n".join(f"{lines:5} {name}" for name, lines in called.items()))
    assert len([name for name, lines in called.items() if lines]) <= 10  # functions of it run
    assert sum(called.values()) <= 700
