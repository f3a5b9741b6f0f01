"""The executor: threads over `todo`, each of which does tasks here, or waits for a cluster."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..config.grammar import Part
from ..support.ahead import ahead
from ..support.progress import Progress
from ..tokens.stage import import_datasets
from .job import Task, text_bytes
from .tasks import Work, do, todo

LEAST = 4_000_000  # bytes of chats for each process that renders them
MEMORY = 150_000_000  # bytes of one task that tokenizes: text, rows, ids, and a copy to write


def tokenize(work: Work, progress: Progress) -> None:
    """Do all tasks that tokenize and are not done; of a part, its own."""
    job, config = work.job, work.job.config
    tasks, splits = _own(work, todo(work, "tokenize")), len(job.splits)
    if len(tasks) < splits and config.part is None:
        left = f"{len(tasks):,} of {splits:,} splits are left" if tasks else "no text was read"
        progress.say(f"tokens reused: {left}")
    if not tasks:
        return
    import_datasets()
    for note in work.engine[1]:
        progress.say(note)
    done, total = splits - len(tasks), sum(source.bytes for source in job.sources) / 1e6
    with _rendering(work, len(tasks)) as work.render:
        made = _done(work, tasks, MEMORY, in_order=bool(job.limits))
        for number, _ in enumerate(made, done + 1):
            progress.advance("tokenize", total * number / splits, total, "MB")


def _own(work: Work, tasks: list[Task]) -> list[Task]:
    """The tasks of `part`, or all."""
    number, of = Part.parse(work.job.config.part or "0/1")
    return [task for task in tasks if task.number % of == number]


def _rendering(work: Work, tasks: int) -> AbstractContextManager[Any]:
    """The renderer of chats here, in processes if that is worth it."""
    if work.render is None or work.cluster is not None:
        return nullcontext(work.render)
    from ..support.ahead import in_processes

    # Not more than the input keeps busy; a process begins in a second.
    most = sum(map(text_bytes, work.job.sources)) // LEAST
    return in_processes(work.render, min(work.job.config.cores, tasks, most))


def _done(work: Work, tasks: list[Task], memory: int, *, in_order: bool) -> Iterator[Any]:
    """Results of tasks, in order. memory: of one, bytes. in_order: one is done after another."""
    if work.cluster is not None:
        return ahead(lambda task: work.cluster.do(task, memory), tasks, 2 * work.cluster.cores)
    config = work.job.config
    at_once = min(config.cores, config.memory // memory, len(tasks))
    return ahead(lambda task: do(work, task), tasks, 1 if in_order else max(1, at_once))


def pack(work: Work, progress: Progress) -> None:
    """Do all tasks that pack and are not done; of a part, its own."""
    tasks, windows = todo(work, "pack"), len(work.windows)
    before = windows - len(tasks)
    if before:
        progress.say(f"{before:,} of {windows:,} windows were written before")
    # Tokens are read from mapped files in random order: slow where they are not all in memory.
    mapped = sum(file.receipt.bytes for file in work.files) // windows
    memory = 120 * max(each.rows for each in work.windows) + mapped + 1
    # A planner is the user's own, and may not be thread-safe.
    made = _done(work, _own(work, tasks), memory, in_order=work.job.planner is not None)
    for number, _ in enumerate(made, before + 1):
        progress.advance("pack", number, windows, "windows")
