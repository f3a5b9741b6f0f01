"""A file object that hashes the bytes written to it, in a second thread."""

import hashlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

_SMALL = 1 << 16  # bytes: a smaller block is hashed together with the next ones
_MOST_SMALL = 100  # blocks that are hashed together
_WAITING = 8  # groups of blocks that may wait in memory for the hashing thread


class HashingFile:
    """A file that computes the sha256 of everything written to it.

    One thread hashes the blocks that another thread writes. A block must not change after `write`.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self._unhashed: list[memoryview] = []
        self._hashing: deque[Future[None]] = deque()
        self._pool = ThreadPoolExecutor(1)
        self.bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._unhashed.append(view)
        if view.nbytes >= _SMALL or len(self._unhashed) > _MOST_SMALL:
            self._hash(at_most=_WAITING)
        self._file.write(view)
        self.bytes += view.nbytes
        return view.nbytes

    def _hash(self, at_most: int) -> None:
        """Submit the unhashed blocks; return when at most `at_most` groups wait in memory."""
        self._hashing.append(self._pool.submit(self._update, self._unhashed))
        self._unhashed = []
        while len(self._hashing) > at_most:
            self._hashing.popleft().result()

    def _update(self, blocks: list[memoryview]) -> None:
        for block in blocks:
            self._sha256.update(block)

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        """Do nothing: the owner of the file flushes it when it is complete."""

    def close(self) -> None:
        self.closed = True

    def digest(self) -> str:
        """Hexadecimal sha256 of everything written. Call it once, at the end."""
        self._hash(at_most=0)
        self._pool.shutdown()
        return self._sha256.hexdigest()
