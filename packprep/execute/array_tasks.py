"""Tasks of a job array: each does a share of the build in OUT.incomplete; the last one signs off.

The share of a task is every N-th run of slices, and every window that has all its token files when
the task checks. Tasks may start at any time, in any order, twice or together. A task locks its
current work (file_lock.py), and the lock counts only while its process lives; finished work has a
receipt and is not done again. The task that finds all work done signs off. `--part merge` waits for
running tasks, finishes the work that they left, and signs off.
"""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

from packprep.config.grammar.settings import MERGE, PartSetting
from packprep.execute.shares import Shares
from packprep.output.staging import CLAIMS, at_work, join_path, staging_path
from packprep.schemas.storage.writing import temporary_name
from packprep.support.errors import ConfigError, StoppedError
from packprep.support.file_lock import Held, holder, locked, taken_by
from packprep.support.progress import Progress
from packprep.tokens.store import TokenFile

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


@contextmanager
def joining(output: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock under which tasks join; StoppedError if a whole build is running.

    A build takes its lock and then checks for tasks. A task joins first and then checks for a
    build. So at least one of them sees the other.
    """
    waiting = False
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(join_path(staging_path(output)), "a task is joining"))
                break
            except Held:
                if not waiting:
                    progress.say("waiting for another task, which reads the sources first")
                waiting = True
                time.sleep(_POLL_EVERY)
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
    reported = ""
    while by := taken_by(joins) or ", ".join(at_work(output).values()):
        if not is_merge:
            raise ConfigError(
                f"{output} is being built by tasks of an array ({by}); wait until they are done"
            )
        if by != reported:
            progress.say(f"waiting for running tasks: {by}")
        reported = by
        time.sleep(_POLL_EVERY)
    with locked(_signing_path(output), f"{output} is signed off") if is_merge else nullcontext():
        yield


def work_off(shares: Shares, index: int, progress: Progress) -> tuple[dict[str, int], bool]:
    """Do one share of a build; return counts of the work done here and of all finished work.

    Also True if no work is left but that of the task that signs off.
    """
    _measure(shares, index, progress)
    done = {"slices": 0, "windows": 0}
    total = sum(shares.text_bytes(run) for run in shares.runs[index :: shares.parts]) / 1e6
    made = 0.0

    def report(file: TokenFile) -> None:
        nonlocal made
        made += file.text_bytes / 1e6
        progress.advance("tokenize", made, total, "MB")

    for run in shares.runs[index :: shares.parts]:
        if run[0] >= shares.end():
            break
        if not (missing := shares.missing(run)):
            made += shares.text_bytes(run) / 1e6
            continue
        with _claimed(shares, f"slices-{run[0]:07d}") as is_claimed:
            if is_claimed:
                shares.tokenize(run, report)
                done["slices"] += len(missing)
        done["windows"] += _write_ready(shares, index)
    done["windows"] += _write_ready(shares, index)
    shares.seal()
    slices, windows = shares.places.slices, len(shares.windows)
    left = sum(len(shares.missing(run)) for run in shares.runs)
    counts = {
        "task": index,
        "tasks": shares.parts,
        "slices tokenized here": done["slices"],
        "windows written here": done["windows"],
        "units": shares.places.units,
        "slices": len(slices),
        "slices tokenized": len(slices) - left,
        "windows": windows,
        "windows written": windows - shares.unwritten(),
    }
    return counts, shares.is_complete()


def _measure(shares: Shares, index: int, progress: Progress) -> None:
    """Measure sources, beginning with this task's share, until all are measured, by any task."""
    waiting = False
    while left := shares.unmeasured():
        done = False
        for source in sorted(left, key=lambda source: (source % shares.parts != index, source)):
            with _claimed(shares, f"source-{source:06d}") as is_claimed:
                if is_claimed:
                    shares.measure(source)
                    done = True
        if not done:
            if not waiting:
                progress.say(f"waiting for {len(left):,} sources that other tasks read first")
            waiting = True
            time.sleep(_POLL_EVERY)


def _write_ready(shares: Shares, index: int) -> int:
    """Write the windows that are ready and not claimed, beginning with this task's share.

    Returns their number.
    """
    written = 0
    for spec in sorted(shares.ready(), key=lambda spec: spec.number % shares.parts != index):
        with _claimed(shares, f"window-{spec.name}") as is_claimed:
            # Another task may have written it after the check.
            if is_claimed and not shares.is_written(spec.name):
                written += shares.write(spec.name)
    return written


@contextmanager
def _claimed(shares: Shares, name: str) -> Iterator[bool]:
    """Claim a piece of work until the end of the block; False if another process has it."""
    try:
        lock = locked(shares.job.staging / CLAIMS / name, name)
        lock.__enter__()
    except Held:
        yield False
        return
    try:
        yield True
    finally:
        lock.__exit__(None, None, None)
