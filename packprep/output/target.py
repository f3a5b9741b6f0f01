"""A place at which something is published: an output or an export, in a directory or in a store.

It is absent or whole. Its last file signs it, lists every other file, and makes it whole.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from packprep.schemas.manifest import Manifest
from packprep.schemas.storage.export_manifest import ExportManifest
from packprep.schemas.storage.places import Files
from packprep.support.errors import ConfigError
from packprep.support.file_lock import Holder
from packprep.support.progress import Progress

Signed = TypeVar("Signed", bound=Manifest | ExportManifest)


@dataclass(frozen=True, kw_only=True)
class Publishable(Generic[Signed]):
    """Kind of what is published.

    name: such as "an output of packprep". activity, work: "is being built", "the build would work".
    last: file that is written last. parse: reads it, f(content, where). sizes: bytes of the files
    that it lists. parts: names in the staging directory that are not published; the last one is
    deleted last. marks: names that no other directory has. replaceable: one may replace another.
    """

    name: str
    activity: str
    work: str
    last: str
    parse: Callable[[bytes, str], Signed]
    sizes: Callable[[Signed], Mapping[str, int]]
    parts: tuple[str, ...]
    marks: tuple[str, ...]
    replaceable: bool = False

    def read(self, files: Files) -> Signed | None:
        """Output that is published there; None if it is absent or incomplete."""
        try:
            return self.parse(files.read(self.last), files.where(self.last))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def signed_in(self, staging: Path) -> tuple[Signed, bytes]:
        """Output that is signed in a staging directory, and the content of its last file."""
        content = (staging / self.last).read_bytes()
        return self.parse(content, str(staging / self.last)), content

    def check_staging(self, path: Path) -> None:
        """Raise ConfigError if a staging directory has other files than work on one of these."""
        if not path.exists() and not path.is_symlink():
            return
        if not path.is_symlink() and path.is_dir():
            names = {file.name for file in path.iterdir() if file.suffix != ".tmp"}
            if names & {*self.marks} or names <= {*self.parts}:
                return
        raise ConfigError(
            f"{path}, in which {self.work}, has files of something else; choose another -o"
        )


class Target(ABC, Generic[Signed]):
    """A place to publish at; `LocalTarget` and `StoreTarget` are the two kinds.

    path: on this machine, and it need not exist; the staging directory and the lock are beside it.
    files: of the place itself. Messages name it by str(target).
    """

    def __init__(self, kind: Publishable[Signed], path: Path) -> None:
        self.kind, self.path = kind, path

    @property
    @abstractmethod
    def files(self) -> Files: ...

    @property
    @abstractmethod
    def replaces(self) -> bool:
        """True if something is published there, and is replaced in one step."""

    def __str__(self) -> str:
        return self.files.where("")

    def finished(self) -> Signed | None:
        """Output that is published there; None if it is absent or incomplete."""
        return self.kind.read(self.files)

    @abstractmethod
    def holder(self) -> Holder | None:
        """Process that works on it, or did and died; None if unknown."""

    @abstractmethod
    def held(self, staging: Path | None, *, shared: bool = False) -> AbstractContextManager[None]:
        """Hold the locks that work needs in addition to the lock of `path`, if any.

        staging: None if files are sent only when all are made. shared: True for a task of an array,
        which does not hold the lock of `path` either.
        """

    @abstractmethod
    def existing(self, same: Callable[[Signed], None], progress: Progress) -> Signed | None:
        """Output that is published there; None if the place is free.

        ConfigError if it has other files. A publication that was begun is finished. same: raises
        if it is of something else.
        """

    @abstractmethod
    def shards(self, staging: Path) -> Files:
        """Folder in which files are written before they get their final names."""

    @abstractmethod
    def publish(self, staging: Path, progress: Progress) -> Signed:
        """Make what is signed in the staging directory appear, and remove that directory.

        May be called again after an interruption at any point.
        """

    @abstractmethod
    def tidy(self) -> None:
        """Delete what the publication has left; the lock of `path` is held."""
