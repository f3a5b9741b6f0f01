"""An output on S3 or any other store that fsspec opens, read through a local cache of whole shards.

A shard is fetched when it is first needed, under a temporary name; its digest is checked on the way, and then it is
mapped like any local file. Where the cache has a size, the shards used longest ago make room. Processes of a machine
may share a cache: each shard appears in it whole or not at all. Costs the disk, and no memory.
"""

import hashlib
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from packprep.schemas import MANIFEST, FileEntry, FormatError, Manifest, check_path, parse_manifest

_BLOCK = 8 << 20


def is_url(path: str | Path) -> bool:
    """Whether this names a file of a store, such as s3://bucket/packed, and not of this machine."""
    return isinstance(path, str) and "://" in path


class RemoteOutput:
    """The files of an output at a URL. path: its manifest is read at once, any other file when it is asked for.

    cache_dir: where they are kept, in a folder of their own for each output; default: packprep in the user's cache.
    cache_size: bytes of shards kept there, at least one; default: no limit. evicted: hears which file made room.
    """

    def __init__(
        self, url: str, cache_dir: str | Path | None = None, cache_size: int | None = None,
        evicted: Callable[[str], None] = lambda path: None,
    ) -> None:  # fmt: skip
        self.url, self._size, self._evicted = url.rstrip("/"), cache_size, evicted
        self._fs, self._root = _open(self.url)
        self.manifest = self._manifest()
        home = Path(cache_dir) if cache_dir is not None else _user_cache()
        self.directory = home / self.manifest.sha256[:16]
        self._kept: OrderedDict[str, int] = OrderedDict()  # shards in the order of their last use, with their bytes
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def _manifest(self) -> Manifest:
        where = f"{self.url}/{MANIFEST}"
        try:
            return parse_manifest(self._fs.cat_file(f"{self._root}/{MANIFEST}"), where)
        except FileNotFoundError:
            raise FormatError(f"{where} does not exist; expected the output of a finished packprep build") from None

    def fetch(self, entry: FileEntry) -> Path:
        """The file in the cache, fetched if need be. FormatError if it is missing or not what the manifest says."""
        path = self.directory / check_path(entry.path, f"{self.url}/{MANIFEST}")
        with self._lock:
            lock = self._locks.setdefault(entry.path, threading.Lock())
        with lock:
            # What is in the cache was checked when it came.
            if not (path.exists() and path.stat().st_size == entry.bytes):
                self._download(entry, path)
            self._use(entry)
        return path

    def surplus(self) -> list[str]:
        """Names of files at the URL that the manifest does not list."""
        listed = {MANIFEST, *(entry.path for entry in self.manifest.all_files)}
        found = (str(name).removeprefix(self._root).lstrip("/") for name in self._fs.find(self._root))
        return sorted(name for name in found if name not in listed)

    def _download(self, entry: FileEntry, path: Path) -> None:
        where = f"{self.url}/{entry.path}"
        path.parent.mkdir(parents=True, exist_ok=True)
        digest, size = hashlib.sha256(), 0
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file, self._fs.open(f"{self._root}/{entry.path}", "rb") as remote:
                while block := remote.read(_BLOCK):
                    digest.update(block)
                    size += file.write(block)
            if (size, digest.hexdigest()) != (entry.bytes, entry.sha256):
                raise FormatError(
                    f"{where} has {size} bytes of sha256 {digest.hexdigest()}; expected {entry.bytes} of {entry.sha256}"
                )
            Path(temporary).replace(path)
        except FileNotFoundError:
            raise FormatError(f"{where} is missing; the manifest lists it with {entry.bytes} bytes") from None
        finally:
            Path(temporary).unlink(missing_ok=True)

    def _use(self, entry: FileEntry) -> None:
        """Note the use of a shard and drop those used longest ago, but never the one just asked for."""
        with self._lock:
            self._kept[entry.path] = entry.bytes
            self._kept.move_to_end(entry.path)
            while self._size is not None and sum(self._kept.values()) > self._size and len(self._kept) > 1:
                name, _ = self._kept.popitem(last=False)
                (self.directory / name).unlink(missing_ok=True)
                self._evicted(name)


def _open(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it."""
    try:
        from fsspec.core import url_to_fs

        fs, root = url_to_fs(url)
    except ImportError as error:
        raise ImportError(
            f"{url} needs a package that is not installed: {error}; try pip install packprep[s3]"
        ) from None
    return fs, str(root).rstrip("/")


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "packprep"
