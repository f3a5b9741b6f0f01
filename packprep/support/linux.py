"""Everything that only Linux can do, behind one switch, `LINUX`.

On other systems, and on a Linux without the call, each function does what its docstring says. For
most of them that is nothing, because they only save time or memory. `__main__` imports this module
before anything else, so ctypes is loaded only when a function needs it.
"""

import contextlib
import functools
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

LINUX: bool = sys.platform == "linux"

# "always [madvise] never": the one in brackets is set. With `always` malloc has huge pages already,
# with `never` no process gets them.
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_TOKENIZING = {"build", "plan"}  # commands

_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
_BEGIN_TO_WRITE = 2  # SYNC_FILE_RANGE_WRITE
_AT_CWD, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_DONT_NEED = 4  # MADV_DONTNEED
_ARENA_MAX = -8  # M_ARENA_MAX of glibc's mallopt


@functools.cache
def _c_function(name: str, arguments: str) -> Callable[..., int] | None:
    """A function of the C library; None if it has none of this name.

    arguments: names of ctypes types, as in "c_int c_int64".
    """
    import ctypes

    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function.argtypes = [getattr(ctypes, argument) for argument in arguments.split()]
    return function


def _call(name: str, arguments: str, *values: Any) -> int | None:
    """Result of a function of the C library; None if the system has no such function."""
    function = _c_function(name, arguments) if LINUX else None
    return None if function is None else function(*values)


def begin_with_huge_pages() -> None:
    """Restart a command that tokenizes with malloc in huge pages.

    That saves 10 % of the cycles of a build with a fast engine. glibc reads the setting from the
    environment when a process begins, so the process executes itself again, with the same number,
    before it has imported anything. The process continues as it is on other systems, if huge pages
    need not or cannot be requested, and if GLIBC_TUNABLES is set.
    """
    if "GLIBC_TUNABLES" in os.environ or _TOKENIZING.isdisjoint(sys.argv[1:2]):
        return
    with contextlib.suppress(OSError):  # a sandbox may hide the file or forbid the restart
        if LINUX and "[madvise]" in _HUGE_PAGES.read_text():
            tuned = os.environ | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], tuned)


def limit_arenas(most: int) -> None:
    """Limit glibc's malloc to `most` arenas. Elsewhere nothing: other allocators have none."""
    _call("mallopt", "c_int c_int", _ARENA_MAX, most)


def reserve(handle: int, size: int) -> None:
    """Preallocate `size` bytes of disk for an open file, whose length stays.

    That is a third less work than page by page. Errors are ignored: a full disk reports itself when
    the file is written. Elsewhere nothing: the file grows as it is written.
    """
    if size:
        _call("fallocate", "c_int c_int c_int64 c_int64", handle, _KEEP_SIZE, 0, size)


def begin_to_store(handle: int, first: int, last: int) -> None:
    """Have bytes first..last - 1 of an open file written to disk, without waiting for it.

    Elsewhere nothing: `os.fsync` then has more to wait for.
    """
    arguments = "c_int c_int64 c_int64 c_uint"
    _call("sync_file_range", arguments, handle, first, last - first, _BEGIN_TO_WRITE)


def exchange(one: Path, other: Path) -> bool:
    """Swap two directories in one step, so that readers always find one of them.

    Returns False if nothing was done, on other systems or file systems; the caller then renames
    twice.
    """
    names = os.fsencode(one), os.fsencode(other)
    arguments = "c_int c_char_p c_int c_char_p c_uint"
    done = _call("renameat2", arguments, _AT_CWD, names[0], _AT_CWD, names[1], _EXCHANGE)
    return done == 0


def release(address: int, size: int) -> None:
    """Free the memory of a mapped file; the file is read again when it is next used.

    Elsewhere nothing: the system frees it when it needs memory.
    """
    _call("madvise", "c_void_p c_size_t c_int", address, size, _DONT_NEED)


def end_with_parent() -> None:
    """Have the system kill this process when its parent ends.

    Elsewhere nothing: the end of the parent closes standard input, and the process ends after that.
    """
    parent = os.getppid()
    if _call("prctl", "c_int c_ulong", _PARENT_DEATH_SIGNAL, signal.SIGKILL) is None:
        return
    if os.getppid() != parent:  # it ended before the system was asked
        os._exit(1)


def offer_to_be_killed() -> None:
    """Make this process the first that the system kills when memory runs out. Elsewhere nothing."""
    with contextlib.suppress(OSError):
        if LINUX:
            Path("/proc/self/oom_score_adj").write_text("1000")


def resident(process: int | str = "self") -> tuple[int, int] | None:
    """Bytes of memory of a process, and how many of them are mapped files.

    None elsewhere, and if there is no such process.
    """
    if not LINUX:
        return None
    try:
        pages = Path(f"/proc/{process}/statm").read_text().split()
        size = os.sysconf("SC_PAGE_SIZE")
        return int(pages[1]) * size, int(pages[2]) * size
    except (OSError, IndexError, ValueError):
        return None


def peak_resident() -> int | None:
    """Peak memory of this process in bytes, mapped files included; None elsewhere.

    getrusage would count the parent instead, if the parent was larger when it forked.
    """
    status = Path("/proc/self/status")
    if LINUX and status.exists() and (peak := re.search(r"VmHWM:\s*(\d+) kB", status.read_text())):
        return int(peak[1]) * 1024
    return None


def processor() -> str | None:
    """Description of the processor by the system, with its features; None elsewhere."""
    try:
        return Path("/proc/cpuinfo").read_text("utf-8") if LINUX else None
    except OSError:
        return None
