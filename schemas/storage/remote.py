"""An output on S3 or any other store that fsspec opens, read through a local cache of whole shards.

A shard is fetched when it is first needed, under a temporary name; its digest is checked on the
way, and then it is mapped like any local file. Where the cache has a size, the shards used longest
ago make room. Processes of a machine may share a cache: each shard appears in it whole or not at
all. Costs the disk, and no memory.
"""

import hashlib
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from packprep.schemas.canonical import file_size
from packprep.schemas.errors import FormatError
from packprep.schemas.files import MANIFEST, check_path
from packprep.schemas.manifest import FileEntry, Manifest, parse_manifest

from .stores import Store

_BLOCK = 8 << 20


class RemoteOutput:
    """The files of an output at a URL.

    path: its manifest is read at once, any other file when it is asked for.

    cache_dir: where they are kept, in a folder of their own for each output; default: packprep in
    the user's cache. cache_size: bytes of shards kept there, at least one; default: no limit.
    evicted: hears which file made room.
    """

    def __init__(
        self,
        url: str,
        cache_dir: str | Path | None = None,
        cache_size: int | None = None,
        evicted: Callable[[str], None] = lambda path: None,
    ) -> None:
        self.store, self._size, self._evicted = Store(url), cache_size, evicted
        self.url = self.store.url
        self.manifest = self._manifest()
        home = Path(cache_dir) if cache_dir is not None else _user_cache()
        self.directory = home / self.manifest.sha256[:16]
        self._kept: OrderedDict[str, int] = (
            OrderedDict()
        )  # shards in the order of their last use, with their bytes
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def _manifest(self) -> Manifest:
        where = f"{self.url}/{MANIFEST}"
        try:
            return parse_manifest(self.store.read(MANIFEST), where)
        except FileNotFoundError:
            raise FormatError(
                f"{where} does not exist; expected the output of a finished packprep build"
            ) from None

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    def fetch(self, entry: FileEntry) -> Path:
        """The file in the cache, fetched if need be.

        FormatError if it is missing or not what the manifest says.
        """
        path = self.directory / check_path(entry.path, f"{self.url}/{MANIFEST}")
        with self._lock:
            lock = self._locks.setdefault(entry.path, threading.Lock())
        with lock:
            # What is in the cache was checked when it came.
            if file_size(path) != entry.bytes:
                self._download(entry, path)
            self._use(entry)
        return path

    def map(self, entry: FileEntry) -> pa.MemoryMappedFile:
        """The file, mapped.

        It stays readable when another thread or process drops it from the cache.
        """
        while True:
            path = self.fetch(entry)
            with suppress(FileNotFoundError):  # it made room for another before it was opened
                return pa.memory_map(str(path))

    def file(self, name: str) -> Path:
        """The same of a file by its name. FormatError where the manifest does not list it."""
        for entry in self.manifest.all_files:
            if entry.path == name:
                return self.fetch(entry)
        raise FormatError(
            f"{self.url}/{MANIFEST} does not list {name}; expected the output of a packprep build"
        )

    def surplus(self) -> list[str]:
        """Names of files at the URL that the manifest does not list."""
        listed = {MANIFEST, *(entry.path for entry in self.manifest.all_files)}
        return [name for name in self.store.list() if name not in listed]

    def _download(self, entry: FileEntry, path: Path) -> None:
        where = f"{self.url}/{entry.path}"
        path.parent.mkdir(parents=True, exist_ok=True)
        digest, size = hashlib.sha256(), 0
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file, self.store.open(entry.path) as remote:
                while block := remote.read(_BLOCK):
                    digest.update(block)
                    size += file.write(block)
            if (size, digest.hexdigest()) != (entry.bytes, entry.sha256):
                raise FormatError(
                    f"{where} has {size} bytes of sha256 {digest.hexdigest()}; expected "
                    f"{entry.bytes} of {entry.sha256}"
                )
            Path(temporary).replace(path)
        except FileNotFoundError:
            raise FormatError(
                f"{where} is missing; the manifest lists it with {entry.bytes} bytes"
            ) from None
        finally:
            Path(temporary).unlink(missing_ok=True)

    def _use(self, entry: FileEntry) -> None:
        """Note the use of a shard and drop those used longest ago.

        But never the one just asked for.
        """
        if not entry.is_shard:
            return
        with self._lock:
            self._kept[entry.path] = entry.bytes
            self._kept.move_to_end(entry.path)
            while (
                self._size is not None
                and sum(self._kept.values()) > self._size
                and len(self._kept) > 1
            ):
                name, _ = self._kept.popitem(last=False)
                (self.directory / name).unlink(missing_ok=True)
                self._evicted(name)


def _user_cache() -> Path:
    import platformdirs  # only where no folder is named

    return platformdirs.user_cache_path("packprep", appauthor=False)
