"""Values read from slow files: kept in memory up to a limit, and read ahead by threads."""

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_THREADS = 16  # they wait for the file system, most of the time


class ReadCache(Generic[Key, Value]):
    """Values by key, of at most `limit` bytes; one that is larger is kept alone.

    read: returns a value and its bytes; called once at a time for each key. The least recently used
    value is dropped first. Half of the limit is for values that were read ahead and not used yet:
    they are dropped last, and further ones wait until one is used. Usable from several threads; a
    forked process starts with an empty cache.
    """

    def __init__(self, read: Callable[[Key], tuple[Value, int]], limit: int) -> None:
        self.limit, self._read = limit, read
        self._clear()

    def _clear(self) -> None:
        self._process, self._lock = os.getpid(), threading.Lock()
        self._used: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._ahead: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._size = self._size_ahead = 0
        self._reading: dict[Key, Future[tuple[Value, int]]] = {}
        self._wanted: deque[Key] = deque()
        self._threads = 0

    @property
    def size(self) -> int:
        """Bytes of the values that are kept."""
        return self._size

    def get(self, key: Key) -> Value:
        """The value of a key, read if necessary."""
        self._check_process()
        with self._lock:
            if (entry := self._used.get(key)) is not None:
                self._used.move_to_end(key)
                return entry[0]
            if (entry := self._ahead.pop(key, None)) is not None:
                self._used[key] = entry
                self._size_ahead -= entry[1]
        if entry is None:
            entry = self._load(key, ahead=False)
        self._start(1)
        return entry[0]

    def request(self, keys: Iterable[Key]) -> None:
        """Read these ahead, in this order, instead of those requested before."""
        self._check_process()
        wanted = dict.fromkeys(keys)
        with self._lock:
            for key in [key for key in self._ahead if key not in wanted]:
                self._used[key] = entry = self._ahead.pop(key)
                self._used.move_to_end(key, last=False)
                self._size_ahead -= entry[1]
            self._wanted = deque(wanted)
        self._start(_THREADS)

    def _check_process(self) -> None:
        if self._process != os.getpid():
            self._clear()  # threads of the parent, and what they lock, are not here

    def _load(self, key: Key, *, ahead: bool) -> tuple[Value, int]:
        with self._lock:
            if entry := self._used.get(key) or self._ahead.get(key):  # read a moment ago
                return entry
            future = self._reading.get(key)
            if is_first := future is None:
                future = self._reading[key] = Future()
        if not is_first:
            return future.result()
        try:
            entry = self._read(key)
        except BaseException as error:
            with self._lock:
                del self._reading[key]
            future.set_exception(error)
            raise
        with self._lock:
            del self._reading[key]
            self._insert(key, entry, ahead)
        future.set_result(entry)
        return entry

    def _insert(self, key: Key, entry: tuple[Value, int], ahead: bool) -> None:
        (self._ahead if ahead else self._used)[key] = entry
        self._size += entry[1]
        self._size_ahead += entry[1] if ahead else 0
        while self._size > self.limit and len(self._used) + len(self._ahead) > 1:
            others = self._used if len(self._used) > (not ahead) else self._ahead
            dropped = others.popitem(last=False)[1][1]
            self._size -= dropped
            self._size_ahead -= dropped if others is self._ahead else 0

    def _start(self, threads: int) -> None:
        """Start up to this many threads, if there is something to read and room for it."""
        with self._lock:
            more = (
                min(threads, _THREADS - self._threads, len(self._wanted)) if self._has_room else 0
            )
            self._threads += more
        for _ in range(more):
            threading.Thread(target=self._work, name="packprep-read", daemon=True).start()

    @property
    def _has_room(self) -> bool:
        return self._size_ahead < self.limit // 2

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._wanted or not self._has_room:
                    self._threads -= 1
                    return
                key = self._wanted.popleft()
                if key in self._used or key in self._ahead or key in self._reading:
                    continue
            with suppress(Exception):  # `get` reports it
                self._load(key, ahead=True)
