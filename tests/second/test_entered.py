"""A plain build of the second edition enters few modules, and calls few lines of code."""

from pathlib import Path

import pytest

from tests.helpers.corpus import SHARED, texts, write_jsonl
from tests.helpers.entered import entered

MODULES, LINES = 55, 3526
"""What it may have now; the bar is 55 modules and 3,500 lines."""


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
