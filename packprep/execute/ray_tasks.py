"""Executor ray: the tasks of tasks.py on a Ray cluster, each on a free core with enough memory.

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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from packprep.engines.third_party import tell_libraries
from packprep.execute.job import Job, load_job
from packprep.execute.tasks import Task, Tasks
from packprep.execute.worker import answer_to, result_of
from packprep.output.staging import JOB
from packprep.schemas.canonical import digest_of
from packprep.schemas.storage.writing import temporary_name
from packprep.support.errors import ConfigError, StoppedError
from packprep.support.progress import Progress

RETRIES = 3
_OBJECTS = 100_000_000  # bytes of Ray's object store on a local cluster: names and receipts
_POLL_EVERY = 1.0  # seconds between polls of the cluster's head
_MISSED_POLLS = 5  # in a row, after which the head counts as lost
_KEPT = "finished work is kept, so run the same command to resume"


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
    """Ctrl-C or SIGTERM, raised so that the connection is closed first.

    Otherwise agents of a local cluster run for a minute after this process has ended.
    """


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
        self.ray, self.progress = ray, progress
        self.cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self.tasks = Tasks(job, lambda: None, progress=progress, parts=self.cores)
        key = digest_of((job.staging / JOB).read_text())
        self._options = functools.partial(ray.remote(do).options, num_cpus=1, max_retries=RETRIES)
        self._place = (str(Path.cwd()), str(job.staging.resolve()), key)
        self.running: dict[Any, Task] = {}
        self.hosts: set[str] = set()

    def run(self) -> None:
        """Do all tasks. If this raises, Ray ends the running tasks with the connection."""
        begun: set[Task] = set()
        while (left := [task for task in self.tasks.open() if task not in begun]) or self.running:
            for task in left[: 2 * self.cores - len(self.running)]:
                begun.add(task)
                self._submit(task)
            for ended in self.ray.wait(list(self.running), num_returns=1)[0]:
                self._take(self.running.pop(ended), ended)
        self.tasks.seal_if_all()

    def _submit(self, task: Task) -> None:
        largest = max(
            (node["Resources"].get("memory", 0) for node in self.ray.nodes() if node["Alive"]),
            default=0,
        )
        if task.memory > largest:
            raise StoppedError(
                f"a task needs {task.memory / 1e6:,.0f} MB of memory, and the largest node of the "
                f"cluster has {largest / 1e6:,.0f} MB; add a larger node, or start over with a "
                "smaller --window"
            )
        self.running[self._options(memory=task.memory).remote(*self._place, task)] = task

    def _take(self, task: Task, ended: Any) -> None:
        try:
            answer: dict[str, object] = self.ray.get(ended)
        except self.ray.exceptions.RayTaskError:
            raise  # a defect of packprep, so show the traceback
        except self.ray.exceptions.RayError as error:
            reason = " ".join(str(error).split())[:300]
            raise StoppedError(
                f"task {task.kind} {[*task.of]} failed {1 + RETRIES} times: {reason}"
            ) from None
        if (host := result_of(answer)) not in self.hosts:
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
    """Do one task, in a worker process of Ray; answers host and node, see `answer_to`.

    folder: working directory of the build. key: digest of its job.json.
    """
    tell_libraries(RAYON_NUM_THREADS="1")
    os.chdir(folder)
    tasks = _tasks(staging, key)

    def done() -> str:
        tasks.do(task)
        return f"{socket.gethostname()}, {_node()}"

    return answer_to(done)


def _node() -> str:
    """Name of the cluster node on which this process runs."""
    import ray

    return f"node {ray.get_runtime_context().get_node_id()[:8]}"


@functools.lru_cache(maxsize=1)
def _tasks(staging: str, key: str) -> Tasks:
    """Tasks of a build, kept for the next call in this process.

    The engine is loaded once, when text is tokenized first.
    """
    job, chosen = load_job(Path(staging), temporary_name(Path("ray")).stem)
    job.scratch.mkdir(parents=True, exist_ok=True)
    return Tasks(job, functools.cache(lambda: job.engine(chosen)))
