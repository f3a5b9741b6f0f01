"""OUT.incomplete, the folder a build works in.

It says what it is a build of, so that the next command may resume it.

build.json      the inputs that decide the bytes; job.json all that another process needs to do a
                part of the work
tokens/         token files of slices, each with a receipt (unless they go to a token store)
sizes/ places.json claims/ digests.json   what processes of other executors share (places.py,
                                          array_tasks.py)
shards/         shards under working names; receipts/ those of shards and of whole windows
manifest.json   the output is whole: all that is left is to take the rest away and to rename the
                directory

A receipt is written after its file is whole and says its digest, so work counts only where both are
there and agree.
"""

import contextlib
import errno
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packprep.output.build_facts import resume_obstacle
from packprep.schemas.canonical import canonical_json
from packprep.schemas.errors import FormatError
from packprep.schemas.files import MANIFEST, inside
from packprep.schemas.listed import check_file
from packprep.schemas.manifest import Manifest, read_manifest
from packprep.schemas.storage.writing import write_file
from packprep.support.errors import ConfigError, PackprepError, StoppedError
from packprep.support.progress import Progress

SUFFIX = ".incomplete"
APPENDED = ".appended"
BUILD = "build.json"
JOB = "job.json"  # what another process needs to do a part of the work
NAMES = "names.json"  # from working to final names, while shards are renamed
SIZES, PLACES = "sizes", "places.json"  # amounts of text of all rows, and where slices begin
CLAIMS = "claims"  # locks of the processes at work, and of what they work on
DIGESTS = "digests.json"  # of sources, so that not every process reads them for that
STORE = "store.json"  # where the shards are, if that is not here
PARTS = (
    "scratch",
    "tokens",
    "shards",
    "receipts",
    SIZES,
    PLACES,
    CLAIMS,
    DIGESTS,
    STORE,
    NAMES,
    JOB,
    BUILD,
)  # none of the output; BUILD goes last
_KEPT = (
    "scratch",
    CLAIMS,
    DIGESTS,
    STORE,
)  # by whoever starts over: they say nothing of a build, and are in use already
_WRONG_PLACE = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
    errno.ENOENT,
)


def staging_path(output: Path) -> Path:
    return output.with_name(output.name + SUFFIX)


def task_locks(staging: Path) -> list[Path]:
    """Locks that tasks of an array have while they are at work, or left when they were killed."""
    return list((staging / CLAIMS).glob("task.*.lock"))


def join_path(staging: Path) -> Path:
    """Path that a task locks while it joins."""
    return staging / CLAIMS / "join"


def appended_path(output: Path) -> Path:
    """Folder in which the appended part of an output is built, as an output of its own."""
    return output.with_name(output.name + APPENDED)


