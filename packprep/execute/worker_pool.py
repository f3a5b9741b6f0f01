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

import pyarrow as pa

from packprep.engines.third_party import arenas
from packprep.execute.job import Job
from packprep.execute.worker import WORKING
from packprep.schemas.storage.store_errors import StoreError
from packprep.sources.units import Slice
from packprep.support.errors import InputError, StoppedError
from packprep.support.from_json import from_json
from packprep.support.linux import resident
from packprep.tokens.store import TokenFile
from packprep.tokens.token_files import BASE_MEMORY, DocumentError, slice_memory

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
        self._living: set[_Worker] = set()
        self._stop = threading.Event()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in list(self._living):
            worker.kill()

    def tokenize(self, piece: Slice, stop: threading.Event) -> TokenFile:
        """Token file of a slice. StoppedError, which names its rows, if every try failed.

        stop: another thread sets it to end this call with CancelledError.
        """
        self._stop = stop
        with self._text(piece) as text:
            task = _task(piece, text)
            for _ in range(TRIES - 1):
                try:
                    return self._call(task)
                except WorkerDied as death:
                    self.say(
                        f"{self._place(piece)}: the process that tokenized them {death}; trying "
                        "again"
                    )
            try:
                return self._call(task)
            except WorkerDied as death:
                raise StoppedError(
                    f"{self._place(piece)}: {TRIES} times the process that tokenized them "
                    f"{death}; remove the row that causes it (a smaller --unit-size names fewer "
                    "rows), or give more --max-memory"
                ) from None

    def _call(self, task: Mapping[str, object]) -> TokenFile:
        """Receipt that the next free worker makes of a task."""
        worker = self._idle.get()
        try:
            if worker is None:
                worker = _Worker(self.job, self._stop)
                self._living.add(worker)
                worker.answer(_START, self.memory)
            answer = worker.call(task, TIMEOUT, self.memory)
        except BaseException:
            if worker is not None:
                worker.kill()
                self._living.discard(worker)
            worker = None
            raise
        finally:
            if worker is not None and worker.calls >= SLICES_PER_WORKER:
                worker.kill()
                self._living.discard(worker)
                worker = None
            self._idle.put(worker)
        raise_error(answer)
        return from_json(TokenFile, answer["done"])

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
    """One worker process and the pipes to it, used by one thread at a time."""

    def __init__(self, job: Job, stop: threading.Event) -> None:
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
        self._stop = stop
        self._read = b""
        self._errors = b""
        self.calls = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, task: Mapping[str, object], timeout: float, memory: int) -> dict[str, object]:
        self.calls += 1
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(task).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerDied(self._how_it_died()) from None
        return self.answer(timeout, memory)

    def answer(self, timeout: float, memory: int) -> dict[str, object]:
        """Next answer of the worker.

        WorkerDied if it dies, takes too much memory, or says nothing for `timeout` seconds.
        """
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        answers, errors = self._process.stdout.fileno(), self._process.stderr.fileno()
        reading = [answers, errors]
        deadline = time.monotonic() + timeout
        while b"\n" not in self._read.lstrip(WORKING):
            ready, _, _ = select.select(reading, [], [], _POLL_EVERY)
            if errors in ready:
                block = os.read(errors, 1 << 16)
                self._errors = (self._errors + block)[-4096:]
                if not block:
                    reading.remove(errors)
            if answers in ready:
                block = os.read(answers, 1 << 16)
                if not block:
                    raise WorkerDied(self._how_it_died())
                self._read += block
                deadline = time.monotonic() + timeout
                continue
            if self._stop.is_set():
                raise CancelledError
            if time.monotonic() > deadline:
                raise WorkerDied(f"made no progress for {timeout:,.0f} seconds")
            if (taken := self._memory()) > memory:
                raise WorkerDied(
                    f"took {taken / 1e6:,.0f} MB of memory, more than its share of "
                    f"{memory / 1e6:,.0f} MB"
                )
        line, _, self._read = self._read.lstrip(WORKING).partition(b"\n")
        answer: dict[str, object] = json.loads(line)
        return answer

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _memory(self) -> int:
        """Bytes of the worker's memory without mapped files; 0 if the system does not tell."""
        sizes = resident(self.pid)
        return 0 if sizes is None else sizes[0] - sizes[1]

    def _how_it_died(self) -> str:
        try:
            code = self._process.wait(_END)
        except subprocess.TimeoutExpired:
            return "no longer answers"
        assert self._process.stderr is not None
        with contextlib.suppress(OSError):
            self._errors += self._process.stderr.read() or b""
        if code == -signal.SIGKILL:
            return "was killed, perhaps by the system for its memory"
        lines = self._errors.decode(errors="replace").strip().splitlines()
        message = f": {lines[-1][:200]}" if lines else ""
        name = signal.Signals(-code).name if code < 0 else f"code {code}"
        return f"ended with {name}{message}"


def raise_error(answer: Mapping[str, object]) -> None:
    """Raise the error that an answer has, if it has one."""
    if "document_error" in answer:
        raise DocumentError(*from_json(tuple[int, int, str], answer["document_error"]))
    if "input_error" in answer:
        raise InputError(str(answer["input_error"]))
    if "store_error" in answer:
        raise StoreError(*from_json(tuple[int, str, str], answer["store_error"]))
    if "os_error" in answer:
        raise OSError(*from_json(tuple[int | None, str | None, str | None], answer["os_error"]))


def _task(piece: Slice, text: Path) -> dict[str, object]:
    """The task to tokenize a slice. text: the file of its table."""
    return {
        "extent": vars(piece.extent),
        "parts": [asdict(part) for part in piece.parts],
        "first_rows": piece.first_rows,
        "text": str(text),
    }
