"""Digests of sources, part of the identity of a build.

Each file is read once, several at a time, at 1.5 to 2 GB/s per core. Digests are kept, so that a
file is not read again for its digest. Hashing stops within a block of bytes at Ctrl-C.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from packprep.schemas.canonical import canonical_json, parse_json
from packprep.schemas.storage.writing import write_file
from packprep.sources.source import file_state
from packprep.support.limits import usable_cores
from packprep.support.progress import Progress

# Hashed at once: with smaller blocks the thread mostly waits for the GIL while another one imports.
_BLOCK = 8 << 20
_WRITTEN_EVERY = 10.0  # seconds
_AT_ONCE = 8  # files, unless there are fewer cores
_File = TypeVar("_File")
_Result = TypeVar("_Result")


class _Hashed:
    """Count of bytes hashed and of all bytes known so far, reported to the current progress."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress, self._lock = progress, threading.Lock()
        self._done = self._total = 0

    def expect(self, size: int) -> None:
        self._total += size

    def add(self, size: int) -> None:
        with self._lock:
            self._done += size
            if self._progress is not None:
                self._progress.advance(
                    "hash", self._done / 1e6, max(self._total, self._done) / 1e6, "MB"
                )


_hashed = _Hashed(None)
_stop = threading.Event()


@contextmanager
def reporting_to(progress: Progress) -> Iterator[None]:
    """Report hashing to `progress`."""
    global _hashed
    _hashed = _Hashed(progress)
    try:
        yield
    finally:
        _hashed = _Hashed(None)


def hash_in_threads(
    make: Callable[[_File], _Result], files: Sequence[_File], size: int, at_once: int | None = None
) -> list[_Result]:
    """Results of make(file), which hashes a file, in order; raises the first error in that order.

    size: bytes of all files. at_once: files at a time; default: the number of cores, at most eight.
    """
    _hashed.expect(size)
    try:
        with ThreadPoolExecutor(at_once or min(_AT_ONCE, usable_cores().value)) as pool:
            try:
                return list(pool.map(make, files))
            except BaseException:
                _stop.set()  # or leaving the pool waits until all started files are read
                raise
    finally:
        _stop.clear()


class _Known:
    """Digests that are kept in a file."""

    def __init__(self, path: Path, local: bool) -> None:
        self.local = local
        self._path, self._lock, self._written = path, threading.Lock(), time.monotonic()
        try:
            self.digests = {
                str(key): str(digest) for key, digest in parse_json(path.read_bytes()).items()
            }
        except (OSError, ValueError, AttributeError):
            self.digests = {}
        self._kept = len(self.digests)

    def put(self, key: str, digest: str) -> None:
        with self._lock:
            self.digests[key] = digest
            late = time.monotonic() - self._written > _WRITTEN_EVERY
        if late:
            self.write()

    def write(self) -> None:
        with self._lock:
            self._written = time.monotonic()
            if len(self.digests) > self._kept and self._path.parent.is_dir():
                self._kept = len(self.digests)
                write_file(self._path, canonical_json(self.digests))


_known: _Known | None = None  # by state or version of a file; None: digests are not kept


@contextmanager
def remembered(path: Path, *, local: bool = True) -> Iterator[None]:
    """Keep digests of files in `path`, for other processes and for a resumed build.

    A file is the same while its `FileState`, or its version in a store, is. local: False keeps only
    digests of objects in a store, which are slow to read again.
    """
    global _known
    _known = _Known(path, local)
    try:
        yield
    finally:
        _known.write()
        _known = None


def known_digest(key: str) -> str | None:
    return _known.digests.get(key) if _known is not None else None


def remember(key: str, digest: str) -> None:
    if _known is not None:
        _known.put(key, digest)


def remembered_digest(path: Path) -> str:
    """sha256 of a file."""
    state, kept = file_state(path), _known is not None and _known.local
    key = " ".join(map(str, state))
    if kept and (known := known_digest(key)) is not None:
        return known
    with path.open("rb", buffering=0) as file:
        digest = digest_of_stream(file, state.bytes)
    if kept and state.change() is None:
        remember(key, digest)
    return digest


def digest_of_stream(file: Any, size: int) -> str:
    """sha256 of the rest of a file. size: its bytes, about."""
    digest, block = hashlib.sha256(), bytearray(max(min(_BLOCK, size), 1))
    while read := file.readinto(block):
        digest.update(memoryview(block)[:read])
        _hashed.add(read)
        if _stop.is_set():
            raise CancelledError
    return digest.hexdigest()


def digest_of_files(files: Sequence[Path]) -> str:
    """Digest of one file, or of the digests of several."""
    return together([remembered_digest(path) for path in files])


def together(digests: Sequence[str]) -> str:
    """The digest of one file, or a digest of the digests of several."""
    return (
        digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()
    )
