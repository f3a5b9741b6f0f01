"""One build at a time on an output.

OUT.lock, beside the output, names the host and the process that build it.

On one machine the kernel decides: it keeps a lock only while its process lives, so the lock of a
killed build is stale at once. The kernel may not keep locks between machines. So every build also
touches its lock every few seconds, and a lock from another machine is stale if it was not touched
for a minute.

`filelock` (4.2) cannot replace this module: its kernel lock names no holder, and its lease expires
under a holder that was only suspended.
"""

import contextlib
import errno
import fcntl
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packprep.schemas.canonical import canonical_json, parse_json
from packprep.support.errors import ConfigError

TOUCHED_EVERY = 10.0  # seconds
STALE_AFTER = 60.0


class Held(ConfigError):  # noqa: N818 - named for the state of the lock
    """A living process holds the lock."""


@dataclass(frozen=True)
class Holder:
    """A process that holds, or held, the lock of an output."""

    host: str
    pid: int
    alive: bool

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def lock_path(path: Path) -> Path:
    """Path of a directory's lock: beside the directory, so that renames do not move it."""
    return path.with_name(path.name + ".lock")


@contextmanager
def locked(path: Path, activity: str) -> Iterator[Holder | None]:
    """Hold the lock of a directory; yield the dead process that left one, if any.

    Raises Held if a living process holds it. activity: beginning of that error, e.g. "out is being
    built".
    """
    lock = lock_path(path)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = _acquire(lock, activity)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        raise ConfigError(
            f"{lock} cannot be created: {error.strerror}; choose another place"
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
            lock.unlink()  # while it is held, so that no other process has it yet
        os.close(handle)


@contextmanager
def if_free(path: Path) -> Iterator[bool]:
    """Hold the lock of a directory; False if a living process holds it."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(path, "it is locked"))
        except Held:
            yield False
        else:
            yield True


def holder(path: Path) -> Holder | None:
    """Holder of the lock of a directory; None if there is none. Only reads the lock."""
    last = _read(lock_path(path))
    return last and Holder(last.host, last.pid, _alive(last, lock_path(path)))


def _alive(last: Holder, lock: Path) -> bool:
    """True if the holder seems to live; another process may have its number by now."""
    return runs(last.pid) if last.host == socket.gethostname() else _touched_elsewhere(last, lock)


def taken_by(path: Path) -> str:
    """Holder of the lock of a directory, in words; "" if no living process holds it.

    The lock of a dead process is deleted. This asks the kernel, so a process number that is used
    again does not mislead it, as it may mislead `holder`.
    """
    if not lock_path(path).exists():
        return ""
    with if_free(path) as is_free:
        return "" if is_free else str(_read(lock_path(path)) or "another process")


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # the process of another user
    return True


def _acquire(lock: Path, activity: str) -> int:
    """Open file of the lock, which this process holds from now on."""
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        free = _free(handle)
        if free is None:
            last = _read(lock)
            free = last is None or not _alive(last, lock)
        if free and not _same_file(handle, lock):
            os.close(handle)  # another build ended meanwhile and deleted the file
            continue
        last = _read(lock)
        if free and (last is None or not _touched_elsewhere(last, lock)):
            return handle
        os.close(handle)
        by = f" by {last}" if last else ""
        raise Held(
            f"{activity}{by}, which holds {lock}; wait until it is done or choose another place"
        )


def _free(handle: int) -> bool | None:
    """Take the kernel's lock; True if no other process of this machine has it.

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
    """Content of the lock; None if its build was killed before it wrote the content."""
    try:
        loaded = parse_json(lock.read_bytes())
        return Holder(str(loaded["host"]), int(loaded["pid"]), alive=False)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _touched_elsewhere(last: Holder, lock: Path) -> bool:
    """True if a build on another machine lives, by the clock of the file system."""
    if last.host == socket.gethostname():
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
