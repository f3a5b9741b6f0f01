"""Worker processes for text that may kill its tokenizer.

A worker that dies, hangs or takes too much memory is replaced, and its slice is tried again.

Threads of one process are faster and the default. Worker processes cost a copy of the text on disk
and a second of start-up each. In return, whatever a row does to a tokenizer, the build continues or
ends with a sentence that names the rows: a slice that fails three times stops it.
"""

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, cast

import pyarrow as pa

from packprep.engines.third_party import arenas
from packprep.execute.job import Job
from packprep.execute.worker import WORKING, result_of
from packprep.sources.units import Slice
from packprep.support.errors import StoppedError
from packprep.support.from_json import from_json
from packprep.support.linux import resident
from packprep.tokens.store import TokenFile
from packprep.tokens.token_files import BASE_MEMORY, slice_memory

COMMAND = (sys.executable, "-m", "packprep.execute.worker")
TRIES = 3
SLICES_PER_WORKER = 64  # then it is replaced, which frees memory that a tokenizer leaked
TIMEOUT = 600.0  # seconds for a batch of a slice, see `worker.Working`
_START = 300.0  # seconds to import everything and to load the tokenizer
_END = 5.0  # seconds in which a process that closed its pipe ends
_POLL_EVERY = 0.1  # seconds between checks of a worker's memory


class WorkerDied(Exception):  # noqa: N818 - an event that is handled here
    """Reason why there is no answer, to be read after "the process that tokenized it"."""


class Workers:
    """Worker processes of a build, started when they are needed.

    As many threads may call `tokenize` at once as there are workers.
    """

    def __init__(self, job: Job, workers: int, say: Callable[[str], None]) -> None:
        self.job = job
        self.say = say
        share = (job.config.max_memory - BASE_MEMORY) // workers
        self.memory = max(share, BASE_MEMORY + 2 * slice_memory(job.config.unit_size))
        self._idle: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()
        for _ in range(workers):
            self._idle.put(None)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        while not self._idle.empty():
            if (worker := self._idle.get()) is not None:
                worker.kill()

    def tokenize(self, piece: Slice, stop: threading.Event) -> TokenFile:
        """Token file of a slice. StoppedError, which names its rows, if every try failed.

        stop: another thread sets it to end this call with CancelledError.
        """
        with self._text(piece) as text:
            task = _task(piece, text)
            for left in reversed(range(TRIES)):
                try:
                    return self._call(task, stop)
                except WorkerDied as death:
                    reason = f"the process that tokenized them {death}"
                if left:
                    self.say(f"{self._place(piece)}: {reason}; trying again")
        raise StoppedError(
            f"{self._place(piece)}: {TRIES} times {reason}; remove the row that causes it (a "
            "smaller --unit-size names fewer rows), or give more --max-memory"
        )

    def _call(self, task: Mapping[str, object], stop: threading.Event) -> TokenFile:
        """Receipt that the next free worker makes of a task."""
        worker, kept = self._idle.get(), None
        try:
            worker = worker or _Worker(self.job, self.memory)
            answer = worker.call(task, stop)
            kept = worker if worker.calls < SLICES_PER_WORKER else None
        finally:
            if worker is not None and kept is None:
                worker.kill()
            self._idle.put(kept)
        return from_json(TokenFile, result_of(answer))

    @contextmanager
    def _text(self, piece: Slice) -> Iterator[Path]:
        """Write the text of a slice to a file that workers map into memory."""
        path = self.job.scratch / f"text-{piece.unit:06d}-{piece.slice:03d}.arrow"
        table = piece.table
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _place(self, piece: Slice) -> str:
        """Unit, files and rows of a slice, in words."""
        rows = [
            f"{self.job.sources[part.source].name} rows {first:,} to {first + part.rows - 1:,}"
            for part, first in zip(piece.parts, piece.first_rows, strict=True)
        ]
        return f"unit {piece.unit}, {', '.join(rows)}"


