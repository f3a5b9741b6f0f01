"""Builds that are interrupted on purpose.

Each is in a process forked from one that has everything imported. That process runs under a library
(calls.c, compiled here with `cc`) which fails the N-th call that a forked build makes on its files,
pyarrow's calls included, or logs them. Without a compiler only kills by time are there.
"""

import contextlib
import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).parents[2]
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "short": -1}


@dataclass(frozen=True)
class Ended:
    """End of a forked build: exit code, or minus the signal, and its standard error."""

    code: int
    err: str


class Armed(Protocol):
    """Work of the preloaded library in a forked build."""

    def arm(self) -> Any:
        """Arm it in this process. Returns the library if it counts calls, else None."""
        ...


@dataclass(frozen=True)
class Fault:
    """Fault that the library makes in a forked build; see calls.c."""

    kind: str
    call: int
    what: int
    under: Path

    def arm(self) -> Any:
        library = ctypes.CDLL(None)
        library.fault_count.restype = ctypes.c_long
        kind, call = ctypes.c_char(self.kind.encode()), ctypes.c_long(self.call)
        under = ctypes.c_char_p(os.fsencode(self.under))
        library.fault_arm(kind, call, ctypes.c_int(self.what), under)
        return library


def forked(
    commands: Sequence[Sequence[str]],
    log: Path,
    fault: Armed | None = None,
    kill: Callable[[int], None] | None = None,
) -> Ended:
    """`packprep ARGUMENTS` of each command in a fork, until one fails.

    kill: is given its pid while it runs. log: where its standard error goes.
    """

    def work() -> int:
        library = fault.arm() if fault is not None else None
        code = next(filter(None, (command(arguments) for arguments in commands)), 0)
        if library is not None:
            os.write(2, f"\ncalls {library.fault_count()}\n".encode())
        return code

    return in_fork(work, log, kill)


def in_fork(work: Callable[[], int], log: Path, kill: Callable[[int], None] | None = None) -> Ended:
    """Do some work in a fork, which ends with the exit code that it returns; see `forked`."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.stderr = os.fdopen(2, "w", buffering=1)
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if kill is not None:
        kill(pid)
    _, status = os.waitpid(pid, 0)
    return Ended(os.waitstatus_to_exitcode(status), log.read_text(errors="replace"))


def command(arguments: Sequence[str]) -> int:
    """`packprep ARGUMENTS` in this process. Returns its exit code."""
    from packprep.cli.main import main

    sys.argv = ["packprep", *arguments]
    try:
        main()
    except SystemExit as stopped:
        sys.stderr.flush()
        return int(stopped.code or 0)
    except BaseException:
        traceback.print_exc()
        return 70
    return 71


def clear(output: Path) -> None:
    """Take away everything that builds of an output leave."""
    for path in output.parent.glob(output.name + "*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def ended(pid: int) -> bool:
    """True if a child has ended; it is still to be waited for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def kill_in(stage: str, stage_now: Callable[[], str], delay: float) -> Callable[[int], None]:
    """Kills a build some seconds after it is seen in a stage."""

    def kill(pid: int) -> None:
        deadline = time.monotonic() + 60
        while stage_now() != stage and time.monotonic() < deadline:
            if ended(pid):
                return
            time.sleep(0.0005)
        time.sleep(delay)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    return kill


def kill_child(delay: float) -> Callable[[int], None]:
    """Kills a process that a build has started, some seconds after the first one is there."""

    def kill(pid: int) -> None:
        children: list[str] = []
        while not children and not ended(pid):
            with contextlib.suppress(OSError):  # a thread has ended
                paths = Path(f"/proc/{pid}/task").glob("*/children")
                children = [word for path in paths for word in path.read_text().split()]
            time.sleep(0.001)
        time.sleep(delay)
        for child in children[-1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)

    return kill


def small_disk(folder: Path, size: int) -> None:
    """Mount, or resize, a file system in memory of this many bytes.

    Only where `under_shim` gave a place for mounts.
    """
    folder.mkdir(exist_ok=True)
    new = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs"]
    how = ["-o", f"remount,size={size}"] if folder.is_mount() else new
    subprocess.run(["mount", *how, folder], check=True)


def under_shim(
    program: Path, arguments: list[str], **settings: Any
) -> "subprocess.CompletedProcess[str]":
    """Run `python PROGRAM ARGUMENTS --inside`, with the library where a compiler makes it.

    Where this user may have mounts of their own, it gets a place for them. --shim and --mounts tell
    it so. settings: of subprocess.run.
    """
    with tempfile.TemporaryDirectory() as folder:
        mount = ["unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
        mounts = subprocess.run(mount, capture_output=True).returncode == 0
        environment, shim = os.environ | {"PYTHONPATH": str(ROOT)}, shutil.which("cc") is not None
        if shim:
            library, source = f"{folder}/calls.so", str(Path(__file__).with_name("calls.c"))
            make = ["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"]
            subprocess.run(make, check=True)
            environment["LD_PRELOAD"] = library
        more = ["--inside", *["--shim"] * shim, *["--mounts"] * mounts]
        alone = mount[:2] if mounts else []
        command = [*alone, sys.executable, str(program), *arguments, *more]
        return subprocess.run(command, env=environment, text=True, **settings)
