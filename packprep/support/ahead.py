"""Work cut into parts, and done in threads a bounded number of steps ahead of its results."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .errors import Stopping

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def ahead(
    work: Callable[[_Item], _Result], items: Iterable[_Item], at_once: int, waiting: int = 1
) -> Iterator[_Result]:
    """Results of `work` for each item, in order.

    at_once: threads. waiting: results that may wait besides those in work. The first error, in the
    order of the items, is raised once no thread works, and later items are not begun.
    """
    waits = True
    running: deque[Future[_Result]] = deque()
    pool = ThreadPoolExecutor(at_once)
    try:
        for item in items:
            running.append(pool.submit(work, item))
            if len(running) >= at_once + waiting:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    except Stopping:
        waits = False
        raise
    finally:
        pool.shutdown(wait=waits, cancel_futures=True)


def ranges(sizes: NDArray[np.integer[Any]], most: int) -> Iterator[tuple[int, int]]:
    """Ranges of consecutive items of at most `most` together, or of one item."""
    ends, first = np.append(0, np.cumsum(sizes)), 0
    while first < len(sizes):
        last = int(np.searchsorted(ends, ends[first] + most, side="right")) - 1
        last = max(last, first + 1)
        yield first, last
        first = last
