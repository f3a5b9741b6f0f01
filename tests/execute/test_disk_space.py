import dataclasses
import errno
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from packprep import BuildConfig, build
from packprep.engines.tokenizer import load_tokenizer
from packprep.execute import disk_space
from packprep.execute.job import Job
from packprep.sources.source import Source
from packprep.support.errors import StoppedError
from tests.helpers.corpus import save_tokenizer, tiny_tokenizer, write_jsonl
from tests.helpers.errors import assert_says, refused
from tests.helpers.files import config


def job(staging: Path, *names: str, **options: Any) -> Job:
    kinds = {"jsonl": "json", "parquet": "parquet"}
    sources = [Source(name, kinds[name.split(".")[1]], Path(name), 1_000_000, "") for name in names]
    tokenizer = load_tokenizer(tiny_tokenizer(), bos="<s>", eos="</s>")
    return Job(config=BuildConfig(**options), staging=staging, tokenizer=tokenizer, sources=sources)


@pytest.mark.parametrize(
    ("names", "share", "options", "tokens"),
    [
        (["a.jsonl"], 0.25, {}, 250_000),
        (["a.jsonl.gz", "b.jsonl.zst"], 0.25, {}, 2_000_000),
        (["a.parquet"], 0.25, {}, 750_000),
        (["a.jsonl"], None, {}, 350_000),
        (["a.jsonl"], 0.25, {"max_tokens": 10_000, "unit_size": 4_000}, 11_000),
    ],
)
def test_tokens_are_predicted_from_what_files_hold(
    tmp_path: Path, names: list[str], share: float | None, options: Any, tokens: int
) -> None:
    assert disk_space.predicted_tokens(job(tmp_path, *names, **options), share) == tokens


@pytest.mark.parametrize(
    ("options", "vocabulary", "needed"),
    [
        ({}, 320, 10_500),
        ({}, 65_537, 12_600),
        ({"token_type": "uint16"}, 320, 6_300),
        ({"token_type": "auto", "max_length": 65_537}, 320, 8_400),
        ({"columns": ("document_ids",), "keep_tokens": "store"}, 320, 4_200),
    ],
)
def test_token_files_and_shards_are_on_the_disk_together(
    tmp_path: Path, options: dict[str, Any], vocabulary: int, needed: int
) -> None:
    plain = job(tmp_path, "a.jsonl", **options)
    tokenizer = dataclasses.replace(plain.tokenizer, vocab_size=vocabulary)
    assert disk_space.needed_bytes(dataclasses.replace(plain, tokenizer=tokenizer), 1000) == needed


def test_too_little_room_stops_before_anything_is_written_and_little_room_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "done").write_bytes(b"x" * 20_000)
    little, tokens = job(tmp_path, "a.jsonl"), 97_143  # 1.02 MB
    monkeypatch.setattr(disk_space, "room_at", lambda _: 600_000)
    with refused(StoppedError, "has 600.0 kB free; free 400.0 kB more, or choose another"):
        disk_space.check_room(little, tokens)
    monkeypatch.setattr(disk_space, "room_at", lambda _: 900_000)
    assert_says(disk_space.check_room(little, tokens) or "", "about 1.0 MB will be written to")
    monkeypatch.setattr(disk_space, "room_at", lambda _: 20_000_000)
    assert disk_space.check_room(little, tokens) is None


STORE, OUTPUT = Path("store-disk"), Path("output-disk")


@pytest.fixture
def two_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[Path, int]:
    """Free bytes of the disk of the store and of that of the output."""
    monkeypatch.chdir(tmp_path)
    free = {STORE: 3_000_000, OUTPUT: 80_000_000_000}
    for disk in free:
        disk.mkdir()

    def room_at(path: Path) -> int:
        return next(
            room for disk, room in free.items() if path.resolve().is_relative_to(disk.resolve())
        )

    monkeypatch.setattr(disk_space, "room_at", room_at)
    return free


def test_the_disk_of_the_token_store_is_measured_too(two_disks: dict[Path, int]) -> None:
    made = job(OUTPUT / "out.incomplete", "a.jsonl", keep_tokens=str(STORE / "tokens"))
    tokens = 10_000_000  # 21 MB of token files, 84 MB of shards
    with refused(StoppedError, "21.0 MB", str(made.tokens), "free 18.0 MB more", "--keep-tokens"):
        disk_space.check_room(made, tokens)
    two_disks[STORE] = 80_000_000_000
    assert disk_space.check_room(made, tokens) is None
    two_disks |= {OUTPUT: 90_000_000, STORE: 22_000_000}
    said = disk_space.check_room(made, tokens) or ""
    assert said.startswith("about 84.0 MB will be written to output-disk")
    assert "; about 21.0 MB will be written to store-disk" in said


def test_a_full_disk_of_the_token_store_is_not_reported_as_that_of_the_output(
    two_disks: dict[Path, int],
) -> None:
    made = job(OUTPUT / "out.incomplete", "a.jsonl", keep_tokens=str(STORE / "tokens"))
    made.tokens.mkdir(parents=True)
    (made.tokens / "unit-000000-000.arrow").write_bytes(b"x" * 1_000_000)
    path = str(made.tokens / "unit-000001-000.arrow.tmp")
    two_disks[STORE] = 0
    error = OSError(errno.ENOSPC, "No space left on device", path)
    said = str(disk_space.full(error, made, 10_000_000))
    assert_says(said, f"{path}: no space left on the disk: 0.0 kB are free", "about 20.0 MB more")
    assert_says(str(disk_space.full(error, made, 0)), "about 1.0 MB more are needed")
    error = OSError(errno.ENOSPC, "No space left on device")
    said = str(disk_space.full(error, made, 10_000_000))
    assert said.startswith(
        "output-disk/out.incomplete: no space left on the disk: 80.0 GB are free"
    )


class _Full(io.BytesIO):
    """A file on a disk that has no space: it can be opened, and nothing can be written."""

    def __init__(self, *_: object) -> None:
        super().__init__()

    def write(self, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_build_names_the_file_of_the_store_that_did_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(Path("a.jsonl"), ["one", "two"])
    tokenizer = str(save_tokenizer(tmp_path / "tokenizer"))
    options = {"sources": ["a.jsonl"], "tokenizer": tokenizer, "engine": "hf"}
    with monkeypatch.context() as patch:
        patch.setattr(pa, "OSFile", _Full)
        match = r"^store/\S+\.tmp: no space left on the disk: .* free"
        with pytest.raises(StoppedError, match=match):
            build(config(**options, output="out", keep_tokens="store"))
    build(config(**options, output="out", keep_tokens="store"))


def test_a_limit_of_rows_is_not_refused_for_the_size_of_its_files(
    two_disks: dict[Path, int],
) -> None:
    two_disks |= {OUTPUT: 1_000_000, STORE: 1_000_000}
    made = job(OUTPUT / "out.incomplete", "a.jsonl", keep_tokens=str(STORE / "tokens"), limit=10)
    assert disk_space.check_room(made, 10_000_000) is None
    whole = dataclasses.replace(made, config=dataclasses.replace(made.config, limit=None))
    of_one = dataclasses.replace(made.sources[0], reading={"limit": 10})
    assert disk_space.check_room(dataclasses.replace(whole, sources=[of_one]), 10_000_000) is None
    with pytest.raises(StoppedError):
        disk_space.check_room(whole, 10_000_000)
