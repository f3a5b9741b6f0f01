"""Parts of a job array: each does a share of the build in OUT.incomplete; the last one signs off.

The share of a part is every N-th run of slices, and every window that has all its token files when
the part checks. Parts may start at any time, in any order, twice or together. A part locks its
current task (file_lock.py), and the lock counts only while its process lives. The part that finds
all tasks done signs off. `--part merge` waits for running parts, does the tasks that they left, and
signs off.
"""

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

from packprep.config.grammar.settings import MERGE, PartSetting
from packprep.execute.tasks import Task, Tasks
from packprep.output.staging import CLAIMS, at_work, join_path, staging_path
from packprep.schemas.storage.writing import temporary_name
from packprep.support.errors import ConfigError, StoppedError
from packprep.support.file_lock import holder, if_free, locked, taken_by
from packprep.support.progress import Progress

_POLL_EVERY = 0.5  # seconds between checks of the work of other tasks
_SCHEDULERS = "Slurm, Kubernetes (with --part auto/N) or AWS Batch"


def array_share(part: PartSetting, environment: Mapping[str, str]) -> tuple[int, int, str]:
    """Index of this task, number of tasks, and the setting that gives the index.

    ConfigError if neither the option nor the environment give them.
    """
    index, total, setting = _from_scheduler(environment, part.tasks)
    if part.index is not None:
        index, setting = part.index, "--part"
    total = part.tasks or total
    if index is None or total is None:
        missing = "the number of this task" if index is None else "the number of tasks"
        raise ConfigError(
            f"a task of an array needs {missing}: give --part I/N with 0 <= I < N, or run it as an "
            f"array of {_SCHEDULERS}; --part {MERGE} signs off"
        )
    if not 0 <= index < total:
        raise ConfigError(
            f"the index of this task, from {setting}, is {index}, expected 0 to {total - 1}: see "
            "--part"
        )
    return index, total, setting


def _from_scheduler(
    environment: Mapping[str, str], num_tasks: int | None
) -> tuple[int | None, int | None, str]:
    """Index and number of tasks from a scheduler, and the variable that gives the index.

    num_tasks: of --part; None without.
    """

    def number(name: str) -> int | None:
        text = environment.get(name, "")
        return int(text) if re.fullmatch("[0-9]+", text) else None

    if (task := number("SLURM_ARRAY_TASK_ID")) is not None:
        count = number("SLURM_ARRAY_TASK_COUNT")
        if num_tasks not in (None, count):  # some tasks of a larger array, run again
            return task, num_tasks, "SLURM_ARRAY_TASK_ID"
        first, step = number("SLURM_ARRAY_TASK_MIN") or 0, number("SLURM_ARRAY_TASK_STEP") or 1
        return (task - first) // step, count, "SLURM_ARRAY_TASK_ID"
    for name, count_name in (
        ("AWS_BATCH_JOB_ARRAY_INDEX", "AWS_BATCH_JOB_ARRAY_SIZE"),
        ("JOB_COMPLETION_INDEX", ""),
    ):
        if (task := number(name)) is not None:
            return task, number(count_name), name
    return None, None, ""


class SigningError(StoppedError):
    """A task that joins while another one signs off: no work is left for it."""


def _signing_path(output: Path) -> Path:
    """Path that is locked by the task that signs off."""
    return staging_path(output) / CLAIMS / "sign"


class _Waiting:
    """Waits for other processes; says so once for each reason."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._reason = progress, ""

    def __call__(self, words: str, reason: str = "work") -> None:
        if reason != self._reason:
            self._progress.say(f"waiting for {words}")
        self._reason = reason
        time.sleep(_POLL_EVERY)


@contextmanager
def joining(output: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock under which tasks join; StoppedError if a whole build is running.

    A build takes its lock and then checks for tasks. A task joins first and then checks for a
    build. So at least one of them sees the other.
    """
    wait = _Waiting(progress)
    with ExitStack() as stack:
        while not stack.enter_context(if_free(join_path(staging_path(output)))):
            wait("another task, which reads the sources first")
        if (by := holder(output)) is not None and by.alive:
            if taken_by(_signing_path(output)):
                raise SigningError(f"{output} is being signed off by {by}")
            raise StoppedError(
                f"{output} is being built or signed off by {by}; no work is left for a task"
            )
        yield


def member_path(output: Path) -> Path:
    """Path that a task locks while it runs; its name has host and process."""
    return staging_path(output) / CLAIMS / temporary_name(Path("task")).stem


@contextmanager
def without_tasks(output: Path, progress: Progress, *, is_merge: bool) -> Iterator[None]:
    """Make sure that no task is running, for a build that holds its lock.

    is_merge: true for the command that signs off, which waits for tasks; any other build gets
    ConfigError.
    """
    joins = join_path(staging_path(output))
    wait = _Waiting(progress)
    while by := taken_by(joins) or ", ".join(at_work(output).values()):
        if not is_merge:
            raise ConfigError(
                f"{output} is being built by tasks of an array ({by}); wait until they are done"
            )
        wait(f"running tasks: {by}", by)
    with locked(_signing_path(output), f"{output} is signed off") if is_merge else nullcontext():
        yield


def work_off(tasks: Tasks, progress: Progress) -> tuple[dict[str, int], bool]:
    """Do one part of a build; return counts of the work done here and of all finished work.

    Also True if no work is left but that of the task that signs off.
    """
    done: Counter[str] = Counter()
    begun: set[Task] = set()  # here, or by another process
    wait = _Waiting(progress)
    while opened := tasks.open():
        task = next((each for each in opened if each not in begun), None)
        if task is not None:
            begun.add(task)
            with if_free(tasks.job.staging / CLAIMS / task.name) as is_free:
                done[task.kind] += tasks.do(task) if is_free else 0
        elif opened[0].kind == "measure":
            wait(f"{len(opened):,} sources that other tasks read first")
            begun.clear()
        else:
            break
    tasks.seal_if_all()
    slices, windows, is_complete = tasks.left()
    counts = {
        "task": tasks.part or 0,
        "tasks": tasks.parts,
        "slices tokenized here": done["tokenize"],
        "windows written here": done["write"],
        "units": tasks.places.units,
        "slices": len(tasks.places.slices),
        "slices tokenized": len(tasks.places.slices) - slices,
        "windows": len(tasks.windows),
        "windows written": len(tasks.windows) - windows,
    }
    return counts, is_complete
