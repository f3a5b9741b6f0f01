"""A directory that is absent or complete.

Work is done in OUT.incomplete beside it; one rename turns that into OUT.
"""

import shutil
from collections.abc import Callable, Set
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from packprep.output.staging import staging_path
from packprep.output.target import Publishable, Signed, Target
from packprep.schemas.storage.places import Directory
from packprep.schemas.storage.stores import is_url
from packprep.schemas.storage.writing import sync_directory
from packprep.support.errors import ConfigError
from packprep.support.file_lock import Holder, holder
from packprep.support.linux import exchange
from packprep.support.progress import Progress, Silent


class LocalTarget(Target[Signed]):
    """A directory; see `Target`. Nothing but the lock of the path needs to be held."""

    @property
    def files(self) -> Directory:
        return Directory(self.path)

    @property
    def replaces(self) -> bool:
        return (self.path / self.kind.last).exists()

    @property
    def replaced(self) -> Path:
        """Path of what was replaced, until it is deleted."""
        return self.path.with_name(self.path.name + ".replaced")

    def check(self) -> bool:
        """True if something is published there; ConfigError for other files, or a link."""
        if self.path.is_symlink() or (self.path.exists() and not self.path.is_dir()):
            raise ConfigError(f"{self.path} is not a directory; choose another -o")
        if not self.path.exists() or not any(self.path.iterdir()):
            return False
        if not self.replaces:
            raise ConfigError(f"{self} exists and is not {self.kind.name}; choose another -o")
        return True

    def holder(self) -> Holder | None:
        return holder(self.path)

    def held(self, staging: Path | None, *, shared: bool = False) -> AbstractContextManager[None]:
        return nullcontext()

    def existing(self, same: Callable[[Signed], None], progress: Progress) -> Signed | None:
        return self.finished() if self.check() else None

    def shards(self, staging: Path) -> Directory:
        return Directory(staging / "shards")

    def publish(self, staging: Path, progress: Progress) -> Signed:
        """See `Target.publish`: deletes what is no part of it, and renames once.

        Until then an old output stays in its place.
        """
        signed, _ = self.kind.signed_in(staging)
        listed = {staging / path for path in self.kind.sizes(signed)}
        for name in self.kind.parts:
            if (path := staging / name).is_dir():
                _clear(path, listed)
            else:
                path.unlink(missing_ok=True)
        for folder in {staging, *(above for path in listed for above in path.parents)}:
            if folder.is_relative_to(staging):
                sync_directory(folder)
        if self.path.exists() and not any(self.path.iterdir()):
            self.path.rmdir()
        if self.path.exists():
            self.remove_replaced()
        if self.path.exists() and exchange(staging, self.path):
            staging.rename(self.replaced)  # so that nobody resumes it as a build
        else:
            if self.path.exists():
                self.path.rename(self.replaced)
            staging.rename(self.path)
        sync_directory(self.path.absolute().parent)
        self.remove_replaced()
        return signed

    @property
    def half_swapped(self) -> bool:
        """True if `publish` was killed between its renames, so that neither has the name."""
        return (
            self._is_finished(staging_path(self.path))
            and not self.path.exists()
            and self.replaced.exists()
        )

    def tidy(self) -> None:
        """Finish a `publish` that was killed, and delete what it has left."""
        staging = staging_path(self.path)
        if self.half_swapped:
            self.publish(staging, Silent())
        elif self._is_finished(staging):
            self.set_aside(staging)  # what was replaced
        self.remove_replaced()

    def set_aside(self, directory: Path) -> None:
        """Rename a directory as a replaced one, so that a half-deleted one is never used."""
        self.remove_replaced()
        directory.rename(self.replaced)
        sync_directory(self.path.absolute().parent)

    def _is_finished(self, staging: Path) -> bool:
        last, part = self.kind.last, self.kind.parts[-1]
        return (staging / last).exists() and not (staging / part).exists()

    def remove_replaced(self) -> None:
        """Delete what was replaced; another folder of this name beside an export stays."""
        if self.kind.replaceable:
            shutil.rmtree(self.replaced, ignore_errors=True)


def target_at(
    kind: Publishable[Signed],
    place: str,
    work_dir: str | None = None,
    *,
    unproven_store: bool = False,
) -> Target[Signed]:
    """The target at a path or a URL. work_dir, unproven_store: see `StoreTarget`."""
    if not is_url(place):
        return LocalTarget(kind, Path(place))
    from packprep.output.remote import StoreTarget

    return StoreTarget(kind, place, work_dir, unproven_store=unproven_store)


def _clear(directory: Path, listed: Set[Path]) -> None:
    """Delete a directory, but not the files that are part of the output, such as its tokens."""
    if any(path.is_relative_to(directory) for path in listed):
        for path in [*directory.rglob("*")]:
            if path.is_file() and path not in listed:
                path.unlink()
    else:
        shutil.rmtree(directory)
