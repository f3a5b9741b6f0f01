"""OUT.incomplete, the directory in which a build works.

Its build.json names the inputs of the build, so that the next command can resume it.

build.json      the inputs that decide the bytes; job.json has all that another process needs to do
                a part of the work
tokens/         token files of slices, each with a receipt (unless they are in a token store)
sizes/ places.json claims/ digests.json   files that the processes of an array or of Ray share
                                          (places.py, array_tasks.py)
shards/         shards under working names; receipts/ has the receipts of shards and of windows
manifest.json   exists once the output is complete: what remains is to delete all other files here
                and to rename the directory

A receipt is written after its file is complete, and has its digest. Work counts as done only if
file and receipt both exist and match.
"""

import contextlib
import errno
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from packprep.output.build_facts import BuildFacts, Change, resume_obstacle
from packprep.output.target import Publishable
from packprep.schemas.canonical import canonical_json
from packprep.schemas.errors import FormatError
from packprep.schemas.files import BUILD as BUILD
from packprep.schemas.files import MANIFEST, inside
from packprep.schemas.files import SUFFIX as SUFFIX
from packprep.schemas.listed import check_file
from packprep.schemas.manifest import parse_manifest, read_manifest
from packprep.schemas.storage.writing import write_file
from packprep.support.errors import ConfigError, PackprepError, StoppedError
from packprep.support.file_lock import taken_by
from packprep.support.progress import Progress

_TRIES = 5  # a thread that is about to stop may still write to a directory that is deleted
APPENDED = ".appended"
JOB = "job.json"  # all that another process needs to do a part of the work
NAMES = "names.json"  # from working to final names, while shards are renamed
SIZES, PLACES = "sizes", "places.json"  # amounts of text of all rows, and where slices begin
CLAIMS = "claims"  # locks of the running processes, and of the tasks they work on
DIGESTS = "digests.json"  # digests of sources, so that only one process computes them
STORE = "store.json"  # address of the shards if they are in a store
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
)  # not part of the output; BUILD is deleted last
OUTPUT = Publishable(
    name="an output of packprep",
    activity="is being built",
    work="the build would work",
    last=MANIFEST,
    parse=parse_manifest,
    sizes=lambda manifest: {entry.path: entry.bytes for entry in manifest.all_files},
    parts=PARTS,
    marks=(BUILD, MANIFEST),
    replaceable=True,
)
_KEPT = (
    "scratch",
    CLAIMS,
    DIGESTS,
    STORE,
)  # when a build starts over: they do not depend on its options, and are in use already
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
    """Locks of array tasks that are running or were killed."""
    return list((staging / CLAIMS).glob("task.*.lock"))


def at_work(output: Path) -> dict[str, str]:
    """Running tasks of an output: name of the lock, and its holder."""
    locks = task_locks(staging_path(output))
    holders = {lock.stem: taken_by(lock.with_suffix("")) for lock in locks}
    return {name: by for name, by in holders.items() if by}


def join_path(staging: Path) -> Path:
    """Path that a task of an array locks while it joins the build."""
    return staging / CLAIMS / "join"


def appended_path(output: Path) -> Path:
    """Directory in which the appended part of an output is built, as an output of its own."""
    return output.with_name(output.name + APPENDED)


