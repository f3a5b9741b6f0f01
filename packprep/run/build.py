"""`build`, `tokenize` and `pack`: a job, an executor, a signature."""

import itertools
import resource
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from ..config.checks import mix_of, names_token_files
from ..config.options import BuildConfig
from ..plan.account import beside
from ..plan.documents import read_parts
from ..plan.types import Dropped
from ..plan.window import Planner
from ..schemas.files import FormatError, is_url
from ..schemas.manifest import Output, open_output
from ..support.errors import ConfigError, InputError
from ..support.limits import check_room, locked
from ..support.progress import Progress, Silent
from ..tokens.store import Entry, read_entry
from ..write.output import claim, finished, publish
from ..write.report import make_report, mix_table
from ..write.shards import WindowFile
from ..write.sign import sign
from . import local
from .job import Job, beside_store, make_job, stored_job, text_bytes, versions, write_entry
from .tasks import Work, todo

_TOKENS_PER_BYTE = 0.25  # of text: what English has with a common vocabulary
_OF_SEGMENTS = 16 / 256  # bytes a token: ids, starts and ends of documents of 256 tokens


def build(
    config: BuildConfig, *, progress: Progress | None = None, planner: Planner | None = None
) -> Output:
    """Tokenize and pack the sources of a config into its output, and return that.

    A build that was killed resumes: call it again. A finished output of the same inputs is returned
    as it is. planner: a packer of your own, see `pack_lengths` for its plan; its name is part of
    the identity. Raises ConfigError, InputError or StoppedError.
    """
    if config.part is not None:
        raise ConfigError("--part is for packprep tokenize and packprep pack (`pack_part`)")
    began, progress = time.monotonic(), progress or Silent()
    return make(make_job(config, progress, planner), progress, began)


def pack(
    config: BuildConfig, *, progress: Progress | None = None, planner: Planner | None = None
) -> Output:
    """Pack the token stores or token files that a config names as sources; else as `build`."""
    if names_token_files(config.sources) or config.part is not None:
        return build(config, progress=progress, planner=planner)
    began = time.monotonic()
    return make(stored_job(config, planner), progress or Silent(), began)


def tokenize(config: BuildConfig, *, progress: Progress | None = None) -> Entry:
    """Tokenize the sources of a config into its store, and return the entry.

    With `part`, other splits of it may be open.
    """
    progress = progress or Silent()
    work = Work(make_job(config, progress, packs=False))
    with cluster_of(work.job) as work.cluster:
        tokenize_files(work, progress)
    if config.part is not None:  # others work in folders of their own beside this one
        shutil.rmtree(Path(work.job.sources[0].mirror).parent, ignore_errors=True)
        return read_entry(work.job.entries[0])
    here = beside_store(str(config.store))
    shutil.rmtree(here if is_url(config.store) else here / "scratch", ignore_errors=True)
    return work.entries[0]


def make(job: Job, progress: Progress, began: float) -> Output:
    """Make the output of a job, unless it is there. began: when the command did."""
    config, output = job.config, job.config.output
    if is_finished(job, progress):
        return open_output(output)
    work = Work(job)
    with locked(job.work.drafts, f"{output} is being built"), cluster_of(job) as work.cluster:
        if not claim(output, job.facts, overwrite=config.overwrite):
            times = [began, time.monotonic()]
            if job.splits:
                tokenize_files(work, progress)
            times.append(time.monotonic())
            local.pack(work, progress)
            times.append(time.monotonic())
            sign_off(work, times)
        publish(output)
    return open_output(output)


def cluster_of(job: Job) -> AbstractContextManager[Any]:
    """The cluster that --executor names; None if tasks are done here.

    So it is with a limit, too: rows are counted in order, by one process.
    """
    if job.config.executor == "local" or job.limits:
        return nullcontext()
    from .cluster import connected

    return connected(job)


def is_finished(job: Job, progress: Progress) -> bool:
    """True if the output of a job is there; it says so."""
    output, options = job.config.output, job.inputs["options"]
    overwrite, is_there = job.config.overwrite, is_url(output) or Path(output).exists()
    if not is_there or finished(output, job.identity, options, overwrite=overwrite) is None:
        return False
    progress.say(f"{output} is finished already: nothing to do")
    return True


def tokenize_files(work: Work, progress: Progress) -> None:
    """Make the token files of a job."""
    place = work.job.entries[0]
    if work.job.config.part is not None:
        write_entry(work.job)
        local.tokenize(work, progress)
        return
    with locked(place.drafts, f"{place} is being written"):
        for path in place.drafts.glob("*.tmp"):
            path.unlink()  # of a process that was killed
        write_entry(work.job)
        _check_room(work.job)
        local.tokenize(work, progress)
    work.drop_engine()
    if not any(file.receipt.documents for file in work.files):
        names = ", ".join(source.name for source in work.job.sources[:3])
        raise InputError(f"there are no rows in {names}; expected at least one document")


