"""An output on S3 or another store that fsspec opens, read through a local cache of whole shards.

A shard is fetched when it is first needed, under a temporary name. Its digest is checked during the
download; then it is mapped like any local file. If the cache has a size limit, the least recently
used shards are deleted. Several processes of a machine may share a cache: each shard appears in it
whole or not at all. The cache uses disk space but no memory.
"""

import hashlib
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path

from packprep.schemas.canonical import file_size
from packprep.schemas.errors import FormatError
from packprep.schemas.files import MANIFEST, check_path
from packprep.schemas.manifest import FileEntry, Manifest, parse_manifest

from .batches import MappedBatches, map_file
from .stores import Store

_BLOCK = 8 << 20


class RemoteOutput:
    """The files of an output at a URL.

    The manifest is read at once, any other file on demand. cache_dir: holds a folder for each
    output; default: packprep in the user's cache. cache_size: most bytes of shards in the cache,
    which keeps at least one shard; default: no limit. evicted: called with the path of each shard
    that was deleted from the cache.
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
        self._listed = {entry.path: entry for entry in self.manifest.all_files}
        home = Path(cache_dir) if cache_dir is not None else _user_cache()
        self.directory = home / self.manifest.sha256[:16]
        # Bytes of each shard, in order of last use.
        self._cached: OrderedDict[str, int] = OrderedDict()
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def _manifest(self) -> Manifest:
        where = f"{self.url}/{MANIFEST}"
        try:
            return parse_manifest(self.store.read(MANIFEST), where)
        except FileNotFoundError:
            raise FormatError(
                f"{where} does not exist; expected the finished output of packprep build"
            ) from None

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    def fetch(self, entry: FileEntry) -> Path:
        """Path of the file in the cache, fetched if necessary.

        Raises FormatError if it is missing or differs from the manifest.
        """
        path = self.directory / check_path(entry.path, f"{self.url}/{MANIFEST}")
        with self._lock:
            lock = self._locks.setdefault(entry.path, threading.Lock())
        with lock:
            # Files in the cache were checked when they were fetched.
            if file_size(path) != entry.bytes:
                self._download(entry, path)
            self._use(entry)
        return path

    def batches(self, name: str) -> MappedBatches:
        """The record batches of a shard, which is fetched when they are first needed."""
        return MappedBatches(self.directory / name, partial(map_file, self, self._listed[name]))

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
        """Record the use of a shard, and delete the least recently used others."""
        if not entry.path.endswith(".arrow"):
            return
        with self._lock:
            self._cached[entry.path] = entry.bytes
            self._cached.move_to_end(entry.path)
            while (
                self._size is not None
                and sum(self._cached.values()) > self._size
                and len(self._cached) > 1
            ):
                name, _ = self._cached.popitem(last=False)
                (self.directory / name).unlink(missing_ok=True)
                self._evicted(name)


def _user_cache() -> Path:
    import platformdirs  # needed only without a cache_dir

    return platformdirs.user_cache_path("packprep", appauthor=False)
