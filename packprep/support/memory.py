"""Memory that a process holds, and giving back the part that mapped files take."""

import ctypes
import mmap
import os
import re
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa


def resident(process: int | str = "self") -> tuple[int, int] | None:
    """Bytes that a process holds, and how many of them are of files that it maps.

    None where the system doesn't say.
    """
    try:
        pages = Path(f"/proc/{process}/statm").read_text().split()
        size = os.sysconf("SC_PAGE_SIZE")
        return int(pages[1]) * size, int(pages[2]) * size
    except (OSError, IndexError, ValueError):
        return None


def peak() -> int:
    """Bytes this process has held at most, mapped files included."""
    status = Path("/proc/self/status")
    if status.exists() and (found := re.search(r"VmHWM:\s*(\d+) kB", status.read_text())):
        return int(found[1]) * 1024
    # On Linux this would count what the process was started from, if that is larger; macOS counts
    # bytes, others kB.
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


@dataclass(frozen=True)
class MappedFiles:
    """Files as they are mapped into memory, each whole.

    most: bytes that the process should hold, or None.

    What is read of a mapped file counts as memory of the process until the system wants it back, or
    `relieve` lets it go: it stays in the system's cache, from where it is mapped again when it is
    next read.
    """

    files: Sequence[pa.Buffer] = ()
    most: int | None = None

    @staticmethod
    def open(paths: Sequence[Path], most: int | None) -> "MappedFiles":
        files = []
        for path in paths:
            with pa.memory_map(str(path)) as file:
                files.append(file.read_buffer())
        return MappedFiles(files, most)

    def relieve(self, coming: int = 0) -> None:
        """Let go of what was read, where the process holds too much.

        coming: bytes that it is about to take.
        """
        if self.most is None or (held := resident()) is None or held[0] + coming <= self.most:
            return
        for file in self.files:
            ctypes.CDLL(None).madvise(
                ctypes.c_void_p(file.address), ctypes.c_size_t(file.size), mmap.MADV_DONTNEED
            )
