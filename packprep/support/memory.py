"""Memory that a process holds, and giving back the part that mapped files take."""

import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from packprep.support.linux import peak_resident, release, resident


def peak() -> int:
    """Bytes this process has held at most, mapped files included."""
    if (held := peak_resident()) is not None:
        return held
    # macOS counts bytes, others kB.
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
            release(file.address, file.size)
