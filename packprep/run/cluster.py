"""The executor ray: tasks of a job on the cores of a Ray cluster.

Ray carries the job, numbers of tasks and receipts. Text, tokens and shards move through files,
which all nodes see at the same paths. A task whose process or node dies is done again elsewhere, at
most three times; that is safe, because a task only reads and writes files.
"""

import functools
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..support.errors import ConfigError, StoppedError
from .job import Job, Task
from .tasks import Work, do

_RETRIES = 3
_OBJECTS = 100_000_000  # bytes of Ray's object store on this machine: the job and receipts


class Cluster:
    """Does tasks of a job. cores: of all nodes."""

    def __init__(self, ray: Any, job: Job) -> None:
        self._ray, self.cores = ray, max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._largest = max(node["Resources"].get("memory", 0) for node in ray.nodes())
        self._job = ray.put(pickle.dumps(job))
        self._remote = ray.remote(_do)

    def do(self, task: Task, memory: int) -> Any:
        """Do a task on a node, and return its receipts. memory: bytes that it needs.

        Raises what the task raises, and StoppedError if every try of it dies.
        """
        what = f"task {task.kind} {task.number}"
        if memory > self._largest:
            raise StoppedError(
                f"{what} needs {memory / 1e6:,.0f} MB of memory, and the largest node of the "
                f"cluster has {self._largest / 1e6:,.0f}; add a larger one, or set a smaller window"
            )
        remote = self._remote.options(num_cpus=1, memory=memory, max_retries=_RETRIES)
        try:
            return self._ray.get(remote.remote(str(Path.cwd()), self._job, task))
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            reason = " ".join(str(error).split())[:300]
            raise StoppedError(f"{what} failed {1 + _RETRIES} times: {reason}") from None


@contextmanager
def connected(job: Job) -> Iterator[Cluster]:
    """The cluster that --executor names, while the context lasts.

    Without an address it is one of this machine, with --num-proc cores.
    """
    address = job.config.executor.partition(":")[2]
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a warning of Ray's future
    try:
        import ray
    except ModuleNotFoundError:
        raise ConfigError(
            "--executor ray needs Ray, which is not installed: pip install packprep[ray]"
        ) from None
    local = {"num_cpus": job.config.cores, "object_store_memory": _OBJECTS}
    own: dict[str, Any] = {} if address else {**local, "include_dashboard": False}
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **own)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"no Ray cluster answers at {address}: {reason}") from None
    try:
        yield Cluster(ray, job)
    finally:
        ray.shutdown()


def _do(folder: str, pickled: bytes, task: Task) -> Any:
    """Do a task in a worker of Ray. folder: working folder of the command."""
    os.environ.setdefault("RAYON_NUM_THREADS", "1")  # a task has one core
    os.chdir(folder)
    return do(_work(pickled), task)


@functools.lru_cache(maxsize=1)
def _work(pickled: bytes) -> Work:
    """The job, kept for the next task in this process."""
    job: Job = pickle.loads(pickled)  # noqa: S301 of the command that began the worker
    return Work(job)
