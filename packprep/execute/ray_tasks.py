"""Executor ray: the tasks of shares.py on a Ray cluster.

Each runs on a free core with the memory it asks for.

Ray carries task names and receipts only; text, tokens and shards move through files in the staging
directory, which all nodes see at the same path. A task whose process or node dies is done again
elsewhere, three times at most: it is the same from files to files, so nothing of the first try
matters. What Ray has not done is done by this process afterwards.
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
from packprep.output.staging import JOB
from packprep.schemas.canonical import digest_of
from packprep.schemas.storage.store_errors import StoreError
from packprep.schemas.storage.writing import temporary_name
from packprep.support.errors import ConfigError, InputError, StoppedError
from packprep.support.progress import Progress

RETRIES = 3
_OBJECTS = 100_000_000  # bytes of Ray's store on a cluster of our own: names and receipts
_LOOK_EVERY = 1.0  # seconds between looks at the cluster
_HEAD_MISSED = 5  # looks in a row
_KEPT = "what was done is kept, so run the same command to go on"

Task = tuple[str, list[Any]]
"""("measure", [source]), ("tokenize", [first, last]) or ("write", [split, number])."""


def run_on_ray(job: Job, progress: Progress) -> None:
    """Measure, tokenize and write all that Ray can; `job` is saved.

    StoppedError where a task fails for good. Where the head of the cluster is lost the process ends
    with code 3.
    """
    with _connected(job.config.ray_address, job.config.num_proc) as ray:
        _Build(ray, job, progress).run()


@contextmanager
def _connected(address: str | None, cores: int) -> Iterator[Any]:
    """Ray, connected to a cluster; to one of our own without an address."""
    os.environ.setdefault(
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
    )  # or Ray warns of its own future
    try:
        import ray
    except ModuleNotFoundError:
        raise ConfigError(
            "executor ray needs Ray, which is not installed: pip install packprep[ray]"
        ) from None
    own = (
        {"num_cpus": cores, "include_dashboard": False, "object_store_memory": _OBJECTS}
        if address is None
        else {}
    )
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **own)
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
    """Ctrl-C or SIGTERM, on its way out through what ends the connection."""


@contextmanager
def _interrupted(handlers: dict[signal.Signals, Any]) -> Iterator[None]:
    """Let signals end the block; then they do what they did before Ray put handlers of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, _: Any) -> None:
        put_back()  # the second one does not wait
        raise _Interrupted(number)

    def put_back() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    for number in handlers:
        signal.signal(number, interrupt)
    try:
        yield
    except _Interrupted as interrupted:
        signal.raise_signal(interrupted.args[0])
        raise KeyboardInterrupt from None  # where the signal is ignored
    finally:
        put_back()


def _watch(head: str, done: threading.Event) -> None:
    """End this process when the head of the cluster is gone.

    Calls of Ray wait for it, and then end the process too.
    """
    missed = 0
    while not done.wait(_LOOK_EVERY):
        missed = 0 if _answers(head) else missed + 1
        if missed == _HEAD_MISSED:
            show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""
            os.write(
                2,
                f"{show_cursor}packprep: the head of the Ray cluster, {head}, is gone; "
                f"{_KEPT}\n".encode(),
            )
            os._exit(3)


class _Build:
    """The work of one build on a cluster."""

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
        """All tasks.

        Where it raises, those that run end with the connection: Ray ends what a driver leaves
        behind.
        """
        from packprep.tokens.token_files import BASE_MEMORY, slice_memory

        shares = self.shares
        for source in shares.unmeasured():
            self._submit(("measure", [source]), BASE_MEMORY)
        self._wait(0)
        total = sum(place.text_bytes for place in shares.places.slices) / 1e6
        made = shares.text_made() / 1e6
        begun = set()

        def tokenized(text: float) -> None:
            nonlocal made
            made += text
            self.progress.advance("tokenize", made, total, "MB")
            write_ready()

        def write_ready() -> None:
            for window in shares.ready():
                if window not in begun:
                    begun.add(window)
                    self._submit(("write", list(window)), shares.window_memory(window))

        write_ready()
        for run in shares.runs:
            if run[0] >= shares.end():
                break
            if missing := shares.missing(run):
                text = sum(shares.places.slices[number].text_bytes for number in missing) / 1e6
                memory = BASE_MEMORY + 2 * slice_memory(self.job.config)
                self._submit(("tokenize", list(run)), memory, functools.partial(tokenized, text))
                self._wait(2 * self.cores)
        self._wait(0)
        shares.seal()

    def _submit(self, task: Task, memory: int, then: Callable[[], None] = lambda: None) -> None:
        most = max(
            (node["Resources"].get("memory", 0) for node in self.ray.nodes() if node["Alive"]),
            default=0,
        )
        if memory > most:
            raise StoppedError(
                f"a task needs {memory / 1e6:,.0f} MB of memory and no node of the cluster has "
                "more than "
                f"{most / 1e6:,.0f} MB; add a larger node, or start over with a smaller --window"
            )
        self.running[self._options(memory=memory).remote(*self._place, task)] = task, then

    def _wait(self, most: int) -> None:
        """Until at most so many tasks are under way."""
        while len(self.running) > most:
            for ended in self.ray.wait(list(self.running), num_returns=1)[0]:
                task, then = self.running.pop(ended)
                self._take(task, ended)
                then()

    def _take(self, task: Task, ended: Any) -> None:
        try:
            answer = self.ray.get(ended)
        except self.ray.exceptions.RayTaskError:
            raise  # a defect: its traceback is wanted
        except self.ray.exceptions.RayError as error:
            reason = " ".join(str(error).split())[:300]
            raise StoppedError(
                f"task {task[0]} {task[1]} failed {1 + RETRIES} times: {reason}"
            ) from None
        if "input_error" in answer:
            raise InputError(answer["input_error"])
        if "store_error" in answer:
            raise StoreError(*answer["store_error"])
        if "os_error" in answer:
            raise OSError(*answer["os_error"])
        if answer["host"] not in self.hosts:
            self.hosts.add(answer["host"])
            self.progress.say(f"tasks are done on {answer['host']}")


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_LOOK_EVERY).close()
    except OSError:
        return False
    return True


def do(folder: str, staging: str, key: str, task: Task) -> dict[str, Any]:
    """Do one task, in a process of Ray's.

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
        elif not shares.is_written(tuple(arguments)):
            shares.write(tuple(arguments))
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
    """Node of the cluster that this process is on."""
    import ray

    return f"node {ray.get_runtime_context().get_node_id()[:8]}"


@functools.lru_cache(maxsize=1)
def _shares(staging: str, key: str) -> Any:
    """The tasks of a build.

    Its engine is loaded once in a process, when text is tokenized first.
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
