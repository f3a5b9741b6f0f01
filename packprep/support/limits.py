"""Cores, memory, disk space and folders that this process may use.

A container or a job of a cluster has a part of the machine: quotas of Linux control groups
(version 2) and Slurm's numbers count too. FOLDER.lock names the host and the process that works in
a folder. The kernel decides: it keeps a lock only while its process lives, so the lock of a killed
process is free at once.
"""

import fcntl
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs

from .errors import ConfigError, StoppedError
from .records import write_file


def usable_cores(root: Path = Path("/")) -> int:
    """Cores that this process may use, at least 1; a quota of part of a core counts as a core."""
    limits = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()]
    for text in _of_groups(root, "cpu.max"):
        quota, _, period = text.partition(" ")
        if quota.isdigit() and period.isdigit():
            limits.append(-(-int(quota) // int(period)))
    limits.append(int(os.environ.get("SLURM_CPUS_PER_TASK", "0") or 0))
    return min(limit for limit in limits if limit)


def usable_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that this process may use."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    limits += [int(text) for text in _of_groups(root, "memory.max") if text.isdigit()]
    limits.append(int(os.environ.get("SLURM_MEM_PER_NODE", "0") or 0) << 20)  # 0: all of the node
    return min(limit for limit in limits if limit)


def _of_groups(root: Path, name: str) -> Iterator[str]:
    """Content of a file of this process's control group and of those around it."""
    try:
        group = (root / "proc/self/cgroup").read_text().strip().rpartition("::")[2]
    except OSError:
        return
    folder = root / "sys/fs/cgroup" / group.strip("/")
    while folder.is_relative_to(root / "sys/fs/cgroup"):
        if (folder / name).is_file():
            yield (folder / name).read_text().strip()
        folder = folder.parent


def check_room(folder: Path, needed: int, what: str) -> None:
    """Raise StoppedError if the disk of a folder has less room than `needed` bytes for `what`.

    Files in the folder are a part of it that is there.
    """
    needed -= sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise StoppedError(
            f"{what} will need about {_size_text(needed)} and the disk of {folder} has "
            f"{_size_text(free)} free; free some, or choose another place, and run the command "
            "again"
        )


def _size_text(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 10**9 else f"{size / 1e6:,.1f} MB"


def cache_folder(name: str) -> Path:
    """The folder of this name in the cache folder of the user, there or not."""
    return platformdirs.user_cache_path("packprep", appauthor=False) / name


def keep(path: Path, content: bytes) -> bool:
    """Write a file whole, and its folder if it is missing. False if that is not possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content)
    except OSError:
        return False
    return True


@contextmanager
def locked(folder: Path, activity: str, *, waits: bool = False) -> Iterator[None]:
    """Hold the lock of a folder, whose parent is made.

    activity: beginning of the error, such as "out is being built". waits: until no other process
    holds it. Raises ConfigError if a living process holds it.
    """
    path = folder.with_name(folder.name + ".lock")
    handle = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while handle is None:
            handle = _lock(path, activity, waits=waits)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be created: {error.strerror}; choose another place"
        ) from None
    try:
        os.ftruncate(handle, 0)
        os.pwrite(
            handle, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode(), 0
        )
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # while it is held, so that no other process has it yet
        os.close(handle)


def _lock(path: Path, activity: str, *, waits: bool) -> int | None:
    """Handle of the locked file of this name; None if its owner removed it since it was opened."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except OSError:
        holder = _holder(handle)
        os.close(handle)
        raise ConfigError(f"{activity} by {holder}; wait until it ends, or stop it") from None
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(handle), path.stat()):
            return handle
    os.close(handle)
    return None


def _holder(handle: int) -> str:
    """The process that a lock file names."""
    text = os.pread(handle, 200, 0).decode(errors="replace")
    with suppress(ValueError, TypeError, KeyError):
        named = json.loads(text)
        return f"process {named['pid']} on {named['host']}"
    return text or "another process"
