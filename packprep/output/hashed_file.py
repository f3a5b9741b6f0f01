"""A file object that hashes what is written to it, while the system writes it to disk."""

import hashlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from packprep.support.linux import begin_to_store, reserve

_FLUSHED = 32 << 20  # bytes after which the system is asked to write them to disk
_SMALL = 1 << 16  # bytes: a smaller block is hashed together with the next ones
_MOST_SMALL = 100  # blocks that are hashed together
_WAITING = 8  # groups of blocks that may wait in memory for the hashing thread


class LateSha256:
    """A sha256 that a second thread computes. A block must not change after `update`."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._unhashed: list[memoryview] = []
        self._hashing: deque[Future[None]] = deque()
        self._pool = ThreadPoolExecutor(1)

    def update(self, block: memoryview) -> None:
        self._unhashed.append(block)
        if block.nbytes >= _SMALL or len(self._unhashed) > _MOST_SMALL:
            self._hash(at_most=_WAITING)

    def _hash(self, at_most: int) -> None:
        """Submit the unhashed blocks; return when at most `at_most` groups wait in memory."""
        self._hashing.append(self._pool.submit(self._update, self._unhashed))
        self._unhashed = []
        while len(self._hashing) > at_most:
            self._hashing.popleft().result()

    def _update(self, blocks: list[memoryview]) -> None:
        for block in blocks:
            self._sha256.update(block)

    def hexdigest(self) -> str:
        """Hexadecimal sha256 of all blocks. Call it once, at the end."""
        self._hash(at_most=0)
        self._pool.shutdown()
        return self._sha256.hexdigest()


class HashedFile:
    """A file to write, as Arrow takes it. The owner of `file` flushes and closes that.

    file: of a disk, or an upload to a store. hasher: takes all that is written. begun: bytes in the
    file. room: lower bound of all its bytes, which are preallocated.
    """

    def __init__(self, file: Any, hasher: Any, *, begun: int = 0, room: int = 0) -> None:
        self._file, self._hash = file, hasher
        self._on_disk = hasattr(file, "fileno")
        self.bytes = self._flushed = begun
        self.closed = False
        if self._on_disk:
            reserve(file.fileno(), room)

    def write(self, data: Any) -> int:
        block = memoryview(data)
        self._hash.update(block)
        self._file.write(block)
        self.bytes += block.nbytes
        if self._on_disk and self.bytes - self._flushed >= _FLUSHED:
            self._file.flush()
            # So that the final sync is short.
            begin_to_store(self._file.fileno(), self._flushed, self.bytes)
            self._flushed = self.bytes
        return block.nbytes

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.bytes

    def flush(self) -> None:
        """Do nothing: only complete files are read."""

    def close(self) -> None:
        self.closed = True

    def digest(self) -> str:
        """Hexadecimal digest of everything written. Call it once, at the end."""
        return str(self._hash.hexdigest())
