"""Executor ray: the tasks of shares.py on a Ray cluster, each on a free core with enough memory.

Ray carries task names and receipts only. Text, tokens and shards move through files in the staging
directory, which all nodes see at the same path. If the process or node of a task dies, the task is
retried elsewhere, at most three times. A retry is safe, because a task only reads and writes files.
This process does the tasks that remain afterwards.
"""

import functools
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from packprep.engines.third_party import tell_libraries
from packprep.execute.job import Job
from packprep.execute.worker_pool import raise_error
from packprep.output.staging import JOB
from packprep.schemas.canonical import digest_of
from packprep.schemas.storage.store_errors import StoreError
from packprep.schemas.storage.writing import temporary_name
from packprep.support.errors import ConfigError, InputError, StoppedError
from packprep.support.progress import Progress

RETRIES = 3
_OBJECTS = 100_000_000  # bytes of Ray's object store on a local cluster: names and receipts
_POLL_EVERY = 1.0  # seconds between polls of the cluster's head
_MISSED_POLLS = 5  # in a row, after which the head counts as lost
_KEPT = "finished work is kept, so run the same command to resume"

Task = tuple[str, list[Any]]
"""("measure", [source]), ("tokenize", [first, last]) or ("write", [window])."""


def run_on_ray(job: Job, progress: Progress) -> None:
    """Measure, tokenize and write as much as possible on Ray; `job` must be saved.

    StoppedError if a task fails in every try. If the head of the cluster is lost, the process ends
    with code 3.
    """
    with _connected(job.config.place.cluster, job.config.num_proc) as ray:
        _Build(ray, job, progress).run()


@contextmanager
def _connected(address: str | None, cores: int) -> Iterator[Any]:
    """Ray, connected to the cluster at an address; without one, to a new local cluster."""
    # Without this Ray warns of a change in a future version.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise ConfigError(
            "--executor ray needs Ray, which is not installed: pip install packprep[ray]"
        ) from None
    local = (
        {"num_cpus": cores, "include_dashboard": False, "object_store_memory": _OBJECTS}
        if address is None
        else {}
    )
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **local)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"no Ray cluster answers at {address or 'this machine'}: {reason}"
        ) from None
    done = threading.Event()
    threading.Thread(
        target=_watch, args=(ray.get_runtime_context().gcs_address, done), daemon=True
    ).start()
    try:
        with _interrupted(handlers):
            yield ray
    finally:
        done.set()
        ray.shutdown()


class _Interrupted(BaseException):
    """Ctrl-C or SIGTERM, raised so that the connection is closed first."""


