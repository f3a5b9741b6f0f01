"""Work done ahead in other threads.

Its results come in order, and so many at most wait to be taken.
"""

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


def ahead(
    submit: Callable[[_Item], "Future[_Made]"], items: Iterable[_Item], most: int
) -> Iterator[_Made]:
    """Results of work on items, in order, some begun ahead.

    submit: begins one. most: begun beside the one that is taken.
    """
    running: deque[Future[_Made]] = deque()
    try:
        for item in items:
            running.append(submit(item))
            if len(running) > most:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        for future in running:
            future.cancel()


class RenewedThreads:
    """Threads that are replaced after so much work, and with them their caches.

    Libraries keep caches for each thread, and these grow.

    They are made when they are needed, and made anew in a process that was forked.
    """

    def __init__(self, work_each: float = math.inf) -> None:
        """Note the work of a thread before it is replaced.

        work_each: its average, in the unit of `submit`.
        """
        self._each = work_each
        self._left = 0.0
        self._process = os.getpid()
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def submit(
        self, threads: int, work: int, function: Callable[..., _Made], *arguments: Any
    ) -> "Future[_Made]":
        """Run function(*arguments), which is so much work, in one of so many threads."""
        with self._lock:
            if self._process != os.getpid():
                self._pool, self._process = None, os.getpid()
            if self._pool is None or self._left <= 0:
                if self._pool is not None:
                    self._pool.shutdown(wait=False)
                self._pool, self._left = ThreadPoolExecutor(threads), threads * self._each
            self._left -= work
            return self._pool.submit(function, *arguments)
