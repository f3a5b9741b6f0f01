"""Work done ahead in other threads: results come in order, and a limited number of them wait."""

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
    """Results of work on items, in order.

    submit: begins the work on an item. most: items that are begun ahead of the one that is taken.
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
    """Threads that are replaced after an amount of work, to free the caches of libraries.

    Libraries keep a growing cache for each thread. Threads are started when they are needed, and
    started again in a forked process.
    """

    def __init__(self, work_each: float = math.inf) -> None:
        """Set the limit. work_each: average work of a thread before it is replaced, see `submit`."""
        self._each = work_each
        self._left = 0.0
        self._process = os.getpid()
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def submit(
        self, threads: int, work: int, function: Callable[..., _Made], *arguments: Any
    ) -> "Future[_Made]":
        """Run function(*arguments) in one of `threads` threads.

        work: amount of work of this call, in any unit.
        """
        with self._lock:
            if self._process != os.getpid():
                self._pool, self._process = None, os.getpid()
            if self._pool is None or self._left <= 0:
                if self._pool is not None:
                    self._pool.shutdown(wait=False)
                self._pool, self._left = ThreadPoolExecutor(threads), threads * self._each
            self._left -= work
            return self._pool.submit(function, *arguments)