class _Worker:
    """One worker process and the pipes to it, used by one thread at a time.

    memory: bytes that it may take.
    """

    def __init__(self, job: Job, memory: int) -> None:
        # A process group of its own: Ctrl-C in the terminal reaches the build only, which ends the
        # worker. One thread: the other cores have workers of their own.
        self._process = subprocess.Popen(
            [*COMMAND, str(job.staging)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"MALLOC_ARENA_MAX": str(arenas(job.config.tokenizing, 1))}
            | os.environ
            | {"RAYON_NUM_THREADS": "1"},
            process_group=0,
        )
        pipes = self._process.stdin, self._process.stdout, self._process.stderr
        self._tasks, self._answers, self._words = (cast("IO[bytes]", pipe) for pipe in pipes)
        self._memory = memory
        self._read = b""
        self._errors = b""
        self.calls = 0

    def call(self, task: Mapping[str, object], stop: threading.Event) -> dict[str, object]:
        """Answer to a task; see `answer`."""
        if not self.calls:
            self.answer(_START, stop)  # that it is ready
        self.calls += 1
        try:
            self._tasks.write(json.dumps(task).encode() + b"\n")
            self._tasks.flush()
        except BrokenPipeError:
            raise WorkerDied(self._how_it_died()) from None
        return self.answer(TIMEOUT, stop)

    def answer(self, timeout: float, stop: threading.Event) -> dict[str, object]:
        """Next answer of the worker.

        WorkerDied if it dies, takes too much memory, or says nothing for `timeout` seconds.
        """
        reading = [self._answers, self._words]
        deadline = time.monotonic() + timeout
        while b"\n" not in self._read.lstrip(WORKING):
            ready, _, _ = select.select(reading, [], [], _POLL_EVERY)
            if self._words in ready:
                block = os.read(self._words.fileno(), 1 << 16)
                self._errors = (self._errors + block)[-4096:]
                if not block:
                    reading.remove(self._words)
            if self._answers in ready:
                block = os.read(self._answers.fileno(), 1 << 16)
                if not block:
                    raise WorkerDied(self._how_it_died())
                self._read += block
                deadline = time.monotonic() + timeout
                continue
            if stop.is_set():
                raise CancelledError
            if time.monotonic() > deadline:
                raise WorkerDied(f"made no progress for {timeout:,.0f} seconds")
            # Without mapped files; unknown if the system does not tell.
            sizes = resident(self._process.pid)
            if sizes is not None and (taken := sizes[0] - sizes[1]) > self._memory:
                raise WorkerDied(
                    f"took {taken / 1e6:,.0f} MB of memory, more than its share of "
                    f"{self._memory / 1e6:,.0f} MB"
                )
        line, _, self._read = self._read.lstrip(WORKING).partition(b"\n")
        answer: dict[str, object] = json.loads(line)
        return answer

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        for pipe in (self._tasks, self._answers, self._words):
            with contextlib.suppress(OSError):
                pipe.close()

    def _how_it_died(self) -> str:
        try:
            code = self._process.wait(_END)
        except subprocess.TimeoutExpired:
            return "no longer answers"
        with contextlib.suppress(OSError):
            self._errors += self._words.read() or b""
        if code == -signal.SIGKILL:
            return "was killed, perhaps by the system for its memory"
        lines = self._errors.decode(errors="replace").strip().splitlines()
        message = f": {lines[-1][:200]}" if lines else ""
        name = signal.Signals(-code).name if code < 0 else f"code {code}"
        return f"ended with {name}{message}"


def _task(piece: Slice, text: Path) -> dict[str, object]:
    """The task to tokenize a slice. text: the file of its table."""
    return {
        "extent": vars(piece.extent),
        "parts": [asdict(part) for part in piece.parts],
        "first_rows": piece.first_rows,
        "text": str(text),
    }