@dataclass
class Staging:
    """Staging directory of an output, used while the lock of the output is held."""

    path: Path
    claimed: bool = False

    @property
    def scratch(self) -> Path:
        return self.path / "scratch"

    def committed(self) -> bool:
        """True if any work is done: there is a receipt of a slice, a shard or a window."""
        folders = (self.path / "tokens", self.path / "receipts")
        return (self.path / MANIFEST).exists() or any(
            file.name != "files.json" for folder in folders for file in folder.rglob("*.json")
        )

    def claim(
        self,
        build: BuildFacts,
        progress: Progress,
        *,
        replaces: bool,
        discard: bool | None = None,
    ) -> bool:
        """Claim the directory for this build: resume the work in it, or begin.

        build: content of build.json; its `inputs` must not change. replaces: True if there is an
        old output, which an interrupted swap may have left here. discard: True to delete the work
        of a build with other settings; None if the command has no option for that. Returns True
        if only the last rename is missing. ConfigError if another build has left work here, and is
        not to be discarded.
        """
        before = self._before(replaces)
        if before is not None and (changed := resume_obstacle(before, build)):
            if self.committed() and "failed" in before:
                progress.say(
                    f"{self.path} is left from a build that failed; starting over ({changed})"
                )
            elif self.committed() and discard:
                progress.say(
                    f"{self.path} is left from an unfinished build with other settings "
                    f"({changed}): started over, as --overwrite asks"
                )
            elif self.committed():
                start_over = f"delete {self.path}" if discard is None else "add --overwrite"
                raise ConfigError(
                    f"{self.path} is an unfinished build with other settings ({changed}); "
                    f"{Change(before['inputs'], build['inputs']).advice} to resume it, or "
                    f"{start_over} to start over"
                )
            before = None
        if before is None:
            # First: without it, a half-deleted directory is never resumed.
            (self.path / BUILD).unlink(missing_ok=True)
            for path in self.path.iterdir():
                if path.name not in _KEPT:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.claimed = True
        remove_leftovers(self.path)
        if before is not None and self._finished():
            return True
        self._undo_names()
        write_file(self.path / BUILD, canonical_json(build))
        return False

    def join(
        self,
        build: BuildFacts,
        progress: Progress,
        *,
        alone: bool,
        replaces: bool,
        discard: bool | None,
    ) -> bool:
        """`claim` for a task of an array. Returns True if only the last rename is missing.

        alone: True if no other task is running. Otherwise the directory is already claimed, and
        ConfigError is raised if it was claimed with other settings.
        """
        if alone:
            return self.claim(build, progress, replaces=replaces, discard=discard)
        claimed = json.loads((self.path / BUILD).read_bytes())
        if changed := resume_obstacle(claimed, build):
            raise ConfigError(
                f"tasks with other settings ({changed}) are running in {self.path}; choose another "
                "-o"
            )
        return False

    def leave_empty(self) -> None:
        """Delete the directory if it has only the traces of a task that joined."""
        with contextlib.suppress(OSError):
            (self.path / CLAIMS).rmdir()
            for name in (DIGESTS, STORE):
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()

    def _before(self, replaces: bool) -> BuildFacts | None:
        """Content of build.json of the last build here; None if there is nothing to resume."""
        try:
            before = json.loads((self.path / BUILD).read_bytes())
            is_sound = isinstance(before, dict) and "inputs" in before
            return cast("BuildFacts", before) if is_sound else None
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

    def _finished(self) -> bool:
        """True for a complete output; its manifest is deleted if any file does not match it."""
        try:
            for entry in read_manifest(self.path).all_files:
                check_file(self.path, entry, "sha256")
        except FormatError:
            (self.path / MANIFEST).unlink(missing_ok=True)
            return False
        return True

    def _undo_names(self) -> None:
        """Give shards their working names again if the last build died while it renamed them."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            for working, final in json.loads((self.path / NAMES).read_bytes()).items():
                if (shard := inside(self.path, final)).exists():
                    shard.replace(inside(self.path, working))
        (self.path / NAMES).unlink(missing_ok=True)


@contextmanager
def staged(output: Path) -> Iterator[Staging]:
    """Staging directory, created if it is missing; the caller holds the lock of the output.

    It is deleted if no work was done. After any interruption it stays, and the same command resumes
    the build. After an error in an option or a row another command must follow, so build.json notes
    the failure, and that command may start over without --overwrite.
    """
    staging = staging_at(output)
    path = staging.path
    try:
        shutil.rmtree(staging.scratch, ignore_errors=True)
        staging.scratch.mkdir(parents=True)
    except OSError as error:
        if error.errno not in _WRONG_PLACE:
            raise
        raise ConfigError(
            f"{path} cannot be created: {error.strerror}; choose another -o"
        ) from None
    try:
        yield staging
    except StoppedError:
        raise
    except PackprepError as error:
        _leave(staging)
        if staging.claimed and (path / BUILD).exists():
            build = json.loads((path / BUILD).read_bytes())
            write_file(path / BUILD, canonical_json(build | {"failed": error.args[0]}))
        raise
    _leave(staging)


def staging_at(output: Path) -> Staging:
    """Staging directory of an output; it need not exist yet.

    ConfigError if the path has other files.
    """
    path = staging_path(output)
    OUTPUT.check_staging(path)
    return Staging(path)


def _leave(staging: Staging) -> None:
    shutil.rmtree(staging.scratch, ignore_errors=True)
    for _ in range(_TRIES):
        if not staging.path.exists() or staging.committed():
            return
        shutil.rmtree(staging.path, ignore_errors=True)
        time.sleep(0.02 * staging.path.exists())


def remove_leftovers(directory: Path) -> None:
    """Delete temporary files that killed processes left, those of `datasets` too."""
    for path in [
        *directory.rglob("*.tmp"),
        *directory.rglob("tokens/tmp*"),
        *directory.glob("tmp*"),
    ]:
        path.unlink(missing_ok=True)
