"""Work ahead of the training loop: a thread makes batches, another asks for the next shards."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from time import perf_counter
from typing import Generic, TypeVar

from packprep.schemas.errors import FormatError

from .order import EpochOrder
from .shards import PackedShards

Item = TypeVar("Item")
# Seconds. Handing an item to another thread costs about 50 microseconds, so a reader that comes
# back sooner than this makes the next item faster than it could wait for it.
_QUICK = 200e-6
# Seconds until the thread polls again whether a reader that was quick has become slow.
_NAP = 20e-3


def prefetched(
    items: Iterator[Item], depth: int, count_step: Callable[[int], None]
) -> Iterator[Item]:
    """Yield the items, which a thread makes up to `depth` ahead while the reader is busy.

    A reader that comes back within 0.2 ms makes the items itself: waking the thread for each would
    halve its rate. The items are the same, in the same order.

    count_step: called with the number of each item, from 0, before it is yielded. An exception of
    the thread is raised here. Closing the iterator stops the thread.
    """
    queue = _Queue(items, depth)
    thread = threading.Thread(target=queue.fill, name="packprep-prefetch", daemon=True)
    thread.start()
    try:
        for step in count():
            box = queue.take()
            if box is None:
                return
            if isinstance(box, BaseException):
                raise box
            count_step(step)
            yield box.pop()  # keep no reference: the reader decides how long the item lives
    finally:
        queue.stop()
        if thread is not threading.current_thread():  # which may collect a dropped iterator
            thread.join()


class _Queue(Generic[Item]):
    """Items made ahead by `fill` in a thread of its own, and by `take` when there are none.

    Each is in a list of one, so that the queue keeps no reference to it. An exception, or None for
    the end, is the last entry.
    """

    def __init__(self, items: Iterator[Item], depth: int) -> None:
        self._items, self._depth = items, depth
        self._made: deque[list[Item] | BaseException | None] = deque()
        self._making = threading.Lock()
        self._wake = threading.Event()
        self._stopped = self._inside = self._asleep = False
        self._visits = 0
        self._quick, self._left = True, perf_counter()

    def take(self) -> list[Item] | BaseException | None:
        """Return the next entry: from the queue, from the thread that makes it, or made here."""
        self._quick = perf_counter() - self._left < _QUICK
        self._inside = True
        self._visits += 1
        if self._made:
            box = self._made.popleft()
        else:
            with self._making:  # waits for the thread if it is making this entry
                box = self._made.popleft() if self._made else self._make()
        self._inside = False
        self._left = perf_counter()
        # After the pop: `fill` writes _asleep before it reads the length, so one sees the other.
        if self._asleep or not self._quick:
            self._asleep = False
            self._wake.set()
        return box

    def fill(self) -> None:
        """Make entries while the reader is away and there is room, until stopped or at the end."""
        while True:
            self._asleep = True
            while not self._stopped and len(self._made) >= self._depth:
                self._pause(None)
                self._asleep = True
            self._asleep = False
            if not self._stopped and (self._quick or self._inside):
                visits = self._visits
                self._pause(_NAP)
                if not self._stopped and (self._inside or self._visits != visits):
                    continue
            with self._making:
                if self._stopped:
                    return
                if len(self._made) < self._depth:
                    box = self._make()
                    is_last = not isinstance(box, list)
                    self._made.append(box)
                    del box
                    if is_last:
                        return

    def stop(self) -> None:
        """Let `fill` return."""
        self._stopped = True
        self._wake.set()

    def _pause(self, seconds: float | None) -> None:
        self._wake.wait(seconds)
        self._wake.clear()

    def _make(self) -> list[Item] | BaseException | None:
        try:
            return [next(self._items)]
        except StopIteration:
            return None
        except BaseException as error:  # raised in the reader's thread
            return error


class Readahead:
    """Prefetches the shards of the current window and the next, once each, in a thread.

    first_shard: stored number of the first shard of the order. elsewhere: other processes read.
    """

    def __init__(
        self, shards: PackedShards, order: EpochOrder, first_shard: int, elsewhere: bool = False
    ) -> None:
        self._shards, self._order, self._first = shards, order, first_shard
        self._elsewhere = elsewhere
        self._requested = -1

    def advance(self, place: int) -> None:
        """Request the shards that a reader at this place of the order needs next.

        FormatError if the size of one has changed.
        """
        window = self._order.window_at(place)
        last = min(window + 1, len(self._order.windows) - 1)
        if last <= self._requested:
            return
        needed = self._shards_of(range(window, last + 1))
        new = self._shards_of(range(max(window, self._requested + 1), last + 1))
        self._requested = last
        self._shards.check_sizes(needed)
        threading.Thread(target=self._request, args=(new, needed), daemon=True).start()

    def _shards_of(self, windows: range) -> list[int]:
        return [self._first + shard for number in windows for shard in self._order.windows[number]]

    def _request(self, new: list[int], needed: list[int]) -> None:
        with suppress(FormatError, OSError):  # reading the shard reports it
            self._shards.read_ahead(new, () if self._elsewhere else needed)
