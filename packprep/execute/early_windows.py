"""Windows that are planned and written while later units are still tokenized.

This is possible if the units of a window are known early. In input order a window is known with its
last unit. With shuffled units it is known only with the last unit of the whole input, because the
seed permutes all of them. A mix, and packs_multiple_of, need the lengths of all documents.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from packprep.execute.job import Job
from packprep.execute.window_files import Windows
from packprep.tokens.store import TokenFile, rows_of_sources
from packprep.tokens.token_files import BASE_MEMORY, slice_memory, slices_ahead
from packprep.windows.placement import MEMORY_PER_DOCUMENT

_Made = TypeVar("_Made")
Clock = Callable[[str], AbstractContextManager[None]]


class EarlyWindows(Generic[_Made]):
    """Windows of a build whose token files arrive in order.

    While other threads tokenize, one thread makes these windows one at a time.

    make: plans and writes a window: its `Windows`, its split and its number.
    """

    def __init__(self, job: Job, clock: Clock, make: Callable[[Windows, str, int], _Made]) -> None:
        config = job.config
        self._job, self._clock, self._make = job, clock, make
        self._known = (
            config.order == "input"
            and config.packs_multiple_of == 1
            and config.strategy != "balanced"
            and config.num_proc > 1
            and job.planner is None
            and not config.is_mix
        )
        ahead = slices_ahead(config.running, config.unit_size)
        room = config.max_memory - BASE_MEMORY - (1 + ahead) * slice_memory(config.unit_size)
        self._most = room // MEMORY_PER_DOCUMENT  # documents of a window, while others tokenize
        self._pool = ThreadPoolExecutor(1)
        self._made: dict[tuple[str, int], Future[_Made]] = {}
        self._files: list[TokenFile] = []  # of the window that is not complete
        self._number = 0
        self._rows = [0] * len(job.sources)

    def add(self, file: TokenFile) -> None:
        """Take the next token file of the build."""
        if not self._known:
            return
        size = sum(before.text_bytes for before in self._files)
        if size >= self._job.config.window and file.unit != self._files[-1].unit:
            self._begin()
        self._files.append(file)

    def _begin(self) -> None:
        """Submit the complete window, if there is memory for it."""
        read = rows_of_sources(self._files, len(self._rows))
        self._rows = [before + rows for before, rows in zip(self._rows, read, strict=True)]
        number, files = self._number, self._files
        self._number, self._files = number + 1, []
        if sum(file.documents_made for file in files) <= self._most:
            windows = Windows(
                self._job, files, self._clock, formed={number: files}, rows=self._rows
            )
            for split in self._job.splits:
                self._made[split, number] = self._pool.submit(self._make, windows, split, number)

    def result(self, split: str, number: int) -> _Made | None:
        """The window's result, waiting for it if it is running; None if it has not started.

        A window that has not started is cancelled.
        """
        made = self._made.pop((split, number), None)
        return None if made is None or made.cancel() else made.result()

    def close(self) -> None:
        """Cancel the windows that have not started, and wait for the running one."""
        self._pool.shutdown(cancel_futures=True)
