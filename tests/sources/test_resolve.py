import gzip
import hashlib
import io
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.sources import digests
from packprep.sources.digests import (
    digest_of_files,
    hash_in_threads,
    remembered,
    remembered_digest,
    together,
)
from packprep.sources.formats.gzip_reader import GzipReader
from packprep.sources.formats.raw_files import decompressed
from packprep.sources.source import Source
from packprep.support.errors import InputError
from tests.helpers.corpus import RecordedProgress, resolved, rows_in, write_jsonl
from tests.helpers.errors import refused
from tests.helpers.files import PACK, config

ROW = datasets.Dataset.from_dict({"text": ["a"]}, split="train")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def found_in(*sources: Any, **options: Any) -> list[Source]:
    return resolved(config(sources=sources, **options), Path("scratch"))


def names(*sources: Any, **options: Any) -> list[str]:
    return [source.name for source in found_in(*sources, **options)]


def make(*paths: str) -> None:
    for path in paths:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(Path(path), ["a"])


@pytest.mark.parametrize("again", ["a.jsonl", "./a.jsonl", "?.jsonl", "link.jsonl", "hard.jsonl"])
def test_a_file_named_twice_is_read_once_with_a_note(here: Path, again: str) -> None:
    make("a.jsonl", "b.jsonl")
    Path("link.jsonl").symlink_to("a.jsonl")
    Path("hard.jsonl").hardlink_to("a.jsonl")
    progress = RecordedProgress()
    found = resolved(config(sources=("b.jsonl", "a.jsonl", again)), Path("scratch"), progress)
    assert [source.name for source in found] == ["b.jsonl", "a.jsonl"]
    twice = "a.jsonl" if again == "./a.jsonl" else again.replace("?", "a")
    more = ", and 1 other source" if again == "?.jsonl" else ""
    assert progress.lines == [f"{twice} is named twice, and read once{more}"]


def test_equal_files_and_files_read_in_two_ways_are_sources_of_their_own(here: Path) -> None:
    make("a.jsonl", "b.jsonl")
    assert names("a.jsonl", "b.jsonl") == ["a.jsonl", "b.jsonl"]
    assert names("a.jsonl", {"path": "a.jsonl", "text_column": "title"}) == ["a.jsonl"] * 2
    with refused(InputError, "a.jsonl is named twice with other limits"):
        found_in("a.jsonl", {"path": "a.jsonl", "limit": 1})


FILES = ["b.jsonl", "Z.jsonl", "é.jsonl", "a.jsonl", "sub/c.jsonl", "[ab].jsonl"]
FILES += ["data/b.jsonl", "data/a/z.jsonl", "data/.hidden.jsonl", "data/.cache/x.jsonl"]
FILES += [
    "out/in.jsonl",
    "out/packed/a.jsonl",
    "out/packed.incomplete/b.jsonl",
    "user/name/a.jsonl",
]


@pytest.mark.parametrize(
    ("sources", "found"),
    [
        (["b.jsonl", "?.jsonl"], ["b.jsonl", "Z.jsonl", "a.jsonl", "é.jsonl"]),
        (["s*/**/*.jsonl", "*/c.jsonl"], ["sub/c.jsonl"]),
        (["**/[ac].jsonl"], ["a.jsonl", "out/packed/a.jsonl", "sub/c.jsonl", "user/name/a.jsonl"]),
        (["data"], ["data/a/z.jsonl", "data/b.jsonl"]),
        (["out"], ["out/in.jsonl"]),
        (["[ab].jsonl"], ["[ab].jsonl"]),
        (["user/name"], ["user/name/a.jsonl"]),
    ],
)
def test_names_patterns_and_folders_give_files_in_order(
    here: Path, sources: list[str], found: list[str]
) -> None:
    """In the order given, patterns by bytes, nothing hidden, no output, paths before patterns."""
    make(*FILES)
    (here / "data" / "README.md").write_text("not data")
    assert names(*sources, output="out/packed") == found


ANY_FORMAT = ".jsonl/.json/.csv/.tsv/.txt/.parquet/.arrow (plain, .gz or .zst) or token ids in"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gone.jsonl", "no such file: gone.jsonl"),
        ("gone-*.jsonl", "no file matches gone-*.jsonl"),
        ("dangling.jsonl", "dangling.jsonl is a link to nowhere, which does not exist"),
        ("empty.jsonl", "empty.jsonl is empty"),
        ("report.pdf", f"report.pdf has no known format; expected {ANY_FORMAT}"),
        ("folder", f"folder holds no file of a known format; expected {ANY_FORMAT}"),
        ("pipe.jsonl", "pipe.jsonl is not a regular file; to read a pipe use -"),
        ("-", "standard input is empty"),
        (os.fsdecode(b"\xff.jsonl"), "is not UTF-8"),
        ((), "no source is given"),
    ],
)
def test_what_cannot_be_a_source_is_said(
    here: Path, monkeypatch: pytest.MonkeyPatch, name: Any, words: str
) -> None:
    (here / "empty.jsonl").touch()
    (here / "report.pdf").write_text("%PDF")
    (here / os.fsdecode(b"\xff.jsonl")).write_text('{"text": "a"}')
    (here / "folder").mkdir()
    (here / "dangling.jsonl").symlink_to("nowhere")
    os.mkfifo(here / "pipe.jsonl")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    with refused(InputError, words):
        found_in(*([name] if name else []))


def test_standard_input_is_kept_in_the_scratch_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "a"}\n')))
    [source] = found_in("-")
    kept = Path("scratch/stdin.jsonl")
    assert (source.name, source.kind, source.path) == ("standard input", "json", kept)
    assert kept.read_bytes() == b'{"text": "a"}\n'


