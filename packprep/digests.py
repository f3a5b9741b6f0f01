"""Digests of sources, which decide what a build is: read once, and kept where reading them again would be dear."""

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from packprep.schemas import canonical_json, write_file

_BLOCK = 8 << 20  # hashed at once: with smaller ones the thread mostly waits for its turn beside one that imports
_WRITTEN_EVERY = 10.0  # seconds


class _Known:
    """Digests that are kept in a file."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock, self._written = path, threading.Lock(), time.monotonic()
        try:
            self.digests = {str(key): str(digest) for key, digest in json.loads(path.read_bytes()).items()}
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


_known: _Known | None = None  # digests by path, size and time of change; None: they are not kept


@contextmanager
def remembered(path: Path) -> Iterator[None]:
    """Keep digests of files in `path`, so that they are not read for that by every process, or again after a kill.

    A file counts as the same while its size and its time of change, or its version in a store, are.
    """
    global _known
    _known = _Known(path)
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


def file_digest(path: Path) -> str:
    """sha256 of a file."""
    facts = path.stat()
    key = f"{path} {facts.st_size} {facts.st_mtime_ns}"
    if (known := known_digest(key)) is not None:
        return known
    digest, block = hashlib.sha256(), bytearray(min(_BLOCK, facts.st_size))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(block):
            digest.update(memoryview(block)[:size])
    remember(key, digest.hexdigest())
    return digest.hexdigest()


def digest_of_files(files: Sequence[Path]) -> str:
    """Digest of one file, or of the digests of several."""
    return together([file_digest(path) for path in files])


def together(digests: Sequence[str]) -> str:
    """The same of digests."""
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()
