"""Tasks of a job array.

Each joins the build in OUT.incomplete, does its share and leaves; one more signs off.

A share is every N-th run of slices, and any window whose token files are there when a task looks.
Tasks may start at any time, in any order, twice or together: what one works on is claimed by a lock
that counts for a living process only (file_lock.py), and what is done is found done. `--task-index
merge` waits for tasks at work and finishes what they left.
"""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from packprep.config.build_config import MERGE, BuildConfig
from packprep.execute.shares import Shares
from packprep.output.staging import CLAIMS, join_path, staging_path, task_locks
from packprep.schemas.storage.writing import temporary_name
from packprep.support.errors import ConfigError, StoppedError
from packprep.support.file_lock import Held, holder, locked, taken_by
from packprep.support.progress import Progress
from packprep.tokens.store import TokenFile

_LOOK_EVERY = 0.5  # seconds between looks at what other tasks have done
_SCHEDULERS = "Slurm, Kubernetes (with --num-tasks) or AWS Batch"


def array_share(config: BuildConfig, environment: Mapping[str, str]) -> tuple[int, int, str]:
    """Index of this task, number of tasks, and where that is from.

    ConfigError where nothing says it.
    """
    index, total, said = _given_by(environment, config.num_tasks)
    if config.task_index is not None:
        index, said = int(config.task_index), "--task-index"
    total = config.num_tasks or total
    if index is None or total is None:
        missing = "--task-index" if index is None else "--num-tasks"
        raise ConfigError(
            f"executor array needs {missing}: give --task-index I --num-tasks N with 0 <= I < N, "
            "or run it as an array "
            f"of {_SCHEDULERS}; --task-index {MERGE} signs off"
        )
    if not 0 <= index < total:
        raise ConfigError(
            f"the index of this task, from {said}, is {index}, expected 0 to {total - 1}: see "
            "--num-tasks"
        )
    return index, total, said


def _given_by(
    environment: Mapping[str, str], asked: int | None
) -> tuple[int | None, int | None, str]:
    """Index, number of tasks, and the variable that says so. asked: --num-tasks."""

    def number(name: str) -> int | None:
        text = environment.get(name, "")
        return int(text) if re.fullmatch("[0-9]+", text) else None

    if (task := number("SLURM_ARRAY_TASK_ID")) is not None:
        count = number("SLURM_ARRAY_TASK_COUNT")
        if asked not in (None, count):  # some tasks of a larger array, run again
            return task, asked, "SLURM_ARRAY_TASK_ID"
        first, step = number("SLURM_ARRAY_TASK_MIN") or 0, number("SLURM_ARRAY_TASK_STEP") or 1
        return (task - first) // step, count, "SLURM_ARRAY_TASK_ID"
    for name, of in (
        ("AWS_BATCH_JOB_ARRAY_INDEX", "AWS_BATCH_JOB_ARRAY_SIZE"),
        ("JOB_COMPLETION_INDEX", ""),
    ):
        if (task := number(name)) is not None:
            return task, number(of), name
    return None, None, ""


@contextmanager
def joining(output: Path, progress: Progress) -> Iterator[None]:
    """Hold off other tasks that join, and whole builds; StoppedError where one of those is at work.

    A build takes its lock and then looks for tasks, a task does it the other way round: one of them
    sees the other.
    """
    waiting = False
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked(join_path(staging_path(output)), "a task is joining"))
                break
            except Held:
                if not waiting:
                    progress.say("waiting for another task, which looks at the sources first")
                waiting = True
                time.sleep(_LOOK_EVERY)
        if (by := holder(output)) is not None and by.alive:
            raise StoppedError(
                f"{output} is being built or signed off by {by}; nothing is left for a task"
            )
        yield


def member_path(output: Path) -> Path:
    """Path that a task locks while it works; its name says host and process."""
    return staging_path(output) / CLAIMS / temporary_name(Path("task")).stem


def at_work(output: Path) -> dict[str, str]:
    """Tasks at work on an output: name of the lock, and who has it."""
    found = {lock.stem: taken_by(lock.with_suffix("")) for lock in task_locks(staging_path(output))}
    return {name: by for name, by in found.items() if by}


@contextmanager
def without_tasks(output: Path, config: BuildConfig, progress: Progress) -> Iterator[None]:
    """For a whole build with its lock held: no task is at work.

    Signing off waits for them, others get ConfigError.
    """
    joins = join_path(staging_path(output))
    said = ""
    while by := taken_by(joins) or ", ".join(at_work(output).values()):
        if config.task_index != MERGE:
            raise ConfigError(
                f"{output} is being built by tasks of an array ({by}); wait until they are done"
            )
        if by != said:
            progress.say(f"waiting for tasks at work: {by}")
        said = by
        time.sleep(_LOOK_EVERY)
    yield


def work_off(shares: Shares, index: int, progress: Progress) -> dict[str, Any]:
    """Do one share of a build.

    Returns what was done here, and how much of the whole is there now.
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
        with _claimed(shares, f"slices-{run[0]:07d}") as mine:
            if mine:
                shares.tokenize(run, report)
                done["slices"] += len(missing)
        done["windows"] += _write_ready(shares, index)
    done["windows"] += _write_ready(shares, index)
    shares.seal()
    slices, splits = shares.places.slices, len(shares.job.splits)
    left = sum(len(shares.missing(run)) for run in shares.runs)
    return {
        "task": index,
        "tasks": shares.parts,
        "slices tokenized here": done["slices"],
        "windows written here": done["windows"],
        "units": shares.places.units,
        "slices": len(slices),
        "slices tokenized": len(slices) - left,
        "windows": len(shares.windows) * splits,
        "windows written": len(shares.windows) * splits - shares.unwritten(),
    }


def _measure(shares: Shares, index: int, progress: Progress) -> None:
    """Measure sources, its own share first, until all are measured by whomever."""
    waiting = False
    while left := shares.unmeasured():
        done = False
        for source in sorted(left, key=lambda source: (source % shares.parts != index, source)):
            with _claimed(shares, f"source-{source:06d}") as mine:
                if mine:
                    shares.measure(source)
                    done = True
        if not done:
            if not waiting:
                progress.say(f"waiting for {len(left):,} sources that other tasks read first")
            waiting = True
            time.sleep(_LOOK_EVERY)


def _write_ready(shares: Shares, index: int) -> int:
    """Write windows that are ready and that nobody is writing, its own share first.

    Return their number.
    """
    written = 0
    for window in sorted(
        shares.ready(), key=lambda window: (window[1] % shares.parts != index, window)
    ):
        with _claimed(shares, f"window-{window[0]}-{window[1]:05d}") as mine:
            # Another task may have written it since we looked.
            if mine and not shares.is_written(window):
                written += shares.write(window)
    return written


@contextmanager
def _claimed(shares: Shares, name: str) -> Iterator[bool]:
    """True if nobody else works on this, and nobody will until the end of the block."""
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
