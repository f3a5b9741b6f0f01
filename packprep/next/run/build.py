"""`build`, `tokenize` and `pack`: a job, an executor, a signature."""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..config.options import BuildConfig
from ..config.yaml_file import to_yaml
from ..plan.window import Planner
from ..schemas.manifest import Manifest
from ..schemas.packs import Output, open_output
from ..support.errors import ConfigError, InputError
from ..support.lock import locked
from ..support.progress import Progress, Silent
from ..tokens.types import Entry
from ..write.output import claim, finished, publish
from ..write.report import make_report
from ..write.sign import sign
from . import local
from .job import make_job, stored_job, versions, write_entry
from .nothing_left import nothing_left
from .tasks import Work, done_windows
from .types import Job


def build(
    config: BuildConfig, *, progress: Progress | None = None, planner: Planner | None = None
) -> Output:
    """Tokenize and pack the sources of a config into its output, and return that.

    A build that was killed resumes: call it again. A finished output of the same inputs is returned
    as it is. planner: a packer of your own, see `pack_lengths` for its plan; its name is part of
    the identity. Raises ConfigError, InputError or StoppedError.
    """
    progress = progress or Silent()
    with _timed() as seconds:
        job = _with_planner(make_job(config, progress), planner)
        return _made(job, progress, planner, seconds, tokenizes=True)


def pack(
    config: BuildConfig, *, progress: Progress | None = None, planner: Planner | None = None
) -> Output:
    """Pack the token stores that a config names as sources; else as `build`."""
    progress = progress or Silent()
    with _timed() as seconds:
        job = _with_planner(stored_job(config, progress), planner)
        return _made(job, progress, planner, seconds, tokenizes=False)


def tokenize(config: BuildConfig, *, progress: Progress | None = None) -> Entry:
    """Tokenize the sources of a config into its store, and return the entry."""
    progress = progress or Silent()
    job = make_job(config, progress, packs=False)
    with locked(job.entries[0], f"tokens are being written to {job.entries[0]}"):
        write_entry(job)
        work = Work(job)
        local.tokenize(work, progress)
    _check_limit(work)
    return work.entries[0]


def _made(
    job: Job,
    progress: Progress,
    planner: Planner | None,
    seconds: dict[str, float],
    *,
    tokenizes: bool,
) -> Output:
    config, output = job.config, Path(job.config.output)
    assert job.staging is not None
    options = job.inputs["options"]
    if finished(output, job.identity, options, overwrite=config.overwrite) is not None:
        progress.say(f"{output} is finished already: nothing to do")
        return open_output(output)
    with locked(output, f"{output} is being built"):
        facts = {"identity": job.identity, "inputs": job.inputs}
        if not claim(job.staging, facts, overwrite=config.overwrite):
            work = Work(job, planner)
            if tokenizes:
                write_entry(job)
                with _stage(seconds, "tokenize"):
                    if config.store:
                        with locked(job.entries[0], f"{job.entries[0]} is being written"):
                            local.tokenize(work, progress)
                    else:
                        local.tokenize(work, progress)
                for note in work.notes:
                    progress.say(note)
                _check_limit(work)
            with _stage(seconds, "pack"):
                local.pack(work, progress)
            _sign(work, seconds)
        publish(job.staging, output)
    return open_output(output)


def _check_limit(work: Work) -> None:
    if not any(file.receipt.documents for file in work.files):
        raise InputError("the sources hold no rows; expected at least one document")


def _with_planner(job: Job, planner: Planner | None) -> Job:
    """The job with the name of the planner in its identity."""
    if planner is None:
        return job
    from dataclasses import replace

    from ..schemas.canonical import digest_of

    if job.config.part is not None or job.config.executor != "local":
        raise ConfigError("a planner of your own is for one process; leave out part and executor")
    name = f"{planner.__module__}.{getattr(planner, '__qualname__', type(planner).__name__)}"
    inputs = {**job.inputs, "planner": name}
    return replace(job, inputs=inputs, identity=digest_of(inputs))


def _sign(work: Work, seconds: dict[str, float]) -> Manifest:
    """Write everything but shards, the manifest last."""
    job, windows = work.job, done_windows(work)
    assert job.staging is not None
    files = [(file.sources, file.receipt) for file in work.files]
    ranks = job.config.pack_order.ranks
    report = make_report(work.names, files, windows, int(job.config.max_length), ranks)
    for split in job.config.splits:
        if not report["splits"].get(split, {}).get("packs"):
            raise InputError(nothing_left(split, report, job.config))
    shards = [shard for window in windows for shard in window.shards]
    total = round(sum(seconds.values()), 3)
    report["seconds"] = {**{k: round(v, 3) for k, v in seconds.items()}, "total": total}
    report["tokens_per_second"] = round(report["tokens"]["tokens_in"] / max(total, 1e-9), 1)
    report["peak_memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    first, sources = 0, []
    digests = [s for entry in work.entries for s in entry.facts["deciding"]["sources"]]
    sizes = [size for entry in work.entries for size in entry.facts["bytes"]]
    for number, (name, table) in enumerate(zip(work.names, report["sources"], strict=True)):
        fact: dict[str, Any] = {"name": name, "bytes": sizes[number], "rows": table["rows"]}
        fact |= {"digest": digests[number]["digest"], "first_row": first}
        sources.append({**fact, "drawn": table["documents"]["in"]})
        first += table["rows"]
    given = job.config.tokenizer
    run = {
        "versions": versions(),
        "executor": job.config.executor,
        "num_proc": job.config.cores,
        "tokenizer": given if isinstance(given, str | int) else None,
    }
    seed = None if job.config.pack_order.name == "input" else int(job.config.seed)
    facts = {"inputs": job.inputs, "sources": sources, "draw": {"seed": seed}, "plan": None}
    return sign(job.staging, shards, work.layout, facts, report, to_yaml(job.config), run)


@contextmanager
def _timed() -> Iterator[dict[str, float]]:
    """Seconds by stage; what is before the first stage is `start`."""
    seconds: dict[str, float] = {"start": time.monotonic()}
    yield seconds


@contextmanager
def _stage(seconds: dict[str, float], name: str) -> Iterator[None]:
    began = time.monotonic()
    if seconds["start"] > 1e6 or len(seconds) == 1:
        seconds["start"] = began - seconds["start"]
    yield
    seconds[name] = seconds.get(name, 0.0) + time.monotonic() - began
