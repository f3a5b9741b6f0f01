import hashlib
import threading
from pathlib import Path

import pytest

from packprep.sources import digests
from packprep.sources.digests import (
    digest_of_files,
    hash_in_threads,
    remembered,
    remembered_digest,
    reporting_to,
    together,
)
from tests.helpers.corpus import RecordedProgress


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


def test_what_is_made_in_threads_comes_in_order_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counted(RecordedProgress):
        last: tuple[float, float | None] = (0, 0)

        def wait(self, phase: str) -> None:
            pass

        def advance(self, stage: str, done: float, total: float | None, unit: str) -> None:
            assert (stage, unit) == ("hash", "MB")
            self.last = max(self.last, (done, total))

    paths = files(tmp_path, *(bytes([number]) * 1000 for number in range(20)))
    counted = Counted()
    monkeypatch.setattr(digests, "_BLOCK", 7)
    with reporting_to(counted):
        made = hash_in_threads(remembered_digest, paths, 20_000)
    assert made == [sha256(path.read_bytes()) for path in paths]
    assert counted.last == (0.02, 0.02)


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
