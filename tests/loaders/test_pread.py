"""Shards that are read into memory (mmap=False).

The same packs as mapped ones, within a limit; a file that changes is a sentence, not a signal.
"""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.loaders import PackedLoader, PackedShards
from packprep.schemas import FormatError, read_manifest
from packprep.schemas.storage import steady
from packprep.schemas.storage.read_cache import ReadCache
from packprep.schemas.storage.steady import SteadyFile, StreamIndex
from tests.helpers.tiny_shards import GOLDEN, row_of, write_output
from tests.helpers.zoo import NAMES, Zoo


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """40 packs in shards of 8, in record batches of 2."""
    rows = [row_of(n, 1 + n % 5, 1 + n % 3) for n in range(40)]
    shards = [rows[first : first + 8] for first in range(0, 40, 8)]
    write_output(tmp_path / "out", {"train": shards}, vocab_size=100)
    return tmp_path / "out"


def columns_of(shards: PackedShards) -> list[dict[str, tuple[Any, ...]]]:
    return [
        {
            name: (values.dtype, values.flags.writeable, values.tobytes())
            for name, values in pack.columns.items()
            if name != "position_ids"  # computed if it was not read
        }
        | {"positions": (pack.position_ids.astype(np.int32).tobytes(),)}
        for pack in shards
    ]


@pytest.mark.parametrize("name", ["v1-example", "v1-hf", "v1-rich", "v1-uint16", *NAMES])
def test_every_kind_of_output_is_read(name: str, zoo: Zoo) -> None:
    path = zoo[name] if name in NAMES else GOLDEN / name
    for split in read_manifest(path).splits:
        if name == "index":
            with pytest.raises(ValueError, match="is an index, whose packs are gathered from"):
                PackedShards(path, split=split, mmap=False)
            continue
        for epoch in {None, read_manifest(path).epochs - 1}:
            mapped = PackedShards(path, split=split, epoch=epoch)
            read = PackedShards(path, split=split, epoch=epoch, mmap=False)
            assert columns_of(pickle.loads(pickle.dumps(read))) == columns_of(mapped)
            assert read.fingerprint == mapped.fingerprint
            assert read.has_trees == (name == "trees")
    with pytest.raises(ValueError, match="shards at a URL are mapped from a local disk"):
        PackedShards("s3://bucket/out", mmap=False)


def test_a_saved_dataset_without_a_manifest_is_read(out: Path) -> None:
    (out / "manifest.json").unlink()
    file = PackedShards(out).files[2]
    os.truncate(file, file.stat().st_size - 8)  # without its end a stream is whole, too
    read, mapped = PackedShards(out, mmap=False), PackedShards(out)
    assert columns_of(read) == columns_of(mapped)
    assert (len(read), read.max_length, read.fingerprint) == (40, 8, mapped.fingerprint)


def test_memory_stays_within_the_cache_size_and_must_hold_two_windows(out: Path) -> None:
    size = 4 * max(file.stat().st_size for file in PackedShards(out).files)
    shards = PackedShards(out, mmap=False, cache_size=size)
    cache: Any = shards._cache
    kept = [cache.size for _ in PackedLoader(shards, 1, shuffle_window=2)]
    assert size // 4 < max(kept) <= size
    with pytest.raises(ValueError, match=r"two windows are kept: choose a smaller shuffle_window"):
        PackedLoader(shards, 1, shuffle_window=3)