@contextmanager
def _interrupted(handlers: dict[signal.Signals, Any]) -> Iterator[None]:
    """End the block on a signal, which is then handled as it was before Ray set its handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, _: Any) -> None:
        restore()  # a second signal takes effect at once
        raise _Interrupted(number)

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    for number in handlers:
        signal.signal(number, interrupt)
    try:
        yield
    except _Interrupted as interrupted:
        signal.raise_signal(interrupted.args[0])
        raise KeyboardInterrupt from None  # if the signal is ignored
    finally:
        restore()


def _watch(head: str, done: threading.Event) -> None:
    """End this process when the head of the cluster is lost.

    Calls of Ray would wait for it much longer, and then end the process with a traceback.
    """
    missed = 0
    while not done.wait(_POLL_EVERY):
        missed = 0 if _answers(head) else missed + 1
        if missed == _MISSED_POLLS:
            show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""
            os.write(
                2,
                f"{show_cursor}packprep: the head of the Ray cluster, {head}, is lost; "
                f"{_KEPT}\n".encode(),
            )
            os._exit(3)


class _Build:
    """Tasks of one build on a cluster."""

    def __init__(self, ray: Any, job: Job, progress: Progress) -> None:
        from packprep.execute.shares import Shares

        self.ray, self.job, self.progress = ray, job, progress
        self.cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self.shares = Shares(job, self.cores, lambda: None)
        key = digest_of((job.staging / JOB).read_text())
        self._options = functools.partial(ray.remote(do).options, num_cpus=1, max_retries=RETRIES)
        self._place = (str(Path.cwd()), str(job.staging.resolve()), key)
        self.running: dict[Any, tuple[Task, Callable[[], None]]] = {}
        self.hosts: set[str] = set()

    def run(self) -> None:
        """Do all tasks. If this raises, Ray ends the running tasks with the connection."""
        from packprep.tokens.token_files import BASE_MEMORY, slice_memory

        shares = self.shares
        for source in shares.unmeasured():
            self._submit(("measure", [source]), BASE_MEMORY)
        self._wait(0)
        total = sum(place.text_bytes for place in shares.places.slices) / 1e6
        tokenized = shares.tokenized_bytes() / 1e6
        submitted = set()

        def count(text: float) -> None:
            nonlocal tokenized
            tokenized += text
            self.progress.advance("tokenize", tokenized, total, "MB")
            write_ready()

        def write_ready() -> None:
            for spec in shares.ready():
                if spec.name not in submitted:
                    submitted.add(spec.name)
                    self._submit(("write", [spec.name]), BASE_MEMORY + spec.memory)

        write_ready()
        for run in shares.runs:
            if run[0] >= shares.end():
                break
            if missing := shares.missing(run):
                text = sum(shares.places.slices[number].text_bytes for number in missing) / 1e6
                memory = BASE_MEMORY + 2 * slice_memory(self.job.config.unit_size)
                self._submit(("tokenize", list(run)), memory, functools.partial(count, text))
                self._wait(2 * self.cores)
        self._wait(0)
        shares.seal()

    def _submit(self, task: Task, memory: int, then: Callable[[], None] = lambda: None) -> None:
        largest = max(
            (node["Resources"].get("memory", 0) for node in self.ray.nodes() if node["Alive"]),
            default=0,
        )
        if memory > largest:
            raise StoppedError(
                f"a task needs {memory / 1e6:,.0f} MB of memory, and the largest node of the "
                f"cluster has {largest / 1e6:,.0f} MB; add a larger node, or start over with a "
                "smaller --window"
            )
        self.running[self._options(memory=memory).remote(*self._place, task)] = task, then

    def _wait(self, most: int) -> None:
        """Wait until at most `most` tasks are running."""
        while len(self.running) > most:
            for ended in self.ray.wait(list(self.running), num_returns=1)[0]:
                task, then = self.running.pop(ended)
                self._take(task, ended)
                then()

    def _take(self, task: Task, ended: Any) -> None:
        try:
            answer: dict[str, object] = self.ray.get(ended)
        except self.ray.exceptions.RayTaskError:
            raise  # a defect of packprep, so show the traceback
        except self.ray.exceptions.RayError as error:
            reason = " ".join(str(error).split())[:300]
            raise StoppedError(
                f"task {task[0]} {task[1]} failed {1 + RETRIES} times: {reason}"
            ) from None
        raise_error(answer)
        if (host := str(answer["host"])) not in self.hosts:
            self.hosts.add(host)
            self.progress.say(f"tasks run on {host}")


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_POLL_EVERY).close()
    except OSError:
        return False
    return True


def do(folder: str, staging: str, key: str, task: Task) -> dict[str, object]:
    """Do one task, in a worker process of Ray.

    folder: working directory of the build. key: digest of its job.json.
    """
    tell_libraries(RAYON_NUM_THREADS="1")
    os.chdir(folder)
    shares = _shares(staging, key)
    kind, arguments = task
    try:
        if kind == "measure":
            shares.measure(*arguments)
        elif kind == "tokenize":
            shares.tokenize(tuple(arguments))
        elif not shares.is_written(*arguments):
            shares.write(*arguments)
    except InputError as error:
        return {"input_error": str(error)}
    except StoreError as error:
        return {"store_error": [error.errno, error.strerror, error.filename]}
    except OSError as error:
        if error.errno is None:
            raise
        return {"os_error": [error.errno, error.strerror, error.filename and str(error.filename)]}
    return {"host": f"{socket.gethostname()}, {_node()}"}


def _node() -> str:
    """Name of the cluster node on which this process runs."""
    import ray

    return f"node {ray.get_runtime_context().get_node_id()[:8]}"


@functools.lru_cache(maxsize=1)
def _shares(staging: str, key: str) -> Any:
    """Tasks of a build, kept for the next call in this process.

    The engine is loaded once, when text is tokenized first.
    """
    from dataclasses import replace

    from packprep.execute.job import load_job
    from packprep.execute.shares import Shares

    job, name = load_job(Path(staging))
    job = replace(
        job, process=temporary_name(Path("ray")).stem, config=replace(job.config, num_proc=1)
    )
    job.scratch.mkdir(parents=True, exist_ok=True)

    @functools.lru_cache(maxsize=1)
    def engine() -> Any:
        return job.engine(name) if job.config.input_ids_column is None else None

    return Shares(job, 1, engine)
