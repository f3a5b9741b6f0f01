"""Folder of a build's shards under their working names, in the staging directory or in a store.

A shard appears when it is complete. Its receipt (`shard_writer.ShardFile`) is written afterwards
and proves that the shard has not changed: by its version, which is one request, or, on disk, by its
digest, which means reading the shard.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from typing import Any

from packprep.output.staging import NAMES
from packprep.schemas.canonical import parse_json
from packprep.schemas.storage.places import Files, digest_at
from packprep.schemas.storage.stores import Stored
from packprep.support.linux import begin_to_store, reserve

_FLUSHED = 32 << 20  # bytes after which the system is asked to write them to disk


class ShardFolder:
    """A folder that shards are written to; in a store they are uploaded meanwhile."""

    def __init__(self, files: Files) -> None:
        self.files = files

    @property
    def on_disk(self) -> bool:
        """True if shards take room on a disk of this machine, and are renamed there."""
        return self.files.directory is not None

    @contextmanager
    def writing(self, name: str, size: int = 0) -> Iterator[Any]:
        """Open a file that gets its name, and is on disk, when the block ends.

        size: lower bound of its bytes.
        """
        with self.files.writing(name) as file:
            yield _EarlyFlushed(file, size) if self.on_disk else file

    def version(self, name: str) -> str:
        """Version of a shard, which its receipt keeps beside the digest; "" if there are none."""
        stored = self.files.find(name)
        return stored.version if stored is not None else ""

    def intact(self, name: str, size: int, sha256: str, version: str) -> bool:
        """True if a shard exists and matches its receipt. Without a version it is read."""
        if version:
            expected = Stored(size, version)
            return self._listed.get(name) == expected or self.files.find(name) == expected
        stored = self.files.find(name)
        found = stored is not None and stored.bytes == size
        return found and digest_at(self.files, name) == sha256

    @cached_property
    def _listed(self) -> dict[str, Stored]:
        """Files at the first request, in one listing: a resumed build asks for thousands."""
        return self.files.list()

    def open_named(self, staging: Path, path: str) -> BufferedReader:
        """A shard as a file to read, after `name_shards` has named it. path: its final one."""
        if self.on_disk:
            return (staging / path).open("rb")
        moves = parse_json((staging / NAMES).read_bytes())
        working = next(name for name, final in moves.items() if final == path)
        return self.files.open(Path(working).name)


def link_file(source: Path, path: Path) -> None:
    """Link a file, or copy it on another disk or a file system without links."""
    try:
        os.link(source, path)
    except OSError:
        shutil.copyfile(source, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())


class _EarlyFlushed:
    """A file that the system writes to disk while it grows, so that the final sync is short.

    size: lower bound of its bytes, which are preallocated.
    """

    def __init__(self, file: Any, size: int) -> None:
        self._file = file
        self._bytes = self._flushed = 0  # bytes written, and bytes of these sent to disk
        reserve(file.fileno(), size)

    def write(self, data: Any) -> int:
        written = int(self._file.write(data))
        self._bytes += written
        if self._bytes - self._flushed >= _FLUSHED:
            self._file.flush()
            begin_to_store(self._file.fileno(), self._flushed, self._bytes)
            self._flushed = self._bytes
        return written
