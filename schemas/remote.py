"""Files at a URL of a store, through fsspec: s3://, gs://, az://, hf://, memory:// and others.

An object appears whole or not at all, and has its name for good. Fetched files are kept in a folder
of this machine, the cache, under their digests: each appears there whole, so that processes may
share it, and the least recently used are deleted. Endpoints and credentials come from the
environment.
"""

import contextlib
import os
import re
import stat
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .files import Files, FormatError, StoreError, check_path, digest_like

CACHE_SIZE = 1 << 36
"""Bytes of the cache, unless another size is named."""
RECENT = 10.0  # seconds
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs"}
_PACKAGES |= {"abfs": "adlfs", "abfss": "adlfs", "hf": "huggingface_hub"}
_SECRET = re.compile(r"(?<=://)[^\s/@]{0,2000}@")
_PARAMETERS = re.compile(r"(://[^\s?]{0,2000}\?)\S+")
_DENIED = re.compile("credential|forbidden|denied|auth|invalid_grant|access ?key|signature", re.I)
_MISSING = re.compile("ContainerNotFound|NoSuchBucket|(container|bucket) does not exist")
_fetching: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)


class RemoteFiles(Files):
    """The files under a URL; see `Files`. Every method may raise StoreError.

    drafts: folder in which files are written before `put`. cache_dir: folder for fetched files, by
    default in the cache of the user. cache_size: bytes that it may have, but for the files that
    are in use.
    """

    def __init__(
        self, url: str, drafts: Path | None = None, cache_dir: str | Path = "", cache_size: int = 0
    ) -> None:
        self.url = url.rstrip("/")
        super().__init__(drafts or self.url)
        if _SECRET.search(self.url):
            raise StoreError(
                f"{_hidden(self.url)} has credentials; put them into the environment, or the "
                "configuration of the store"
            )
        self._cache, self._size = cache_dir, cache_size or CACHE_SIZE
        self._sizes: dict[str, int] | None = None

    def __str__(self) -> str:
        return self.url

    def list(self) -> list[str]:
        self._sizes = None
        return sorted(self.sizes())

    def sizes(self) -> dict[str, int]:
        """Bytes of all objects by name, as they were at the last `list` and by this process."""
        if self._sizes is None:
            listing: dict[str, Any] = {}
            with asked(self.url), contextlib.suppress(FileNotFoundError):
                files, root = opened(self.url)
                listing.update(files.find(root, detail=True) or {})
            self._sizes = {
                path.removeprefix(root).strip("/"): int(facts["size"] or 0)
                for path, facts in listing.items()
                if facts["type"] == "file" and path != root
            }
        return self._sizes

    def size(self, name: str) -> int | None:
        return self.sizes().get(name)

    def has(self, name: str, size: int, digest: str = "") -> bool:
        if self.size(name) != size:
            self.list()  # another machine may have put it there since
        return self.size(name) == size

    def read(self, name: str) -> bytes:
        try:
            content: bytes = self.call("cat_file", name)
        except FileNotFoundError:
            raise FormatError(
                f"{self.url}/{name} is not there; expected the finished output of packprep"
            ) from None
        return content

    def local(self, name: str, digest: str = "") -> Path:
        if not self._cache:
            import platformdirs

            self._cache = platformdirs.user_cache_path("packprep", appauthor=False) / "fetched"
        folder = Path(self._cache)
        path = folder / (digest or f"{os.getpid()}/{check_path(name)}")
        if not digest:
            path.unlink(missing_ok=True)
        cached(f"{self.url}/{name}", path, folder, self._size, digest)
        return path

    def put(self, *names: str) -> None:
        for name in names:
            path = self.drafts / name
            with asked(f"{self.url}/{name}", writing=True):
                files, root = opened(self.url)
                files.put_file(str(path), f"{root}/{name}")
            self.sizes()[name] = path.stat().st_size
            path.unlink()

    def call(self, method: str, name: str, *values: Any, **options: Any) -> Any:
        """Call a method of the file system with the path of an object, and with values after it."""
        with asked(f"{self.url}/{name}", writing=bool(values)):
            files, root = opened(self.url)
            return getattr(files, method)(f"{root}/{name}", *values, **options)


def opened(url: str) -> tuple[Any, str]:
    """The file system of a URL, which fsspec makes once in a process, and the path in it."""
    from fsspec.core import url_to_fs

    files, path = url_to_fs(url, use_listings_cache=False)
    return files, str(path).rstrip("/")


def cached(url: str, path: Path, folder: Path, size: int, digest: str = "") -> bool:
    """Fetch a file unless it is there and may be read; True if it was fetched.

    folder: the cache, which may have `size` bytes.
    """
    with _fetching[path]:
        is_new = not path.exists() or not path.stat().st_mode & stat.S_IRUSR
        if is_new:
            fetch(url, path, digest)
            keep_within(folder, size)
        os.utime(path)
    return is_new


def fetch(url: str, path: Path, digest: str = "") -> None:
    """Fetch a file, which appears whole, or not at all if it has another digest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(".tmp", dir=path.parent)
    os.close(handle)
    try:
        with asked(url):
            files, place = opened(url)
            files.get_file(place, temporary)
        if digest and digest_like(digest, Path(temporary)) != digest:
            raise FormatError(f"{url} has another digest than when it was written; restore it")
        Path(temporary).replace(path)
    except FileNotFoundError:
        raise FormatError(f"{url} is missing; restore it or make it again") from None
    finally:
        Path(temporary).unlink(missing_ok=True)


def keep_within(folder: Path, size: int) -> None:
    """Delete the least recently used files of a folder beyond so many bytes.

    Not those of the last seconds, which somebody is about to open; what is open can still be read.
    """
    recent = time.time() - RECENT
    files = [(path.stat(), path) for path in folder.rglob("*") if path.is_file()]
    total = sum(facts.st_size for facts, _ in files)
    for facts, path in sorted(files, key=lambda each: each[0].st_mtime_ns):
        if total > size and facts.st_mtime < recent:
            path.unlink(missing_ok=True)
            total -= facts.st_size


@contextlib.contextmanager
def asked(url: str, *, writing: bool = False) -> Iterator[None]:
    """Turn what clients raise into a StoreError.

    A missing file stays a FileNotFoundError. writing: what is missing is the bucket.
    """
    try:
        yield
    except (StoreError, FormatError, FileExistsError):
        raise
    except FileNotFoundError:
        if not writing:
            raise
        raise StoreError(f"{_hidden(url)}: there is no such bucket; make it first") from None
    except ImportError as error:
        package = _PACKAGES.get(url.partition("://")[0], "the package that it names")
        needs = f"{_hidden(url)} needs a package that is not installed ({error})"
        raise StoreError(f"{needs}; run pip install {package}") from None
    except Exception as error:  # each client has its own kinds
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        said = " ".join(_hidden(f"{type(error).__name__}: {text}").split())[:200]
        cure = "run the command again"
        if isinstance(error, PermissionError) or _DENIED.search(said):
            cure = "check the credentials in the environment"
        elif isinstance(error, ValueError | NotImplementedError) or _MISSING.search(said):
            cure = "check the URL"
        again = cure.startswith("run")
        raise StoreError(f"{_hidden(url)}: the store says {said}; {cure}", again=again) from error


def _hidden(text: str) -> str:
    """Text without credentials: what is before the @ of an address, and its parameters."""
    return _PARAMETERS.sub(r"\1***", _SECRET.sub("***@", text))
