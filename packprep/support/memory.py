"""Memory of this process, and release of the part that mapped files take."""

import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from packprep.support.linux import peak_resident, release, resident


def peak() -> int:
    """Peak memory of this process in bytes, mapped files included."""
    if (most_resident := peak_resident()) is not None:
        return most_resident
    # macOS counts bytes, other systems kB.
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


@dataclass(frozen=True)
class MappedFiles:
    """Files that are mapped into memory as a whole.

    most: bytes of memory that the process should have at most, or None.

    Pages that were read count as memory of the process until the system reclaims them or `relieve`
    releases them. They stay in the system's cache, and are mapped again when they are next read.
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
        """Release pages that were read, if the process has too much memory.

        coming: bytes that it is about to allocate.
        """
        if self.most is None or (sizes := resident()) is None or sizes[0] + coming <= self.most:
            return
        for file in self.files:
            release(file.address, file.size)
