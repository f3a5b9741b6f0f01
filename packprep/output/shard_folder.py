"""Folder of a build's shards under their working names, in the staging directory or in a store.

A shard appears when it is complete. Its receipt (`shard_writer.ShardFile`) is written afterwards
and proves that the shard has not changed: on disk by its digest, which means reading the shard, and
in a store by its version, which is one request.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from typing import Any, Protocol

from packprep.schemas.canonical import same_file
from packprep.schemas.storage.stores import Store, Stored
from packprep.schemas.storage.writing import temporary_name
from packprep.support.linux import begin_to_store, reserve

_FLUSHED = 32 << 20  # bytes after which the system is asked to write them to disk


class ShardFolder(Protocol):
    """A folder that shards are written to."""

    def writing(self, name: str, size: int = 0) -> AbstractContextManager[Any]:
        """Open a file that gets its name, and is on disk, when the block ends.

        size: lower bound of its bytes.
        """

    def version(self, name: str) -> str:
        """Version of a shard, which its receipt keeps beside the digest; "" if there are none."""

    def intact(self, name: str, size: int, sha256: str, version: str) -> bool:
        """True if a shard exists and matches its receipt."""


def link_file(source: Path, path: Path) -> None:
    """Link a file, or copy it on another disk or a file system without links."""
    try:
        os.link(source, path)
    except OSError:
        shutil.copyfile(source, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())


class LocalShards:
    """Shards in a directory, which is created with the first shard."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @contextmanager
    def writing(self, name: str, size: int = 0) -> Iterator[Any]:
        """See `ShardFolder.writing`."""
        path = self.directory / name
        self.directory.mkdir(exist_ok=True)
        temporary = temporary_name(path)
        with temporary.open("wb") as file:
            reserve(file.fileno(), size)
            yield _EarlyFlushed(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def version(self, name: str) -> str:
        """See `ShardFolder.version`: a directory has no versions."""
        return ""

    def intact(self, name: str, size: int, sha256: str, version: str) -> bool:
        """See `ShardFolder.intact`: reads the shard."""
        return same_file(self.directory / name, size, sha256)


class _EarlyFlushed:
    """A file that the system writes to disk while it grows, so that the final sync is short."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._bytes = self._flushed = 0  # bytes written, and bytes of these sent to disk

    def write(self, data: Any) -> int:
        written = int(self._file.write(data))
        self._bytes += written
        if self._bytes - self._flushed >= _FLUSHED:
            self._file.flush()
            begin_to_store(self._file.fileno(), self._flushed, self._bytes)
            self._flushed = self._bytes
        return written


class StoreShards:
    """Shards in a folder of a store, uploaded while they are written: no copy stays here."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @contextmanager
    def writing(self, name: str, size: int = 0) -> Iterator[Any]:
        """See `ShardFolder.writing`."""
        with self._store.writing(name) as upload:
            yield upload

    def open(self, name: str) -> BufferedReader:
        """A shard as a file to read."""
        return self._store.open(name)

    def has(self, name: str, size: int) -> bool:
        """True if there is a file of this name and size."""
        stored = self._store.find(name)
        return stored is not None and stored.bytes == size

    def version(self, name: str) -> str:
        stored = self._store.find(name)
        return stored.version if stored is not None else ""

    def intact(self, name: str, size: int, sha256: str, version: str) -> bool:
        """See `ShardFolder.intact`: compares size and version, reads nothing.

        So it is False in a store without versions.
        """
        expected = Stored(size, version)
        return version != "" and (
            self._listed.get(name) == expected or self._store.find(name) == expected
        )

    @cached_property
    def _listed(self) -> dict[str, Stored]:
        """Files at the first request, in one listing: a resumed build asks for thousands."""
        return self._store.list()
