"""One process at a time on a folder: FOLDER.lock names the host and the process that works there.

The kernel decides: it keeps a lock only while its process lives, so the lock of a killed process
is free at once.
"""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import ConfigError


@contextmanager
def locked(folder: Path, activity: str) -> Iterator[None]:
    """Hold the lock of a folder, whose parent is made.

    activity: beginning of the error, such as "out is being built". Raises ConfigError if a living
    process holds it.
    """
    path = folder.with_name(folder.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be created: {error.strerror}; choose another place"
        ) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(handle, 200, 0).decode(errors="replace")
        os.close(handle)
        with suppress(ValueError, TypeError, KeyError):
            named = json.loads(holder)
            holder = f"process {named['pid']} on {named['host']}"
        raise ConfigError(
            f"{activity} by {holder or 'another process'}; wait until it ends, or stop it"
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
