"""Work ahead of the training loop: a thread makes batches, another asks for the next shards."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from queue import SimpleQueue
from typing import TypeVar

from packprep.schemas.errors import FormatError

from .order import EpochOrder
from .shards import PackedShards

Item = TypeVar("Item")


def prefetched(
    items: Iterator[Item], depth: int, count_step: Callable[[int], None]
) -> Iterator[Item]:
    """Yield the items, which a thread makes up to `depth` ahead.

    count_step: called with the number of each item, from 0, before it is yielded. An exception of
    the thread is raised here. Closing the iterator stops the thread.
    """
    queue: SimpleQueue[list[Item] | BaseException | None] = SimpleQueue()
    free = threading.Semaphore(depth)
    stop = threading.Event()

    def work() -> None:
        try:
            while True:
                free.acquire()
                if stop.is_set():
                    return
                queue.put([next(items)])
        except StopIteration:
            queue.put(None)
        except BaseException as error:  # raised in the reader's thread
            queue.put(error)

    thread = threading.Thread(target=work, name="packprep-prefetch", daemon=True)
    thread.start()
    try:
        for step in count():
            box = queue.get()
            if box is None:
                return
            if isinstance(box, BaseException):
                raise box
            free.release()
            count_step(step)
            yield box.pop()  # keep no reference: the reader decides how long the item lives
    finally:
        stop.set()
        free.release()
        thread.join()


class Readahead:
    """Asks for the shards of this window and the next, once each, in a thread: asking may wait."""

    def __init__(self, shards: PackedShards, order: EpochOrder) -> None:
        self._shards, self._order, self._asked = shards, order, -1

    def at(self, place: int) -> None:
        """The reader has come to this place of the order."""
        window = self._order.window_at(place)
        last = min(window + 1, len(self._order.windows) - 1)
        if last <= self._asked:
            return
        shards = [
            shard
            for number in range(max(window, self._asked + 1), last + 1)
            for shard in self._order.windows[number]
        ]
        self._asked = last
        threading.Thread(target=self._ask, args=(shards,), daemon=True).start()

    def _ask(self, shards: list[int]) -> None:
        with suppress(FormatError, OSError):  # reading will say what is wrong
            self._shards.read_ahead(shards)
