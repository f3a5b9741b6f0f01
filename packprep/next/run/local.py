"""The executor: threads over `todo`, each of which does tasks here, or waits for a cluster."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ..config.grammar import Part
from ..support.ahead import ahead
from ..support.progress import Progress
from ..tokens.stage import import_datasets
from ..tokens.store import receipts
from .job import Task, text_bytes
from .tasks import Work, do, todo

if TYPE_CHECKING:
    from .cluster import Cluster

LEAST = 4_000_000  # bytes of chats for each process that renders them
MEMORY = 150_000_000  # bytes of one task that tokenizes: text, rows, ids, and a copy to write


def tokenize(work: Work, progress: Progress, cluster: "Cluster | None" = None) -> None:
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
    with _rendering(work, len(tasks), cluster) as work.render:
        if job.has_limit:
            _in_order(work, tasks)
            return
        threads = max(1, min(config.cores, config.memory // MEMORY, len(tasks)))
        for number, _ in enumerate(_done(work, tasks, threads, MEMORY, cluster), done + 1):
            progress.advance("tokenize", total * number / splits, total, "MB")


def _own(work: Work, tasks: list[Task]) -> list[Task]:
    """The tasks of `part`, or all."""
    if work.job.config.part is None:
        return tasks
    number, of = Part.parse(work.job.config.part)
    return [task for task in tasks if task.number % of == number]


def _rendering(work: Work, tasks: int, cluster: "Cluster | None") -> AbstractContextManager[Any]:
    """What renders chats here, in processes if that is worth it."""
    if work.render is None or cluster is not None:
        return nullcontext(work.render)
    from ..support.helpers import in_processes

    # Not more than the input keeps busy; a process begins in a second.
    most = sum(map(text_bytes, work.job.sources)) // LEAST
    return in_processes(work.render, min(work.job.config.cores, tasks, most))


def _in_order(work: Work, tasks: list[Task]) -> None:
    """Do tasks one after another, until the limits are reached."""
    limits: dict[int | None, int | None] = {None: work.job.config.limit}
    limits |= {source.entry: source.limit for source in work.job.sources}
    left = {key: limit for key, limit in limits.items() if limit is not None}
    for receipt in receipts(work.job.entries[0]):
        for number, rows in receipt.rows.items():
            for key in left.keys() & {None, work.job.sources[number].entry}:
                left[key] -= rows
    for task in tasks:
        if left.get(None) != 0:
            do(work, task, left)


def _done(
    work: Work, tasks: list[Task], at_once: int, memory: int, cluster: "Cluster | None"
) -> Iterator[Any]:
    """Results of tasks, in order. at_once: of those that are done here. memory: of one, bytes."""
    if cluster is None:
        return ahead(lambda task: do(work, task), tasks, at_once)
    return ahead(lambda task: cluster.do(task, memory), tasks, 2 * cluster.cores)


def pack(work: Work, progress: Progress, cluster: "Cluster | None" = None) -> None:
    """Do all tasks that pack and are not done; of a part, its own."""
    tasks, windows = todo(work, "pack"), len(work.windows)
    before = windows - len(tasks)
    if before:
        progress.say(f"{before:,} of {windows:,} windows were written before")
    memory = 120 * max(each.rows for each in work.windows) + 1
    at_once = max(1, min(work.job.config.cores, work.job.config.memory // memory))
    if work.job.planner is not None:
        at_once = 1  # a planner of the user's own may not be thread-safe
    done = _done(work, _own(work, tasks), at_once, memory, cluster)
    for number, _ in enumerate(done, before + 1):
        progress.advance("pack", number, windows, "windows")
