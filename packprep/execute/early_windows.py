"""Windows that are planned and written while later units are still tokenized.

This is possible if the units of a window are known early. In input order a window is known with its
last unit. With shuffled units it is known only with the last unit of the whole input, because the
seed permutes all of them. A mix, and packs_multiple_of, need the lengths of all documents, and
skip_rows needs the number of rows of each source.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from packprep.execute.job import Job
from packprep.execute.window_files import Windows
from packprep.tokens.store import TokenFile
from packprep.tokens.token_files import BASE_MEMORY, slice_memory, slices_ahead
from packprep.windows.specs import WindowSpec, list_windows

_Made = TypeVar("_Made")
Clock = Callable[[str], AbstractContextManager[None]]


class EarlyWindows(Generic[_Made]):
    """Windows of a build whose token files arrive in order.

    While other threads tokenize, one thread makes these windows one at a time.

    make: plans and writes a window.
    """

    def __init__(
        self, job: Job, clock: Clock, make: Callable[[Windows, WindowSpec[TokenFile]], _Made]
    ) -> None:
        config = job.config
        self._config, self._make = config, make
        self._known = (
            config.pack_order.name == "input"
            and config.packer.name != "balanced"
            and config.num_proc > 1
            and not job.windows_need_tokens
            and not any(source.skip_rows for source in job.sources)
        )
        ahead = slices_ahead(config.running, config.unit_size, isolated=config.isolated)
        self._room = config.max_memory - BASE_MEMORY - (1 + ahead) * slice_memory(config.unit_size)
        self._pool = ThreadPoolExecutor(1)
        self._made: dict[str, Future[_Made]] = {}
        self._files: list[TokenFile] = []
        self._windows = Windows(job, self._files, clock)
        self._number = self._first = 0  # of the window that is not complete, and its first file

    def add(self, file: TokenFile) -> None:
        """Take the next token file of the build, which may complete a window."""
        if not self._known:
            return
        self._files.append(file)
        known = list_windows(
            self._files[self._first :],
            self._config.pack_rules(),
            self._config.writing,
            first=self._number,
        )
        if known[-1].number > self._number:
            self._number, self._first = self._number + 1, len(self._files) - 1
        for spec in known:
            if spec.number < self._number and spec.memory <= self._room:
                self._made[spec.name] = self._pool.submit(self._make, self._windows, spec)

    def result(self, spec: WindowSpec[TokenFile]) -> _Made | None:
        """The window's result, waiting for it if it is running; None if it has not started.

        A window that has not started is cancelled.
        """
        made = self._made.pop(spec.name, None)
        return None if made is None or made.cancel() else made.result()

    def close(self) -> None:
        """Cancel the windows that have not started, and wait for the running one."""
        self._pool.shutdown(cancel_futures=True)
