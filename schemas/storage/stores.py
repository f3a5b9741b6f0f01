"""A folder of S3, or of another store that fsspec opens, by its URL.

Objects are written whole, never renamed and never appended to. An object appears under its name
when it is complete, so reading is safe at any time. A store has no rename; `create`, which writes
an object only where there is none, takes its place. Each call costs a request. Endpoint and
credentials come from the environment (AWS_ENDPOINT_URL, AWS_PROFILE, ... or their files).
"""

import contextlib
import errno
import io
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from .store_errors import StoreError, error_text, http_status, no_bucket, store_errors

_PART = 16 << 20  # bytes per request; S3 allows 10,000 requests for an object
_CONFLICTS = 10  # tries
_EXTRAS = {"s3": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure"}
_POLL = 0.2  # seconds between questions for the state of a copy


# Names of the version of an object in different stores; the first is that of S3.
_VERSIONS = (
    "ETag",
    "etag",
    "md5Hash",
    "content_md5",
    "generation",
    "blob_id",
    "xet_hash",
    "LastModified",
    "last_modified",
    "mtime",
    "created",
)


class Stored(NamedTuple):
    """A file, or an object of a store.

    version: changes with the bytes, such as an ETag in S3; "" for files and where a store has none.
    """

    bytes: int
    version: str = ""

    @staticmethod
    def listed(facts: Mapping[str, object]) -> "Stored | None":
        """The object of an entry in a listing; None for a folder."""
        if facts.get("type") != "file":
            return None
        version = next((str(facts[name]) for name in _VERSIONS if facts.get(name)), "")
        size = facts["size"]
        return Stored(size if isinstance(size, int) else 0, version.strip('"'))


def is_url(path: str | Path) -> bool:
    """True if this names a file of a store, such as s3://bucket/packed.

    False for one of this machine.
    """
    return isinstance(path, str) and "://" in path


class Store:
    """The objects under a URL, by their names relative to it; see `places.Files`.

    Every method may raise StoreError.
    """

    directory: Path | None = None

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._open()

    def _open(self) -> None:
        self._files, self._root = _opened(self.url)
        self._process = os.getpid()

    @property
    def _fs(self) -> Any:
        """The client; a forked process, such as a worker of a DataLoader, makes a new one."""
        if self._process != os.getpid():
            self._open()
        return self._files

    def under(self, name: str) -> "Store":
        """The store of a folder of this one."""
        return Store(f"{self.url}/{name}")

    def where(self, name: str) -> str:
        """The URL of an object."""
        return f"{self.url}/{name}" if name else self.url

    def find(self, name: str) -> Stored | None:
        """The object under a name; None if there is none."""
        with self._errors(name):
            try:
                return Stored.listed(self._fs.info(self._path(name)))
            except FileNotFoundError as error:
                if no_bucket(error):
                    raise
                return None

    def holds(self, name: str, stored: Stored) -> bool:
        """See `places.Files.holds`; an object of the first listing needs no request."""
        return self._listed.get(name) == stored or self.find(name) == stored

    @cached_property
    def _listed(self) -> dict[str, Stored]:
        return self.list()

    def list(self, folder: str = "") -> dict[str, Stored]:
        """Every object in a folder and its subfolders, by name, sorted by bytes.

        Each request returns a thousand objects.
        """
        with self._errors(folder):
            try:
                listing = self._fs.find(self._path(folder), detail=True)
            except FileNotFoundError as error:
                if no_bucket(error):
                    raise
                listing = {}
        return self._named(listing)

    def glob(self, pattern: str) -> dict[str, Stored]:
        """Every object whose name matches, as `list` gives them."""
        with self._errors(pattern):
            listing = self._fs.glob(self._path(pattern), detail=True)
        return self._named(listing)

    def _named(self, listing: Mapping[str, Mapping[str, object]]) -> dict[str, Stored]:
        """The objects of a listing by name, without folders, sorted by bytes."""
        names = {
            path.removeprefix(self._root).lstrip("/"): stored
            for path, facts in listing.items()
            if not path.endswith("/") and (stored := Stored.listed(facts)) is not None
        }
        return {name: names[name] for name in sorted(names, key=str.encode) if name}

    def read(self, name: str) -> bytes:
        """Content of an object. Raises FileNotFoundError if there is none."""
        with self._errors(name):
            content: bytes = self._fs.cat_file(self._path(name))
            return content

    def open(self, name: str, version: str | None = None) -> io.BufferedReader:
        """An object as a file to read, with seek; see `places.Files.open`.

        Reading raises StoreError once another object has replaced it.
        """
        if version is not None:
            if (stored := self.find(name)) is None:
                raise StoreError(errno.EBUSY, "it is gone", self.where(name))
            if stored.version != version:
                raise StoreError(errno.EBUSY, "it was replaced by another one", self.where(name))
        with self._errors(name):
            file = self._fs.open(self._path(name), "rb", block_size=_PART)
        return io.BufferedReader(_Reading(self, name, file), 1 << 20)

    def write(self, name: str, content: bytes) -> None:
        """Write an object, or replace it."""
        with self._errors(name, writing=True):
            self._fs.pipe_file(self._path(name), content)

    def create(self, name: str, content: bytes) -> bool:
        """Write an object only if there is none; of several that try, exactly one gets True."""
        with self._errors(name, writing=True):
            for tries_left in reversed(range(_CONFLICTS)):
                try:
                    self._fs.pipe_file(self._path(name), content, mode="create")
                    return True
                except FileExistsError:
                    return False
                except OSError as error:
                    status = http_status(error)
                    if status == 412:  # without a message, by which s3fs would know it
                        return False
                    if status != 409 or not tries_left:
                        raise
                    time.sleep(0.2)  # several write at once, and S3 asks each to retry
        raise AssertionError

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator["Upload"]:
        """An object that is sent while it is written.

        It appears at the end of the `with` block, or never if the block raises.
        """
        with self._errors(name, writing=True):
            file = self._fs.open(self._path(name), "wb", block_size=_PART)
        try:
            yield Upload(self, name, file)
            with self._errors(name, writing=True):
                file.close()
        except BaseException:
            with contextlib.suppress(Exception):
                file.discard()
            with contextlib.suppress(AttributeError):
                file.closed = True  # closing would complete the object
            raise

    def copy_to(self, name: str, other: "Store", to: str) -> None:
        """Copy an object inside the store, without downloading it.

        Raises FileNotFoundError if it does not exist.
        """
        with self._errors(name):
            self._fs.cp_file(self._path(name), other._path(to))
            if hasattr(self._fs, "service_client"):
                self._await_copy(other._path(to))

    def _await_copy(self, path: str) -> None:
        """Wait for a copy in Azure, which adlfs only begins."""
        from fsspec.asyn import sync

        container, blob, _ = self._fs.split_path(path)

        async def status() -> str:
            client = self._fs.service_client.get_blob_client(container, blob)
            async with client:
                return str((await client.get_blob_properties()).copy.status)

        while (state := sync(self._fs.loop, status)) == "pending":
            time.sleep(_POLL)
        if state != "success":
            raise OSError(errno.EIO, f"a copy to {path} ended with status {state}")

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; missing ones are ignored."""
        with self._errors(names[0] if names else ""):
            try:
                if names:
                    self._fs.rm([self._path(name) for name in names])
            except FileNotFoundError:  # never from S3, which ignores missing objects
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        self._fs.rm_file(self._path(name))

    def modified(self, name: str) -> datetime:
        """Time when an object was written, by the clock of the store.

        Raises FileNotFoundError if there is none.
        """
        with self._errors(name):
            time_written: datetime = self._fs.modified(self._path(name))
            return time_written

    def forget_uploads(self, folder: str) -> None:
        """Delete uploads to a folder that killed processes began, if the store allows it."""
        if not hasattr(self._fs, "call_s3"):
            return
        bucket, key, _ = self._fs.split_path(self._path(folder))
        # Needs a right that writing does not need; a rule of the bucket can do the same.
        with contextlib.suppress(Exception):
            uploads = (
                self._fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{key}/").get(
                    "Uploads"
                )
                or ()
            )
            for upload in uploads:
                if upload["Key"].startswith(f"{key}/"):  # some servers ignore the prefix
                    self._fs.abort_mpu(bucket, upload["Key"], upload["UploadId"])

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _errors(
        self, name: str, *, writing: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """Raise the errors of clients as a StoreError that names this object."""
        return store_errors(self.where(name), writing=writing)


class Upload:
    """An object that is being written."""

    def __init__(self, store: Store, name: str, file: Any) -> None:
        self._store, self._name, self._file = store, name, file

    def write(self, data: Any) -> int:
        with self._store._errors(self._name, writing=True):
            return int(self._file.write(data))


class _Reading(io.RawIOBase):
    """An object as a raw file that raises StoreError."""

    def __init__(self, store: Store, name: str, file: Any) -> None:
        self._store, self._name, self._file = store, name, file
        # s3fs asks for the ETag with each request.
        details = None if hasattr(store._fs, "call_s3") else getattr(file, "details", None)
        self._opened = Stored.listed(details) if isinstance(details, dict) else None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self._store._errors(self._name):
            data = self._file.read(len(buffer))
            if self._opened is not None and self._file.tell() == self._opened.bytes:
                self._check()
        buffer[: len(data)] = data
        return len(data)

    def _check(self) -> None:
        """Raise OSError (EBUSY) if the object is another one than when it was opened."""
        if self._store.find(self._name) != self._opened:
            raise OSError(errno.EBUSY, "replaced")

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _opened(url: str) -> tuple[Any, str]:
    """The file system of a URL, without a cache of listings, and the path in it."""
    try:
        from fsspec.core import url_to_fs

        fs, root = url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        extra = _EXTRAS.get(url.partition("://")[0])
        package = f"packprep[{extra}]" if extra else "the package that fsspec names"
        raise ImportError(
            f"{url} needs a package that is not installed: {error}; run pip install {package}"
        ) from None
    except ValueError as error:
        raise StoreError(
            errno.EINVAL, f"it is not the address of a store: {error_text(error)}", url
        ) from None
    return fs, str(root).rstrip("/")
