"""Work in threads a bounded number of steps ahead of its results, or in processes.

A process is a Python of its own that gets arguments and returns results, pickled, through its
pipes. It imports nothing of the program that uses packprep.
"""

import contextlib
import gc
import os
import pickle
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .errors import StoppedError, Stopping

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


@contextlib.contextmanager
def in_processes(function: Callable[..., Any], count: int) -> Iterator[Callable[..., Any]]:
    """Give the function as one that `count` processes run; as many threads may call it at once.

    Under two processes it runs here. It and what it gets and returns must be picklable.
    """
    if count < 2:
        yield function
        return
    free: queue.SimpleQueue[Any] = queue.SimpleQueue()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", f"from {__name__} import serve; serve()"]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            process: Any = subprocess.Popen(command, env=environment, **pipes)
            stack.callback(_end, process)
            pickle.dump(function, process.stdin)
            free.put(process)

        def call(*given: Any) -> Any:
            process = free.get()
            try:
                pickle.dump(given, process.stdin, pickle.HIGHEST_PROTOCOL)
                process.stdin.flush()
                result, error = pickle.load(process.stdout)  # noqa: S301 of our own process
            except (EOFError, OSError, pickle.UnpicklingError):
                raise StoppedError(
                    "a helper process has died; run the command again, with fewer of them "
                    "(--num-proc) if memory is short"
                ) from None
            finally:
                free.put(process)
            if error is not None:
                raise error
            return result

        yield call


def _end(process: Any) -> None:
    process.kill()
    process.communicate()  # closes the pipes too, whatever is left in them


def serve() -> None:
    """Call the function until the pipe is closed. What it prints goes to stderr."""
    gc.set_threshold(100_000)  # as in the command: imported objects stay alive
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        function = pickle.load(sys.stdin.buffer)  # noqa: S301 of the process that began this one
        while True:
            given = pickle.load(sys.stdin.buffer)  # noqa: S301
            try:
                made: tuple[Any, Any] = function(*given), None
            except Exception as error:
                made = None, error
            pickle.dump(made, answers, pickle.HIGHEST_PROTOCOL)
            answers.flush()
