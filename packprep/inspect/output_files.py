"""The files of an output as `verify` reads them, in a directory or in a store."""

import contextlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from packprep.inspect.shard_files import Opened, opener
from packprep.schemas.errors import FormatError
from packprep.schemas.files import MANIFEST, inside
from packprep.schemas.listed import (
    cache_files,
    check_file,
    is_cache,
    surplus_files,
    surplus_names,
)
from packprep.schemas.manifest import FileEntry, Manifest, Output, read_manifest
from packprep.schemas.storage.remote import RemoteOutput
from packprep.schemas.storage.stores import Store, Stored, is_url
from packprep.support.errors import InputError, asked


class DirectoryFiles:
    """An output in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def output(self) -> Output:
        """The output. Raises FormatError if its manifest is damaged."""
        read_manifest(self.directory)
        return self.directory

    def find(self, entry: FileEntry, tell: Callable[[str], None]) -> Opened | None:
        """Function that opens a file; None if the file is missing.

        A fault, such as a wrong size, is reported to `tell`; the file is still read.
        """
        try:
            return opener(check_file(self.directory, entry))
        except FormatError as error:
            tell(str(error).removeprefix(f"{self.directory / entry.path} "))
        with contextlib.suppress(FormatError):
            if (path := inside(self.directory, entry.path)).is_file():
                return opener(path)
        return None

    def read(self, name: str) -> bytes:
        """Read a small file. Raises OSError if that fails."""
        return (self.directory / name).read_bytes()

    def caches(self) -> list[str]:
        """Names of files that `datasets` has left in the directory."""
        return cache_files(self.directory)

    def surplus(self, manifest: Manifest) -> list[str]:
        """Names of files that the manifest does not list."""
        return [
            path.relative_to(self.directory).as_posix()
            for path in surplus_files(self.directory, manifest)
        ]


class StoreFiles:
    """An output in a store; see `DirectoryFiles`. Files are streamed, not cached."""

    def __init__(self, url: str) -> None:
        with asked(InputError):
            self.store = Store(url)
            if self.store.find(MANIFEST) is None:
                raise InputError(
                    f"{url} has no {MANIFEST}; only a directory can be verified without one"
                )

    def output(self) -> Output:
        return RemoteOutput(self.store.url)

    @cached_property
    def _stored(self) -> dict[str, Stored]:
        return self.store.list()

    def find(self, entry: FileEntry, tell: Callable[[str], None]) -> Opened | None:
        if (stored := self._stored.get(entry.path)) is None:
            tell(f"is missing; the manifest lists it with {entry.bytes} bytes")
            return None
        if stored.bytes != entry.bytes:
            tell(f"has {stored.bytes} bytes; expected {entry.bytes}")
        return lambda: self.store.open(entry.path)

    def read(self, name: str) -> bytes:
        return self.store.read(name)

    def caches(self) -> list[str]:
        return list(filter(is_cache, self._stored))

    def surplus(self, manifest: Manifest) -> list[str]:
        return surplus_names(self._stored, manifest)


def open_files(output: Any) -> DirectoryFiles | StoreFiles:
    """The files of the output at a path or URL."""
    return StoreFiles(output) if is_url(output) else DirectoryFiles(Path(output))
