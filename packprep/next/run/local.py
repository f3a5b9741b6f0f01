"""The local executor: threads of this process, a loop over `todo` and `do`."""

from ..support.ahead import ahead
from ..support.progress import Progress
from ..tokens.stage import import_datasets
from ..tokens.store import receipts
from .job import Task, text_bytes
from .tasks import Work, do, todo

LEAST = 4_000_000  # bytes of chats for each process that renders them
MEMORY = 150_000_000  # bytes of one task that tokenizes: text, rows, ids, and a copy to write


def tokenize(work: Work, progress: Progress) -> None:
    """Do all tasks that tokenize and are not done."""
    job, config = work.job, work.job.config
    tasks, splits = todo(work, "tokenize"), len(job.splits)
    if len(tasks) < splits:
        left = f"{len(tasks):,} of {splits:,} splits are left" if tasks else "no text was read"
        progress.say(f"tokens reused: {left}")
    if not tasks:
        return
    import_datasets()
    for note in work.engine[1]:
        progress.say(note)
    if job.renderer is None:
        _tokenize(work, tasks, progress)
        return
    from ..support.helpers import in_processes

    # Not more than the input keeps busy; a process begins in a second.
    count = min(config.cores, len(tasks), sum(map(text_bytes, job.sources)) // LEAST)
    with in_processes(job.renderer.fresh().documents, count) as work.render:
        _tokenize(work, tasks, progress)


def _tokenize(work: Work, tasks: list[Task], progress: Progress) -> None:
    job, config, splits = work.job, work.job.config, len(work.job.splits)
    if job.has_limit:
        _in_order(work, tasks)
        return
    threads = max(1, min(config.cores, config.memory // MEMORY, len(tasks)))
    total = sum(source.bytes for source in job.sources) / 1e6
    for number, _ in enumerate(ahead(lambda task: do(work, task), tasks, threads), 1):
        done = splits - len(tasks) + number
        progress.advance("tokenize", total * done / splits, total, "MB")


def _in_order(work: Work, tasks: list[Task]) -> None:
    """Do tasks one after another, until the limits are reached."""
    job = work.job
    left: dict[int | None, int] = {
        source.entry: source.limit for source in job.sources if source.limit is not None
    }
    if job.config.limit is not None:
        left[None] = job.config.limit
    for receipt in receipts(job.entries[0]):
        for number, rows in receipt.rows.items():
            for key in left.keys() & {None, job.sources[number].entry}:
                left[key] -= rows
    for task in tasks:
        if left.get(None) != 0:
            do(work, task, left)


def pack(work: Work, progress: Progress) -> None:
    """Do all tasks that pack and are not done."""
    tasks, windows = todo(work, "pack"), len(work.windows)
    if len(tasks) < windows:
        progress.say(f"{windows - len(tasks):,} of {windows:,} windows were written before")
    at_once = work.job.config.memory // (120 * max(each.rows for each in work.windows) + 1)
    at_once = max(1, min(work.job.config.cores, at_once))
    if work.job.planner is not None:
        at_once = 1  # a planner of the user's own may not be thread-safe
    for number, _ in enumerate(ahead(lambda task: do(work, task), tasks, at_once), 1):
        progress.advance("pack", windows - len(tasks) + number, windows, "windows")
