from pathlib import Path

import pytest

from packprep import BuildConfig, build
from packprep.errors import StoppedError
from packprep.tokens import slices_ahead

from .corpus import save_tokenizer, texts, write_jsonl


def test_short_memory_means_fewer_units_at_a_time_and_never_other_bytes(tmp_path: Path) -> None:
    assert slices_ahead(BuildConfig(num_proc=4, max_memory=64_000_000_000)) == 4
    assert slices_ahead(BuildConfig(num_proc=4, max_memory=1_000_000_000)) == 2
    assert slices_ahead(BuildConfig(num_proc=4, max_memory=700_000_000)) == 0
    source = write_jsonl(tmp_path / "a.jsonl", texts(100))
    tokenizer = str(save_tokenizer(tmp_path / "tokenizer"))
    outputs = [
        build(
            BuildConfig(
                sources=(str(source),), output=str(tmp_path / str(memory)), tokenizer=tokenizer, max_memory=memory,
                unit_size=2_000, max_length=64,
            )
        ).data
        for memory in (64_000_000_000, 601_000_000)
    ]  # fmt: skip
    assert outputs[0] == outputs[1]


def test_a_window_too_large_for_memory_is_said_before_it_is_planned(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["x"] * 100)
    config = BuildConfig(
        sources=(str(source),), output=str(tmp_path / "out"), tokenizer=str(save_tokenizer(tmp_path / "tokenizer")),
        max_memory=600_000_000,
    )  # fmt: skip
    with pytest.raises(StoppedError, match="a window has 100 documents, and planning them takes 600 MB of memory"):
        build(config)
    assert not (tmp_path / "out").exists()
