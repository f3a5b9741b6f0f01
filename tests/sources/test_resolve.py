import gzip
import hashlib
import io
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packprep.sources.formats.gzip_reader import GzipReader
from packprep.sources.formats.raw_files import decompressed
from packprep.sources.resolve import resolve
from packprep.sources.source import Source, file_state
from packprep.support.errors import InputError
from packprep.support.progress import Silent
from tests.helpers.corpus import write_jsonl
from tests.helpers.files import PACK, config


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def resolved(*names: str, **options: Any) -> list[Source]:
    return resolve(config(sources=names, **options), Path("scratch"))


def names(*given: str, **options: Any) -> list[str]:
    return [source.name for source in resolved(*given, **options)]


class Lines(Silent):
    """Keeps what a user reads."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def make(*paths: str) -> None:
    for path in paths:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(Path(path), ["a"])


@pytest.mark.parametrize("again", ["a.jsonl", "./a.jsonl", "?.jsonl", "link.jsonl", "hard.jsonl"])
def test_a_file_named_twice_is_read_once_with_a_note(here: Path, again: str) -> None:
    make("a.jsonl", "b.jsonl")
    Path("link.jsonl").symlink_to("a.jsonl")
    Path("hard.jsonl").hardlink_to("a.jsonl")
    progress = Lines()
    found = resolve(config(sources=("b.jsonl", "a.jsonl", again)), Path("scratch"), progress)
    assert [source.name for source in found] == ["b.jsonl", "a.jsonl"]
    twice = "a.jsonl" if again == "./a.jsonl" else again.replace("?", "a")
    more = ", and 1 other source" if again == "?.jsonl" else ""
    assert progress.lines == [f"{twice} is named twice, and read once{more}"]


def test_equal_files_and_files_read_in_two_ways_are_sources_of_their_own(here: Path) -> None:
    make("a.jsonl", "b.jsonl")
    assert names("a.jsonl", "b.jsonl") == ["a.jsonl", "b.jsonl"]
    tables: Any = ("a.jsonl", {"path": "a.jsonl", "text_column": "title"})
    assert names(*tables) == ["a.jsonl", "a.jsonl"]
    limited: Any = ("a.jsonl", {"path": "a.jsonl", "limit": 1})
    with pytest.raises(InputError, match=r"^a\.jsonl is named twice with other limits; name it"):
        resolved(*limited)


def test_a_file_is_known_by_its_suffix_and_its_digest(here: Path) -> None:
    make("a.jsonl")
    digest = hashlib.sha256(b'{"text": "a"}\n').hexdigest()
    assert resolved("a.jsonl") == [
        Source("a.jsonl", "json", Path("a.jsonl"), 14, digest, files=(file_state("a.jsonl"),))
    ]


@pytest.mark.parametrize(
    ("name", "kind", "suffix", "compression"),
    [
        ("a.JSON", "json", "json", ""),
        ("a.b.jsonl.gz", "json", "jsonl", "gz"),
        ("a.csv", "csv", "csv", ""),
        ("a.tsv.zst", "csv", "tsv", "zst"),
        ("a.txt", "text", "txt", ""),
        ("a.parquet", "parquet", "parquet", ""),
        ("a.arrow", "arrow", "arrow", ""),
    ],
)
def test_formats_and_compressions(
    here: Path, name: str, kind: str, suffix: str, compression: str
) -> None:
    (here / name).write_text("x")
    [source] = resolved(name)
    assert (source.kind, source.suffix, source.compression) == (kind, suffix, compression)


def test_sources_stand_in_the_order_given_and_globs_sorted_by_bytes(here: Path) -> None:
    make("b.jsonl", "Z.jsonl", "é.jsonl", "a.jsonl", "sub/c.jsonl")
    assert names("b.jsonl", "*.jsonl") == ["b.jsonl", "Z.jsonl", "a.jsonl", "é.jsonl"]
    assert names("**/*.jsonl") == ["Z.jsonl", "a.jsonl", "b.jsonl", "sub/c.jsonl", "é.jsonl"]


def test_a_directory_gives_its_supported_files_recursively_and_nothing_hidden(here: Path) -> None:
    make("data/b.jsonl", "data/a/z.jsonl", "data/.hidden.jsonl", "data/.cache/x.jsonl")
    (here / "data" / "README.md").write_text("not data")
    assert names("data") == ["data/a/z.jsonl", "data/b.jsonl"]


def test_an_output_beside_the_sources_is_not_one_of_them(here: Path) -> None:
    make("a.jsonl", "packed/a.jsonl", "packed.incomplete/b.jsonl")
    assert names(".", output="packed") == ["a.jsonl"]


def test_an_existing_path_wins_over_a_pattern_and_over_the_hub(here: Path) -> None:
    make("[ab].jsonl", "a.jsonl", "user/name/a.jsonl")
    assert names("[ab].jsonl") == ["[ab].jsonl"]
    assert names("user/name") == ["user/name/a.jsonl"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("gone.jsonl", "no such file: gone.jsonl"),
        ("gone.csv.gz", "no such file: gone.csv.gz"),
        ("./gone", "no such file: ./gone"),
        ("gone-*.jsonl", "no file matches gone-*.jsonl; check the pattern"),
        ("dangling.jsonl", "dangling.jsonl is a link to nowhere, which does not exist"),
        ("empty.jsonl", "empty.jsonl is empty; expected at least one document"),
        (
            "report.pdf",
            "report.pdf has no known format; "
            "expected .jsonl/.json/.csv/.tsv/.txt/.parquet/.arrow (plain, .gz or .zst) or token "
            "ids in .bin/.idx/.npy/.ds",
        ),
        (
            "folder",
            "folder holds no file of a known format; "
            "expected .jsonl/.json/.csv/.tsv/.txt/.parquet/.arrow (plain, .gz or .zst) or token "
            "ids in .bin/.idx/.npy/.ds",
        ),
        ("pipe.jsonl", "pipe.jsonl is not a regular file; to read a pipe use - for standard input"),
        ("-", "standard input is empty; expected JSON lines"),
    ],
)
def test_what_cannot_be_a_source_is_said(
    here: Path, monkeypatch: pytest.MonkeyPatch, name: str, sentence: str
) -> None:
    (here / "empty.jsonl").touch()
    (here / "report.pdf").write_text("%PDF")
    (here / "folder").mkdir()
    (here / "dangling.jsonl").symlink_to("nowhere")
    os.mkfifo(here / "pipe.jsonl")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(InputError) as raised:
        resolved(name)
    assert str(raised.value) == sentence


def test_a_name_that_is_not_utf8_is_an_error_before_anything_is_read(here: Path) -> None:
    path = os.fsdecode(b"\xff.jsonl")
    (here / path).write_text('{"text": "a"}')
    with pytest.raises(InputError, match="is not UTF-8; rename it"):
        resolved(path)


def test_standard_input_is_kept_in_the_scratch_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "a"}\n')))
    [source] = resolved("-")
    assert (source.name, source.kind, source.path) == (
        "standard input",
        "json",
        Path("scratch/stdin.jsonl"),
    )
    assert Path("scratch/stdin.jsonl").read_bytes() == b'{"text": "a"}\n'


def test_no_source_at_all_is_an_error(here: Path) -> None:
    with pytest.raises(InputError, match="no source is given"):
        resolved()


@pytest.mark.parametrize(
    ("key", "kinds"),
    [("name", "hub datasets"), ("revision", "hub datasets"), ("split", "hub and saved datasets")],
)
def test_what_only_some_datasets_have_is_an_error_for_plain_files(
    here: Path, key: str, kinds: str
) -> None:
    make("a.jsonl")
    with pytest.raises(
        InputError, match=f"{key} 'x' is for {kinds}, and no source is one; leave it out"
    ):
        resolved("a.jsonl", **{key: "x"})


def test_a_saved_dataset_alone_has_no_other_split(here: Path) -> None:
    datasets.Dataset.from_dict({"text": ["a"]}, split="train").save_to_disk("saved")
    assert len(resolved("saved", split="train")) == 1
    with pytest.raises(InputError, match="saved is one dataset, of split train; leave --split out"):
        resolved("saved", split="test")


def test_a_saved_dataset_is_one_source_whose_digest_is_of_its_rows_alone(here: Path) -> None:
    datasets.Dataset.from_dict({"text": ["a", "b"]}).save_to_disk("saved")
    [source] = resolved("saved")
    assert (source.name, source.kind, source.path) == ("saved", "saved", Path("saved"))
    (here / "saved" / "cache-1234.arrow").write_bytes(b"what a map of the user's left there")
    assert resolved("saved") == [source]


def test_of_a_dataset_dict_one_split_is_chosen(here: Path) -> None:
    rows = datasets.Dataset.from_dict({"text": ["a"]})
    datasets.DatasetDict({"train": rows}).save_to_disk("one")
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk("two")
    assert resolved("one")[0].path == Path("one/train")
    assert resolved("two", split="test")[0].path == Path("two/test")
    with pytest.raises(InputError, match="two has several splits; choose --split from test, train"):
        resolved("two")
    with pytest.raises(InputError, match="two has no split 'dev'; choose --split from test, train"):
        resolved("two", split="dev")


def test_a_saved_dataset_with_a_file_missing_is_named(here: Path) -> None:
    datasets.Dataset.from_dict({"text": ["a"]}).save_to_disk("saved")
    next(Path("saved").glob("data-*.arrow")).unlink()
    with pytest.raises(
        InputError, match=r"saved is incomplete: saved/data-00000-of-00001\.arrow cannot be read"
    ):
        resolved("saved")
    (here / "saved" / "state.json").write_text("{}")
    with pytest.raises(InputError, match=r"saved/state\.json lists no data files"):
        resolved("saved")


def test_any_other_name_is_asked_of_the_hub_with_name_split_and_revision(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []
    datasets.Dataset.from_dict({"text": ["a"]}).save_to_disk("cached")

    def load_dataset(
        path: str, name: str | None, *, split: str, revision: str | None
    ) -> datasets.Dataset:
        asked.append((path, name, split, revision))
        return datasets.load_from_disk("cached")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr("packprep.support.hub._unreachable", lambda *_: "")
    [source] = resolved("user/name", name="en", split="validation", revision="abc")
    assert asked == [("user/name", "en", "validation", "abc")]
    assert (source.name, source.kind, source.path) == ("user/name", "hub", None)
    assert source.bytes > 0
    assert resolved("name")[0].sha256 == source.sha256
    assert asked[1] == ("name", None, "train", None)


def test_what_the_hub_answers_is_in_the_error(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: Any, **__: Any) -> None:
        raise FileNotFoundError("Dataset 'user/name' doesn't exist\non the Hub")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr("packprep.support.hub._unreachable", lambda *_: "")
    with pytest.raises(InputError) as raised:
        resolved("user/name")
    assert str(raised.value) == (
        "user/name is no local path and no dataset came from the hub: Dataset 'user/name' doesn't "
        "exist on the Hub"
    )


@pytest.mark.parametrize("suffix", PACK)
def test_files_are_read_plain_whatever_their_compression(tmp_path: Path, suffix: str) -> None:
    content = b"line\n" * 100_000
    pack = PACK[suffix]
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(pack(content[:300]) + pack(content[300:]))  # two gzip members, two zstd frames
    with decompressed(path) as file:
        assert file.readline() == b"line\n"
        assert file.read() == content[5:]


@given(
    st.lists(
        st.tuples(st.binary(max_size=40), st.integers(0, 3), st.integers(0, 400_000)),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([1, 100, 1 << 17]),
)
@settings(max_examples=50, deadline=None)
def test_gzip_members_padded_with_zeros_are_what_gzip_reads(
    members: list[tuple[bytes, int, int]], at_once: int
) -> None:
    packed = b"".join(
        gzip.compress(content * 9**more) + bytes(zeros) for content, more, zeros in members
    )
    with GzipReader(io.BytesIO(packed)) as raw, io.BufferedReader(raw, at_once) as file:
        assert file.read() == gzip.decompress(packed)


def test_what_follows_a_gzip_file_is_named_with_its_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    packed = gzip.compress(b'{"text": "a"}\n') + bytes(512)
    path.write_bytes(packed)
    with decompressed(path) as file:
        assert file.read() == b'{"text": "a"}\n'
    path.write_bytes(packed + b"garbage" + bytes(9))
    with (
        decompressed(path) as file,
        pytest.raises(OSError, match=f"^Garbage at byte {len(packed)}$"),
    ):
        file.read()


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("lost", [1, 100])
def test_compressed_data_that_ends_early_is_never_just_shorter(
    tmp_path: Path, suffix: str, lost: int
) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(PACK[suffix](os.urandom(100_000))[:-lost])
    with decompressed(path) as file, pytest.raises(OSError, match="Truncated"):
        shutil.copyfileobj(file, io.BytesIO())