def _check_room(job: Job) -> None:
    """Raise StoppedError if the disks have too little room for the tokens, or for the shards."""
    config, size = job.config, job.tokenizer.id_type.itemsize
    if job.limits or job.sample or is_url(config.store or config.output):
        return
    tokens = int(sum(map(text_bytes, job.sources)) * _TOKENS_PER_BYTE)
    check_room(job.entries[0].root, tokens * size, "the tokens")
    positions = 2 if config.max_length <= 2**16 else 4
    shards = int(tokens * (_OF_SEGMENTS + (0 if config.is_plan else size + positions)))
    if config.output:
        check_room(job.work.root, shards + (0 if config.store else tokens * size), "the build")


def report_of(work: Work, windows: Sequence[WindowFile]) -> dict[str, Any]:
    """The report of all windows, without the facts of the run."""
    config = work.job.config
    files = [(file.sources, file.receipt) for file in work.files]
    again = (part for each in work.drawn.again for part in read_parts(work.files, each))
    left = read_parts(work.files, work.drawn.left)
    others = beside(left, again) if work.drawn.left or work.drawn.again else {}
    names = [source.name for source in work.sources]
    report = make_report(names, files, windows, config.max_length, config.pack_order.ranks, others)
    if (mix := mix_of(config)) or config.max_tokens or config.after:
        weights = [weight for weight, _ in mix]
        report["mix"] = mix_table(work.drawn.streams, weights, windows)
    return report


def sign_off(work: Work, times: list[float]) -> None:
    """Write everything but shards, the manifest last. times: at which stages began and ended."""
    job, config = work.job, work.job.config
    if missing := todo(work, "pack"):
        name = work.windows[missing[0].number].name
        raise FormatError(f"window {name} is not packed; run the command again")
    windows = [work.written[window.name] for window in work.windows]
    report = report_of(work, windows)
    for split in config.splits:
        if not report["splits"].get(split, {}).get("packs"):
            raise InputError(nothing_left(split, report, config))
    stages = dict(zip(("start", "tokenize", "pack"), itertools.pairwise(times), strict=True))
    stages["total"] = times[0], times[-1]
    report["seconds"] = {name: round(end - begin, 3) for name, (begin, end) in stages.items()}
    report["tokens_per_second"] = round(report["tokens"]["tokens_in"] / (times[-1] - times[0]), 1)
    report["peak_memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    drawn = {n: each for each in work.drawn.streams for n in each.sources}
    names = ("name", "bytes", "rows", "digest", "first_row")
    sources = [
        {name: getattr(source, name) for name in names}
        | {"drawn": drawn[number].last, "rows_of_pass": drawn[number].rows}
        for number, source in enumerate(work.sources)
    ]
    named = config.tokenizer if isinstance(config.tokenizer, str | int) else None
    run: dict[str, Any] = {
        "versions": versions(),
        "executor": config.executor,
        "num_proc": config.cores,
        "tokenizer": named or work.entries[0].facts.get("tokenizer"),
    }
    draw = {"seed": work.drawn.seed}
    facts = {"inputs": job.inputs, "sources": sources, "draw": draw, "plan": None}
    if config.is_plan:
        from .stores import plan_of

        facts["plan"], run["stores"] = plan_of(work)
    shards = [shard for window in windows for shard in window.shards]
    sign(job.work.drafts, shards, work.layout, facts, report, config.to_yaml(), run)


def nothing_left(split: str, report: Mapping[str, Any], config: BuildConfig) -> str:
    """The sentence of a split without packs, with the causes that took documents and no others."""
    documents, tokens = report["documents"], report["tokens"]
    planned = sum(window["bound"] + window["gap"] for window in report["windows"])
    dropped = tokens["dropped"]
    causes = [
        (f"{dropped[each]:,} tokens are {each.place.format(**vars(config))}", each.cure)
        for each in sorted(Dropped, key=lambda each: -dropped.get(each, 0))
        if dropped.get(each)
    ]
    if others := tokens["tokens_packed"]:
        cure = "add rows" if config.after else "change holdout"  # which is that of --after
        causes.append((f"{others:,} tokens are in the other split", cure))
    if documents["empty"]:
        causes.append((f"{documents['empty']:,} rows have no text", "check the columns"))
    for reason, count in documents["skipped"].items():
        causes.append((f"{count:,} rows were skipped: {reason}", "fix the rows"))
    found, cures = zip(*causes or [("it has no tokens", "give it more")], strict=True)
    return (
        f"no pack is left for the split {split}, of {planned:,} that were planned from "
        f"{documents['in']:,} documents: {', '.join(found)}; {', '.join(dict.fromkeys(cures))}"
    )
