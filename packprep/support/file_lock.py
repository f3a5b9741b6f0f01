"""One build at a time on an output.

OUT.lock beside it names the process and the host that work there.

On one machine the kernel decides: it holds the lock for a living process only, so what a killed
build leaves is seen to be stale at once. It may not hold locks between machines, so there a build
touches its lock every few seconds, and one that was not touched for a minute belongs to a build
that is gone.

`filelock` (4.2) keeps one half each: its kernel lock names no holder, its lease runs out under a
holder that was only suspended; so this is our own.
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packprep.schemas.canonical import canonical_json
from packprep.support.errors import ConfigError

TOUCHED_EVERY = 10.0  # seconds
STALE_AFTER = 60.0


class Held(ConfigError):  # noqa: N818 - the sentence is an error's, the news is that it is held
    """A living process has the lock."""


@dataclass(frozen=True)
class Holder:
    """A process that holds, or held, the lock of an output."""

    host: str
    pid: int
    alive: bool

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def lock_path(path: Path) -> Path:
    """Path of a directory's lock: beside it, so that it stays where it is through renames."""
    return path.with_name(path.name + ".lock")


@contextmanager
def locked(path: Path, what: str) -> Iterator[Holder | None]:
    """Hold the lock of a directory; gives the dead process that left one.

    Held where a living one has it.

    what: beginning of that sentence, e.g. "out is being built".
    """
    lock = lock_path(path)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = _taken(lock, what)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        raise ConfigError(
            f"{lock} cannot be made: {error.strerror}; choose another place"
        ) from None
    done = threading.Event()
    try:
        before = _read(lock)
        os.ftruncate(handle, 0)
        os.pwrite(handle, canonical_json({"host": socket.gethostname(), "pid": os.getpid()}), 0)
        threading.Thread(target=_touch, args=(handle, done), daemon=True).start()
        yield before
    finally:
        done.set()
        with contextlib.suppress(OSError):
            lock.unlink()  # still held, so nobody takes it for his
        os.close(handle)


def holder(path: Path) -> Holder | None:
    """The holder of the lock of a directory; None where there is none.

    Looks only: it is in no build's way.
    """
    found = _read(lock_path(path))
    return found and Holder(found.host, found.pid, _alive(found, lock_path(path)))


def _alive(found: Holder, lock: Path) -> bool:
    """True if the holder lives, as far as can be seen without the kernel's lock.

    Its number may be that of another process by now.
    """
    return (
        runs(found.pid) if found.host == socket.gethostname() else _touched_elsewhere(found, lock)
    )


def taken_by(path: Path) -> str:
    """The holder of the lock of a directory, in words.

    "" where no living process has it; a lock that a dead one left is removed.

    Asks the kernel, so it is not misled by a process number that is used again, as `holder` may be.
    """
    if not lock_path(path).exists():
        return ""
    try:
        with locked(path, "it is taken"):
            return ""
    except Held:
        return str(_read(lock_path(path)) or "another process")


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return True


def _taken(lock: Path, what: str) -> int:
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        free = _free(handle)
        if free is None:
            found = _read(lock)
            free = found is None or not _alive(found, lock)
        if free and not _same_file(handle, lock):
            os.close(handle)  # its build ended meanwhile and took the file away
            continue
        found = _read(lock)
        if free and (found is None or not _touched_elsewhere(found, lock)):
            return handle
        os.close(handle)
        by = f" by {found}" if found else ""
        raise Held(f"{what}{by}, which holds {lock}; wait until it is done or choose another place")


def _free(handle: int) -> bool | None:
    """Take the kernel's lock if no process of this machine has it.

    None on a file system without locks.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL):
            return None
        raise
    return True


def _same_file(handle: int, lock: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), lock.stat())
    except FileNotFoundError:
        return False


def _read(lock: Path) -> Holder | None:
    """Content of the lock; None where its build was killed before it wrote that."""
    try:
        loaded = json.loads(lock.read_bytes())
        return Holder(str(loaded["host"]), int(loaded["pid"]), alive=False)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _touched_elsewhere(found: Holder, lock: Path) -> bool:
    """True if a build on another machine lives, by the clock of the file system."""
    if found.host == socket.gethostname():
        return False
    try:
        with tempfile.TemporaryFile(dir=lock.parent) as now:
            return os.fstat(now.fileno()).st_mtime - lock.stat().st_mtime < STALE_AFTER
    except OSError:
        return True


def _touch(handle: int, done: threading.Event) -> None:
    while not done.wait(TOUCHED_EVERY):
        with contextlib.suppress(OSError):
            os.utime(handle)
