import dataclasses
import errno
from pathlib import Path

import pytest

from packprep import BuildConfig
from packprep.engines.tokenizer import load_tokenizer
from packprep.execute import disk_space
from packprep.execute.job import Job
from packprep.sources.source import Source
from packprep.support.errors import StoppedError
from tests.helpers.corpus import tiny_tokenizer


def job(staging: Path, *names: str, **options: int) -> Job:
    kinds = {"jsonl": "json", "parquet": "parquet"}
    sources = [Source(name, kinds[name.split(".")[1]], Path(name), 1_000_000, "") for name in names]
    tokenizer = load_tokenizer(tiny_tokenizer(), bos="<s>", eos="</s>")
    return Job(config=BuildConfig(**options), staging=staging, tokenizer=tokenizer, sources=sources)  # type: ignore[arg-type]


def test_tokens_are_predicted_from_what_files_hold(tmp_path: Path) -> None:
    assert disk_space.predicted_tokens(job(tmp_path, "a.jsonl"), 0.25) == 250_000
    assert (
        disk_space.predicted_tokens(job(tmp_path, "a.jsonl.gz", "b.jsonl.zst"), 0.25) == 2_000_000
    )
    assert disk_space.predicted_tokens(job(tmp_path, "a.parquet"), 0.25) == 750_000
    assert disk_space.predicted_tokens(job(tmp_path, "a.jsonl"), None) == 350_000
    small = job(tmp_path, "a.jsonl", max_tokens=10_000, unit_size=4_000)
    assert disk_space.predicted_tokens(small, 0.25) == 11_000


def test_token_files_and_shards_are_on_the_disk_together(tmp_path: Path) -> None:
    plain = job(tmp_path, "a.jsonl")
    assert disk_space.needed_bytes(plain, 1000) == 10_500
    large = dataclasses.replace(plain.tokenizer, vocab_size=65_537)
    assert disk_space.needed_bytes(dataclasses.replace(plain, tokenizer=large), 1000) == 12_600
    compact = dataclasses.replace(plain, config=BuildConfig(token_type="uint16"))
    assert disk_space.needed_bytes(compact, 1000) == 6_300
    long = BuildConfig(token_type="auto", max_length=65_537)
    assert disk_space.needed_bytes(dataclasses.replace(plain, config=long), 1000) == 8_400
    without = BuildConfig(columns=("document_ids",), keep_tokens="store")
    assert (
        disk_space.needed_bytes(
            Job(config=without, staging=tmp_path, tokenizer=plain.tokenizer, sources=plain.sources),
            1000,
        )
        == 4_200
    )


def test_too_little_room_stops_before_anything_is_written_and_little_room_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "done").write_bytes(b"x" * 20_000)
    needed = 1_020_000
    for free, sentence in (
        (600_000, None),
        (900_000, "about 1.0 MB will be written to"),
        (20_000_000, ""),
    ):
        monkeypatch.setattr(disk_space, "room_at", lambda _, free=free: free)
        if sentence is None:
            with pytest.raises(
                StoppedError,
                match=r"has 600\.0 kB free; free 400\.0 kB more, or choose another",
            ):
                disk_space.check_room(job(tmp_path, "a.jsonl"), needed)
        else:
            assert (disk_space.check_room(job(tmp_path, "a.jsonl"), needed) or "").startswith(
                sentence
            )


def test_a_full_disk_names_the_path_and_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_space, "room_at", lambda _: 5_000_000)
    error = OSError(errno.ENOSPC, "No space left on device", "out.incomplete/shards/a.arrow")
    assert str(disk_space.full(error, tmp_path, 2_000_000_000)) == (
        "out.incomplete/shards/a.arrow: no space left on the disk: 5.0 MB are free and about 2.0 "
        "GB more are needed; free that much space, then run the same command"
    )
    assert "about 1.0 MB more are needed" in str(disk_space.full(error, tmp_path, 0))


def test_sizes_are_easy_to_read() -> None:
    assert [disk_space.size_text(size) for size in (0, 5_600, 3_400_000, 1_200_000_000_000)] == [
        "0.0 kB",
        "5.6 kB",
        "3.4 MB",
        "1,200.0 GB",
    ]


def test_a_file_that_goes_away_while_files_are_counted_has_no_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"1234")
    monkeypatch.setattr("os.walk", lambda folder: [(str(folder), [], ["a", "gone"])])
    assert disk_space.written_bytes(tmp_path) == 4
