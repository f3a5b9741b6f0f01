"""Windows planned and written while later units are still tokenized.

Only where it is known early what they hold.

In input order a window is known with its last unit. Where units are shuffled it is known only with
the last unit of the whole input, for the seed decides among all of them; and a mix, or a multiple
of packs, needs all lengths.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from packprep.config.mix import is_mix
from packprep.execute.job import Job
from packprep.execute.window_files import Windows
from packprep.tokens.store import TokenFile, rows_of_sources
from packprep.tokens.token_files import BASE_MEMORY, slice_memory, slices_ahead
from packprep.windows.placement import MEMORY_PER_DOCUMENT

_Made = TypeVar("_Made")
Clock = Callable[[str], AbstractContextManager[None]]


class EarlyWindows(Generic[_Made]):
    """Windows of a build whose token files come in order.

    A thread beside tokenization makes them one at a time.

    make: plans and writes a window of a split, given the Windows that it is in.
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
            and not is_mix(config.entries())
        )
        room = config.max_memory - BASE_MEMORY - (1 + slices_ahead(config)) * slice_memory(config)
        self._most = room // MEMORY_PER_DOCUMENT  # documents of a window beside tokenization
        self._pool = ThreadPoolExecutor(1)
        self._made: dict[tuple[str, int], Future[_Made]] = {}
        self._files: list[TokenFile] = []  # of the window that is not whole
        self._number = 0
        self._rows = [0] * len(job.sources)

    def add(self, file: TokenFile) -> None:
        """The next token file of the build."""
        if not self._known:
            return
        size = sum(before.text_bytes for before in self._files)
        if size >= self._job.config.window and file.unit != self._files[-1].unit:
            self._begin()
        self._files.append(file)

    def _begin(self) -> None:
        """Let the window be made, if there is memory for it."""
        read = rows_of_sources(self._files, len(self._rows))
        self._rows = [before + rows for before, rows in zip(self._rows, read, strict=True)]
        number, files = self._number, self._files
        self._number, self._files = number + 1, []
        if sum(file.documents for file in files) <= self._most:
            windows = Windows(
                self._job, files, self._clock, formed={number: files}, rows=self._rows
            )
            for split in self._job.splits:
                self._made[split, number] = self._pool.submit(self._make, windows, split, number)

    def result(self, split: str, number: int) -> _Made | None:
        """The window's result, waiting for it if it is running; None if it has not started.

        One that has not started then never does.
        """
        made = self._made.pop((split, number), None)
        return None if made is None or made.cancel() else made.result()

    def close(self) -> None:
        """Begin no more, and wait for the one that is made."""
        self._pool.shutdown(cancel_futures=True)