def test_what_only_some_datasets_have_is_refused_for_plain_files(here: Path) -> None:
    make("a.jsonl")
    with refused(InputError, "revision 'x' is for hub datasets, and no source is one"):
        found_in("a.jsonl", revision="x")
    with refused(InputError, "split 'x' is for hub and saved datasets, and no source is one"):
        found_in("a.jsonl", split="x")


def test_a_saved_dataset_is_one_source_whose_digest_is_of_its_rows_alone(here: Path) -> None:
    ROW.save_to_disk("saved")
    [source] = found_in("saved")
    assert (source.name, source.kind, source.path) == ("saved", "saved", Path("saved"))
    (here / "saved" / "cache-1234.arrow").write_bytes(b"what a map of the user's left there")
    assert found_in("saved") == found_in("saved", split="train") == [source]


def test_of_a_dataset_dict_one_split_is_chosen(here: Path) -> None:
    ROW.save_to_disk("saved")
    datasets.DatasetDict({"train": ROW}).save_to_disk("one")
    datasets.DatasetDict({"train": ROW, "test": ROW}).save_to_disk("two")
    assert found_in("one")[0].path == Path("one/train")
    assert found_in("two", split="test")[0].path == found_in("two/test")[0].path
    for name, split, words in [
        ("saved", "test", "saved is one dataset, of split train"),
        ("two", None, "two has several splits; name the folder of one: two/test, two/train"),
        ("two", "dev", "two has no split 'dev'; name the folder of one: two/test, two/train"),
    ]:
        with refused(InputError, words):
            found_in(name, split=split)


def test_a_saved_dataset_with_a_file_missing_is_named(here: Path) -> None:
    ROW.save_to_disk("saved")
    next(Path("saved").glob("data-*.arrow")).unlink()
    with refused(InputError, "saved is incomplete: saved/data-00000-of-00001.arrow"):
        found_in("saved")
    (here / "saved" / "state.json").write_text("{}")
    with refused(InputError, "saved/state.json lists no data files"):
        found_in("saved")


def test_any_other_name_is_asked_of_the_hub_with_name_split_and_revision(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []
    ROW.save_to_disk("cached")

    def load_dataset(path: str, name: str | None, *, split: str, revision: str | None) -> Any:
        asked.append((path, name, split, revision))
        if path == "user/none":
            raise FileNotFoundError("Dataset 'user/none' doesn't exist\non the Hub")
        return datasets.load_from_disk("cached")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr("packprep.support.hub._unreachable", lambda *_: "")
    part = {"name": "en", "split": "test[:9%]", "revision": "refs/pr/1"}
    for name, options in [("user/name", part), ("hub:user/name:en@refs/pr/1#test[:9%]", {})]:
        [source] = found_in(name, **options)
        assert (source.name, source.kind, source.path) == (name, "hub", None)
        assert asked.pop() == ("user/name", "en", "test[:9%]", "refs/pr/1")
        assert source.bytes > 0
        assert found_in("name")[0].sha256 == source.sha256
        assert asked.pop() == ("name", None, "train", None)
        [table] = rows_in(source, config(sources="user/name"), Path("scratch"))
        assert table["text"].to_pylist() == ["a"]
    with refused(InputError, "user/none is no local path", "'user/none' doesn't exist on the Hub"):
        found_in("user/none")


MEMBERS = st.tuples(st.binary(max_size=40), st.integers(0, 3), st.integers(0, 400_000))


@given(st.lists(MEMBERS, min_size=1, max_size=4), st.sampled_from([1, 100, 1 << 17]))
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
    path.write_bytes(packed + b"garbage" + bytes(9))
    with decompressed(path) as file, refused(OSError, f"Garbage at byte {len(packed)}"):
        file.read()


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("lost", [1, 100])
def test_compressed_data_that_ends_early_is_never_just_shorter(
    tmp_path: Path, suffix: str, lost: int
) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(PACK[suffix](os.urandom(100_000))[:-lost])
    with decompressed(path) as file, refused(OSError, "Truncated"):
        shutil.copyfileobj(file, io.BytesIO())


def files(folder: Path, *contents: bytes) -> list[Path]:
    paths = [folder / f"{number}.bin" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return paths


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_several_files_have_the_digest_of_their_digests(tmp_path: Path) -> None:
    paths = files(tmp_path, b"one", b"two")
    both = "\n".join([sha256(b"one"), sha256(b"two")]).encode()
    assert digest_of_files(paths) == together([sha256(b"one"), sha256(b"two")]) == sha256(both)


def test_the_first_error_in_order_is_raised_and_the_rest_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_BLOCK", 10)
    paths = files(tmp_path, b"good", b"", b"x" * 1_000_000)
    reached = threading.Event()

    def make(path: Path) -> str:
        if path == paths[1]:
            assert reached.wait(10)
            raise OSError("the second")
        if path == paths[2]:
            reached.set()
        return remembered_digest(path)

    with pytest.raises(OSError, match="the second"):
        hash_in_threads(make, paths, 0, at_once=3)
    # The next one is not given up.
    assert hash_in_threads(remembered_digest, paths[:1], 4) == [sha256(b"good")]


def test_a_digest_is_kept_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [path] = files(tmp_path, b"first")
    with remembered(tmp_path / "known.json"):
        remembered_digest(path)
    with remembered(tmp_path / "known.json"), monkeypatch.context() as patched:
        patched.setattr(digests, "digest_of_stream", lambda *_: pytest.fail("it was read again"))
        assert remembered_digest(path) == sha256(b"first")
    path.write_bytes(b"second")
    with remembered(tmp_path / "known.json"):
        assert remembered_digest(path) == sha256(b"second")