@dataclass
class Staging:
    """The staging directory of an output, with the lock of the output held."""

    path: Path
    claimed: bool = False

    @property
    def scratch(self) -> Path:
        return self.path / "scratch"

    def committed(self) -> bool:
        """True if any work is done: a receipt of a slice, a shard or a window."""
        folders = (self.path / "tokens", self.path / "receipts")
        return (self.path / MANIFEST).exists() or any(
            file.name != "files.json" for folder in folders for file in folder.glob("*.json")
        )

    def claim(
        self, build: Mapping[str, Any], progress: Progress, *, restart: bool, replaces: bool
    ) -> Manifest | None:
        """Make the directory one of this build: go on with what is there, or begin.

        ConfigError where it is another's.

        build: what goes into build.json; its `inputs` must not change. replaces: whether there is
        an old output, which a swap that was interrupted may have left here. Returns the manifest
        where only the last rename was missing.
        """
        before = self._before(replaces)
        if restart and self.committed():
            progress.say(
                f"{self.path} is left from a build that did not finish: started over as asked"
            )
            before = None
        if before is not None and (changed := resume_obstacle(before, build)):
            if self.committed() and "failed" in before:
                progress.say(
                    f"{self.path} is of a build that could not finish; starting over ({changed})"
                )
            elif self.committed():
                raise ConfigError(
                    f"{self.path} is an unfinished build with other settings ({changed}); repeat "
                    "its settings to resume it, or add --restart to start over"
                )
            before = None
        if before is None:
            (self.path / BUILD).unlink(
                missing_ok=True
            )  # first: what is half deleted is nobody's build
            for path in self.path.iterdir():
                if path.name not in _KEPT:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.claimed = True
        remove_leftovers(self.path)
        if before is not None and (manifest := self._whole(build)) is not None:
            return manifest
        self._undo_names()
        write_file(self.path / BUILD, canonical_json(build))
        return None

    def join(
        self, build: Mapping[str, Any], progress: Progress, *, alone: bool, replaces: bool
    ) -> bool:
        """`claim` for a task that may not be the only one.

        Return True where only the last rename is missing.

        alone: whether no other task is at work; otherwise the directory is theirs, and ConfigError
        if theirs differs.
        """
        if alone:
            return self.claim(build, progress, restart=False, replaces=replaces) is not None
        theirs = json.loads((self.path / BUILD).read_bytes())
        if changed := resume_obstacle(theirs, build):
            raise ConfigError(
                f"tasks with other settings ({changed}) are at work in {self.path}; choose another "
                "-o"
            )
        return False

    def leave_empty(self) -> None:
        """Take the directory away if a task has joined there and nothing else is in it."""
        with contextlib.suppress(OSError):
            (self.path / CLAIMS).rmdir()
            for name in (DIGESTS, STORE):
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()

    def _before(self, replaces: bool) -> dict[str, Any] | None:
        """The build that the directory is of; None where there is nothing to resume."""
        try:
            before = json.loads((self.path / BUILD).read_bytes())
            return before if isinstance(before, dict) and "inputs" in before else None
        except ValueError:
            return None
        except FileNotFoundError:
            pass
        try:
            manifest = read_manifest(self.path)
        except FormatError:
            return None
        return (
            None
            if replaces
            else {"inputs": manifest.data["inputs"], "format_version": manifest.format_version}
        )

    def _whole(self, build: Mapping[str, Any]) -> Manifest | None:
        """The manifest, if it is there and every file matches it; without it the work resumes."""
        try:
            manifest = read_manifest(self.path)
            for entry in manifest.all_files:
                check_file(self.path, entry, "sha256")
        except FormatError:
            (self.path / MANIFEST).unlink(missing_ok=True)
            return None
        return manifest

    def _undo_names(self) -> None:
        """Give shards their working names again.

        The build died while it gave them their final ones.
        """
        with contextlib.suppress(FileNotFoundError, ValueError):
            for working, final in json.loads((self.path / NAMES).read_bytes()).items():
                if (there := inside(self.path, final)).exists():
                    there.replace(inside(self.path, working))
        (self.path / NAMES).unlink(missing_ok=True)


@contextmanager
def staged(output: Path) -> Iterator[Staging]:
    """The staging directory, which is made if need be; to be used with the lock of the output held.

    It goes away where nothing was done. Whatever stops a build leaves it for the same command to go
    on with; where an option or a row was wrong, so that another command must come, that one may
    start over without being asked.
    """
    staging = staging_at(output)
    path = staging.path
    try:
        shutil.rmtree(staging.scratch, ignore_errors=True)
        staging.scratch.mkdir(parents=True)
    except OSError as error:
        if error.errno not in _WRONG_PLACE:
            raise
        raise ConfigError(f"{path} cannot be made: {error.strerror}; choose another -o") from None
    try:
        yield staging
    except StoppedError:
        raise
    except PackprepError as error:
        _leave(staging)
        if staging.claimed and (path / BUILD).exists():
            build = json.loads((path / BUILD).read_bytes())
            write_file(path / BUILD, canonical_json(build | {"failed": str(error)}))
        raise
    _leave(staging)


def staging_at(output: Path) -> Staging:
    """The staging directory of an output, which may not be there yet.

    ConfigError where it is something else.
    """
    path = staging_path(output)
    if path.is_symlink() or (path.exists() and not _ours(path)):
        raise ConfigError(
            f"{path} is where the build would work, and it holds something else; choose another -o"
        )
    return Staging(path)


def _leave(staging: Staging) -> None:
    shutil.rmtree(staging.scratch, ignore_errors=True)
    if staging.path.exists() and not staging.committed():
        shutil.rmtree(staging.path, ignore_errors=True)


def _ours(path: Path) -> bool:
    """True if everything in a directory has a name that a build gives.

    Used where no build.json says whose it is.
    """
    if not path.is_dir():
        return False
    names = {file.name for file in path.iterdir() if file.suffix != ".tmp"}
    return bool(names & {BUILD, MANIFEST}) or names <= set(PARTS)


def remove_leftovers(directory: Path) -> None:
    """Delete what killed processes had not finished: temporary files of ours and of `datasets`."""
    for path in [
        *directory.rglob("*.tmp"),
        *directory.rglob("tokens/tmp*"),
        *directory.glob("tmp*"),
    ]:
        path.unlink(missing_ok=True)
