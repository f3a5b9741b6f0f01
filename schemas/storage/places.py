"""Files of a directory, or of a folder in a store, read and written by the same methods."""

import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..files import inside
from ..listed import names_in
from ..manifest import Output
from .stores import Store, Stored, is_url
from .writing import writing_file

if TYPE_CHECKING:
    from .batches import Batches

_BUFFER = 1 << 20


class Files(Protocol):
    """The files under a place, by their names relative to it; "" is the place itself.

    `Directory` and `Store` are the two kinds; methods of a store may raise StoreError.
    """

    @property
    def directory(self) -> Path | None:
        """The directory; None in a store, whose files can be neither mapped nor renamed."""

    def where(self, name: str) -> str:
        """Path or URL of a file, for messages."""

    def find(self, name: str) -> Stored | None:
        """Size and version of a file; None if there is none."""

    def holds(self, name: str, stored: Stored) -> bool:
        """True if a file has this size and version."""

    def list(self) -> dict[str, Stored]:
        """Every file, those of subfolders too, by name, in a fixed order."""

    def read(self, name: str) -> bytes:
        """Content of a file. Raises FileNotFoundError if there is none."""

    def open(self, name: str, version: str | None = None) -> io.BufferedReader:
        """A file to read, with seek. Raises FileNotFoundError if there is none.

        version: StoreError (EBUSY) if an object is missing or has another one.
        """

    def writing(self, name: str) -> AbstractContextManager[Any]:
        """A file that appears, complete, at the end of the `with` block."""


@dataclass(frozen=True)
class Directory:
    """The files under a directory; see `Files`. They have no versions.

    mmap: False for a file system on which a mapped file may fail, see `steady`.
    """

    directory: Path
    mmap: bool = True

    def batches(self, name: str) -> "Batches":
        """The record batches of an Arrow stream, mapped, or read with pread if mmap is False."""
        from .batches import MappedBatches, SteadyBatches

        path = self.directory / name
        return MappedBatches(path) if self.mmap else SteadyBatches(path)

    def where(self, name: str) -> str:
        return str(self.directory / name)

    def find(self, name: str) -> Stored | None:
        """See `Files.find`. Raises FormatError for a name or a link out of the directory."""
        path = inside(self.directory, name) if name else self.directory
        return Stored(path.stat().st_size) if path.is_file() else None

    def holds(self, name: str, stored: Stored) -> bool:
        return self.find(name) == stored

    def list(self) -> dict[str, Stored]:
        """See `Files.list`. A link to a folder is listed, and not followed."""
        paths = {name: self.directory / name for name in names_in(self.directory)}
        facts = {n: path.stat() if path.exists() else path.lstat() for n, path in paths.items()}
        return {name: Stored(fact.st_size) for name, fact in facts.items()}

    def read(self, name: str) -> bytes:
        return (self.directory / name).read_bytes()

    def open(self, name: str, version: str | None = None) -> io.BufferedReader:
        return io.BufferedReader(io.FileIO(self.directory / name), _BUFFER)

    def writing(self, name: str) -> AbstractContextManager[Any]:
        """See `Files.writing`; folders are made."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return writing_file(path)


def files_at(place: str | Path, *, mmap: bool = True) -> Files:
    """The files under a path or a URL. mmap: see `Directory`; ValueError if False for a URL."""
    if not is_url(place):
        return Directory(Path(place), mmap)
    if not mmap:
        raise ValueError(
            f"{place}: shards at a URL are mapped from a local disk; leave out mmap=False"
        )
    return Store(str(place))


def finished_output(
    place: str | Path,
    cache_dir: str | Path | None = None,
    cache_size: int | None = None,
    evicted: Callable[[str], None] = lambda path: None,
) -> Output:
    """The output at a path or a URL; for a URL see `RemoteOutput`.

    Raises FormatError if a URL has none; a directory is not read.
    """
    if (directory := files_at(place).directory) is not None:
        return directory
    from .remote import RemoteOutput

    return RemoteOutput(str(place), cache_dir, cache_size, evicted)
