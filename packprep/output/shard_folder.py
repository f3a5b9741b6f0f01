"""The folder of a build's shards under their working names.

It is in the staging directory, or in a store.

Either way a shard appears when it is whole, and its receipt (`shard_writer.ShardFile`), written
afterwards, says how to see that it is still the same: by its digest, read at the speed of a disk,
or by its version, which is one request.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from packprep.schemas.canonical import same_file
from packprep.schemas.storage.stores import Store, Stored
from packprep.schemas.storage.writing import temporary_name
from packprep.support.linux import begin_to_store, reserve

_FLUSHED = 32 << 20  # bytes after which the disk begins to write them


class ShardFolder(Protocol):
    """A folder that shards are written to."""

    def writing(self, name: str, size: int = 0) -> AbstractContextManager[Any]:
        """A file that has its name, and is on disk, when the block ends.

        size: bytes it will have at least.
        """
        ...

    def version(self, name: str) -> str:
        """The version of a shard that its receipt holds beside its digest; "" without versions."""
        ...

    def intact(self, name: str, size: int, sha256: str, version: str) -> bool:
        """True if a shard is there and matches its receipt."""
        ...


class LocalShards:
    """Shards in a directory, which is made when the first is written."""

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
            yield _WrittenSoon(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def version(self, name: str) -> str:
        """See `ShardFolder.version`: a directory has none."""
        return ""

    def intact(self, name: str, size: int, sha256: str, version: str) -> bool:
        """See `ShardFolder.intact`: reads the shard."""
        return same_file(self.directory / name, size, sha256)


class _WrittenSoon:
    """A file that the disk begins to write while it is made.

    The sync at the end then has little to wait for.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._bytes = self._on_its_way = 0  # written, and of these begun to be written to disk

    def write(self, data: Any) -> int:
        written = int(self._file.write(data))
        self._bytes += written
        if self._bytes - self._on_its_way >= _FLUSHED:
            self._file.flush()
            begin_to_store(self._file.fileno(), self._on_its_way, self._bytes)
            self._on_its_way = self._bytes
        return written


class StoreShards:
    """Shards in a folder of a store.

    Sent while they are written, so that no copy of them is ever here.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @contextmanager
    def writing(self, name: str, size: int = 0) -> Iterator[Any]:
        """See `ShardFolder.writing`."""
        with self._store.writing(name) as upload:
            yield upload

    def version(self, name: str) -> str:
        stored = self._store.find(name)
        return stored.version if stored is not None else ""

    def intact(self, name: str, size: int, sha256: str, version: str) -> bool:
        """See `LocalShards.intact`: asks for size and version, reads nothing.

        So never in a store without versions.
        """
        expected = Stored(size, version)
        return version != "" and (
            self._there.get(name) == expected or self._store.find(name) == expected
        )

    @cached_property
    def _there(self) -> dict[str, Stored]:
        """Files that were there at first: a resumed build asks for thousands."""
        return self._store.list()