def test_a_record_batch_is_read_once_in_an_epoch(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, reads = StreamIndex.read, list[tuple[Path, int]]()

    def counted(self: StreamIndex, file: SteadyFile, number: int, *what: Any) -> Any:
        reads.append((file.path, number))
        return read(self, file, number, *what)

    monkeypatch.setattr(StreamIndex, "read", counted)
    shards = PackedShards(out, mmap=False)
    assert len([*PackedLoader(shards, 2, shuffle_window=2)]) == 20
    assert len({*reads}) == len(reads) == 20


@pytest.mark.parametrize("mmap", [True, False])
def test_a_file_that_is_cut_under_the_reader_is_a_sentence(out: Path, mmap: bool) -> None:
    shards = PackedShards(out, mmap=mmap)
    loader = PackedLoader(shards, 2, prefetch=0)
    file = shards.files[3]
    size = file.stat().st_size
    os.truncate(file, size - 200)
    with pytest.raises(FormatError, match=rf"{file.name} has {size - 200} bytes; it had {size} "):
        list(loader)
    with pytest.raises(FormatError, match="leave outputs alone while they are read"):
        shards[3 * 8]


def cut(file: Path) -> None:
    os.truncate(file, 100)


def write_again(file: Path) -> None:
    later = file.stat().st_mtime_ns + 10**9
    file.write_bytes(file.read_bytes())
    os.utime(file, ns=(later, later))


def replace(file: Path) -> None:
    new = file.with_name("new")
    new.write_bytes(file.read_bytes())
    write_again(new)
    new.replace(file)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (cut, "has 100 bytes; it had"),
        (write_again, "was written or replaced after it was opened"),
        (replace, "was written or replaced after it was opened"),
    ],
)
def test_a_file_that_changes_between_two_reads_is_a_sentence(
    out: Path, change: Callable[[Path], None], words: str
) -> None:
    shards = PackedShards(out, mmap=False)
    assert shards[0].tokens.tolist() == [0, 1]
    change(shards.files[0])
    with pytest.raises(FormatError, match=f"{shards.files[0].name} {words}"):
        shards[7]
    assert shards[0].tokens.tolist() == [0, 1]  # in memory


def test_a_file_that_is_deleted_stays_readable_while_it_is_open(out: Path) -> None:
    expected, shards = columns_of(PackedShards(out)), PackedShards(out, mmap=False)
    shards[0]
    for file in shards.files:
        file.unlink()
    assert shards[7].tokens.tobytes() == expected[7]["tokens"][2]
    with pytest.raises(FormatError, match=r"cannot be read: No such file or directory; check"):
        shards[8]


def test_an_error_of_the_file_system_is_a_sentence(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = PackedShards(out, mmap=False)

    def fail(*_: Any) -> int:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(steady, "pread_into", fail)
    with pytest.raises(FormatError, match=r"arrow cannot be read: Stale file handle; check the"):
        shards[0]
    with pytest.raises(FormatError, match="Stale file handle"):
        list(PackedLoader(shards, 2))


def test_files_are_closed_when_their_packs_are_dropped(out: Path) -> None:
    def handles() -> int:
        links = [*Path("/proc/self/fd").iterdir()]  # one is the folder itself, closed by now
        return sum(str(out) in str(link.readlink()) for link in links if link.is_symlink())

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    shards = PackedShards(out, mmap=False, cache_size=1)
    assert handles() == 0
    assert [len(pack.tokens) > 0 and handles() for pack in shards] == [1] * 40


def test_a_file_that_is_being_closed_is_not_read_by_another_thread(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last packs of a shard are dropped, and another thread wants packs of it right then."""
    close, wanted, late = os.close, dict[int, Any](), list[Any]()

    def close_while_another_reads(handle: int) -> None:
        if (shard := wanted.pop(handle, None)) is not None:
            late.append(shard._open())
        close(handle)

    monkeypatch.setattr(os, "close", close_while_another_reads)
    shards = PackedShards(out, mmap=False, cache_size=1)
    expected, shard = shards[0].tokens.tolist(), shards._shards[0].stored
    wanted[shard._open()._handle] = shard  # type: ignore[attr-defined]
    shards[8]  # another shard: nothing of the first is kept
    [file] = late
    assert len(file.read(0, 8)) == 8
    file.check()
    assert shards[0].tokens.tolist() == expected


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 6), st.data())
def test_a_cache_gives_what_is_read_and_keeps_no_more_than_its_limit(
    keys: list[int], limit: int, data: st.DataObject
) -> None:
    cache = ReadCache[int, int](lambda key: (key * key, 1), limit)
    for key in keys:
        if data.draw(st.booleans()):
            cache.request(data.draw(st.lists(st.integers(0, 9), max_size=6)))
        assert cache.get(key) == key * key
        assert cache.size <= limit
