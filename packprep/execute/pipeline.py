"""A command from its config to a finished output, and the share of it that one task does.

All work happens in OUT.incomplete, which becomes OUT by one rename after the manifest is written.
So OUT is absent or complete, whatever interrupts the build, and the same command resumes it.
"""

import importlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final

from packprep.config.build_config import BuildConfig
from packprep.config.grammar.settings import MERGE
from packprep.config.keywords import takes_config
from packprep.config.stages import Command
from packprep.execute import disk_space
from packprep.execute.append import open_output
from packprep.execute.array_tasks import (
    SigningError,
    array_share,
    joining,
    member_path,
    without_tasks,
)
from packprep.execute.job import Job
from packprep.execute.ray_tasks import run_on_ray
from packprep.execute.stages import Stages
from packprep.execute.work import Made, SourceRows, Work, facts_of, inputs_of
from packprep.output.staging import at_work, staged, staging_at
from packprep.schemas.errors import FormatError
from packprep.schemas.manifest import Manifest
from packprep.schemas.storage.store_errors import StoreError
from packprep.support.clock import START, StageClock
from packprep.support.errors import ConfigError, PackprepError, StoppedError, system_error
from packprep.support.file_lock import Held, locked, taken_by
from packprep.support.progress import Progress, Silent
from packprep.windows.planner import Planner

AHEAD: Final[Mapping[str, Callable[[Job, Progress], None]]] = {"ray": run_on_ray}
"""By executor: does as much as it can of a saved job (`Job.save`) before this process begins."""


@takes_config
def build(
    config: BuildConfig, *, planner: Planner | None = None, progress: Progress | None = None
) -> Manifest:
    """Build packed shards at `config.output` and return their manifest.

    Nothing is done if the output is already built with the same config.

    planner: a packer of your own, f(lengths int32 [segments], max_length) -> PackPlan, in place of
    `config.strategy`. Raises ConfigError, InputError (a sentence naming file and row) or
    FormatError; the output is then absent. After StoppedError, OSError or an interruption the same
    call resumes the build.
    """
    return run(of_build(config, planner), progress)


@takes_config
def build_share(
    config: BuildConfig, *, planner: Planner | None = None, progress: Progress | None = None
) -> dict[str, int]:
    """Do the share of one task of a job array (see array_tasks.py) and return its counts.

    The task that finds all work done signs off. `build` with part "merge" does what tasks left.
    """
    return run_share(of_build(config, planner), progress)


def of_build(config: BuildConfig, planner: Planner | None = None) -> Work[Manifest]:
    """The work of `build`."""
    output = open_output(config.running, config.command, config.given)
    return Work(config=config, origin=SourceRows(config), output=output, planner=planner)


def run(work: Work[Made], progress: Progress | None = None) -> Made:
    """Do all of a command and return what it makes; see `build`."""
    progress = progress or Silent()
    if work.config.is_task:
        raise ConfigError(
            "one task of an array makes no manifest; call packprep.execute.pipeline.build_share "
            "instead"
        )
    config, output, clock = work.config, work.output, StageClock()
    path = work.path
    with clock(START):
        tokenizer = work.tokenizer(progress)
    with (
        locked(path, f"{output} is being built") as dead_holder,
        without_tasks(path, progress, is_merge=config.task is not None),
        staged(path) as staging,
        output.held(staging.path),
    ):
        if dead_holder is not None:
            progress.say(f"the last build of {output}, {dead_holder}, was interrupted")
        if work.origin.has_text and not config.keep_tokens and not output.target.replaces:
            # Text will probably be read; meanwhile sources are hashed and the engine loads.
            load = threading.Thread(target=importlib.import_module, args=("datasets",), daemon=True)
            load.start()
        with clock("hash"):
            job = work.job(tokenizer, staging, progress)
            inputs = inputs_of(job)
        finished = output.already_built(inputs, config.overwrite, progress)
        if finished is not None:
            return output.keep(staging.path, finished, progress)
        is_signed = staging.claim(
            facts_of(job, inputs),
            progress,
            replaces=output.target.replaces,
            discard=_discard(config.command),
        )
        if is_signed:
            progress.say(f"{staging.path} is complete: only its last rename was missing")
            return output.publish(staging.path, progress)
        stages = Stages(job, progress, clock, one_split_does=output.one_split_does)
        with _system_errors(stages), work.origin.used(job):
            stages.run(inputs, AHEAD.get(config.runner))
            return output.publish(staging.path, progress)


def run_share(work: Work[Made], progress: Progress | None = None) -> dict[str, int]:
    """Do the share of one task of a command and return its counts; see `build_share`."""
    progress = progress or Silent()
    config, output = work.config, work.output
    if config.task is None:
        raise ConfigError(
            f"--executor {config.runner} has no tasks; use packprep.build, or give --part"
        )
    index, total, setting = array_share(config.task, os.environ)
    path = work.path
    tokenizer = work.tokenizer(progress)
    progress.say(f"task {index} of {total}, from {setting}")
    nothing = {"task": index, "tasks": total}
    staging = staging_at(path)
    try:
        with ExitStack() as stack:
            with joining(path, progress):
                stack.enter_context(output.held(staging.path, shared=True))
                member = member_path(path)
                job = work.job(tokenizer, staging, progress, member.name)
                inputs = inputs_of(job)
                done = output.already_built(inputs, config.overwrite, progress) is not None
                if not done:
                    done = staging.join(
                        facts_of(job, inputs),
                        progress,
                        alone=not at_work(path),
                        replaces=output.target.replaces,
                        discard=_discard(config.command),
                    )
                if not done:
                    stack.enter_context(locked(member, "a task is running"))
            if done:
                staging.leave_empty()
                progress.say(
                    f"{output} is this build already, or needs only --part {MERGE}: nothing to do"
                )
                return nothing
            job.scratch.mkdir(parents=True, exist_ok=True)
            stack.callback(shutil.rmtree, job.scratch, ignore_errors=True)
            stages = Stages(job, progress, StageClock())
            if by := taken_by(job.tokens):
                raise Held(f"tokens are being written to {job.tokens} by {by}; wait until it ends")
            with _system_errors(stages), work.origin.used(job):
                counts, is_complete = stages.share(index, total)
    except SigningError as error:
        progress.say(f"{error}: nothing to do")
        return nothing
    if is_complete and not at_work(path):
        progress.say(f"all tasks of {output} are done: signing off")
        try:
            run(replace(work, config=replace(config, part=MERGE)), progress)
        except Held as error:  # another task signs off
            progress.say(f"{error}; this task has nothing left to do")
    return counts


def _discard(command: Command) -> bool | None:
    """True if a build deletes what one with other settings left; None if it cannot be asked to."""
    return None if command.append else command.overwrite


@contextmanager
def _system_errors(stages: Stages) -> Iterator[None]:
    """Turn an error of the system into a sentence, or into an OSError with its path."""
    try:
        yield
    except (PackprepError, FormatError, StoreError):
        raise
    except MemoryError:
        raise StoppedError(
            "memory ran out; lower --max-memory or --num-proc, then run the same command to resume"
        ) from None
    except Exception as error:  # libraries wrap errors of the system in many classes
        if (cause := system_error(error)) is None:
            raise
        if cause.errno in disk_space.FULL:
            raise disk_space.full(cause, stages.job, stages.tokens) from None
        path = cause.filename or str(stages.job.staging)
        raise OSError(cause.errno, os.strerror(cause.errno or 0), path) from None
