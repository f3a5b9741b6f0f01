"""The build: read, tokenize, plan, write, sign off.

Everything happens in OUT.incomplete, which becomes OUT by one rename after the manifest is written:
OUT is absent or complete, whatever interrupts the build, and the same command goes on with what was
done.
"""

import importlib
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

from packprep.chat.build_tokenizer import load_build_tokenizer
from packprep.config.build_config import MERGE, BuildConfig
from packprep.config.executors import EXECUTORS
from packprep.config.mix import as_dicts, is_mix
from packprep.engines.tokenizer import Tokenizer
from packprep.execute import disk_space
from packprep.execute.append import open_output
from packprep.execute.array_tasks import (
    array_share,
    at_work,
    joining,
    member_path,
    without_tasks,
)
from packprep.execute.job import Job
from packprep.execute.ray_tasks import run_on_ray
from packprep.execute.stages import Stages
from packprep.output.build_facts import build_facts
from packprep.output.staging import (
    DIGESTS,
    Staging,
    staged,
    staging_at,
)
from packprep.schemas.errors import FormatError
from packprep.schemas.manifest import Manifest
from packprep.schemas.storage.store_errors import StoreError
from packprep.schemas.storage.stores import is_url
from packprep.sources.digests import remembered
from packprep.sources.resolve import check_local, resolve
from packprep.sources.source import Source
from packprep.support.clock import StageClock
from packprep.support.errors import (
    ConfigError,
    PackprepError,
    StoppedError,
    system_error,
)
from packprep.support.file_lock import locked
from packprep.support.progress import Progress, Silent
from packprep.windows.planner import Planner


@dataclass(frozen=True, kw_only=True)
class Runner:
    """The functions of an executor. The process that signs off does whatever they leave.

    ahead: does all it can of a job that is saved (`Job.save`) before that process begins; None
    where nothing does. share: index of the task that this command is, number of tasks, and where
    that is from, of a config and the environment; None where one command is the whole build.
    """

    ahead: Callable[[Job, Progress], None] | None = None
    share: Callable[[BuildConfig, Mapping[str, str]], tuple[int, int, str]] | None = None


RUNNERS: Final[Mapping[str, Runner]] = {
    "local": Runner(),
    "ray": Runner(ahead=run_on_ray),
    "array": Runner(share=array_share),
}
"""By the value of the option `executor`."""


def build(
    config: BuildConfig, *, planner: Planner | None = None, progress: Progress | None = None
) -> Manifest:
    """Build packed shards at `config.output` and return their manifest.

    The same config again does nothing.

    planner: a packer of your own, f(lengths int32 [segments], max_length) -> PackPlan, in place of
    `config.strategy`. Raises ConfigError, InputError (a sentence naming file and row) or
    FormatError; the output is then absent. After StoppedError, OSError or an interruption the same
    call goes on where it stopped.
    """
    progress = progress or Silent()
    clock = StageClock()
    output = open_output(config)
    if config.is_task:
        raise ConfigError(
            "one task of an array makes no manifest; call packprep.execute.pipeline.build_share "
            "for it"
        )
    tokenizer = _tokenizer(config, progress)
    with (
        locked(output.path, f"{output} is being built") as left,
        without_tasks(output.path, config, progress),
        staged(output.path) as staging,
        output.held(staging.path),
    ):
        if left is not None:
            progress.say(f"the last build of {output}, {left}, did not end")
        loading = threading.Thread(
            target=_load_datasets, args=(config, output.replaces), daemon=True
        )
        loading.start()  # beside hashing
        with clock("hash"), _digests_kept(staging, config):
            sources = output.wanted(resolve(config, staging.scratch, progress), progress)
            inputs = _inputs(config, sources, tokenizer, planner)
        finished = output.already_built(inputs, config, progress)
        if finished is not None:
            return output.keep(staging.path, finished, progress)
        job = Job(
            config=config,
            staging=staging.path,
            tokenizer=tokenizer,
            sources=sources,
            planner=planner,
        )
        whole = staging.claim(
            _facts(job, inputs), progress, restart=config.restart, replaces=output.replaces
        )
        if whole is not None:
            progress.say(f"{staging.path} is whole: only its last rename was missing")
            return output.publish(staging.path, whole, progress)
        output.begin(staging.path)
        loading.join()
        work = Stages(job, progress, clock, one_split_does=output.one_split_does)
        with _system_says(work):
            return output.publish(
                staging.path, work.run(inputs, RUNNERS[config.executor].ahead), progress
            )


def _load_datasets(config: BuildConfig, replaces: bool) -> None:
    """Import `datasets`, a third of a second, where text will probably be read."""
    if not config.keep_tokens and not replaces:
        importlib.import_module("datasets")


def _digests_kept(staging: Staging, config: BuildConfig) -> AbstractContextManager[None]:
    """Keep digests of sources where reading them again is slow or other processes need them."""
    away = any(is_url(path) for entry in config.entries() for path in entry.paths)
    keep = away or EXECUTORS[config.executor].many_commands
    return remembered(staging.path / DIGESTS) if keep else nullcontext()


@contextmanager
def _system_says(work: "Stages") -> Iterator[None]:
    """Turn a refusal of the system into a sentence, or an OSError with its path."""
    try:
        yield
    except (PackprepError, FormatError, StoreError):
        raise
    except MemoryError:
        raise StoppedError(
            "memory ran out; give less --max-memory or --num-proc and run the same command to go on"
        ) from None
    except Exception as error:  # libraries have many names for what the system refused
        if (refused := system_error(error)) is None:
            raise
        if refused.errno in disk_space.FULL:
            raise disk_space.full(refused, work.job.staging, work.needed) from None
        where = refused.filename or str(work.job.staging)
        raise OSError(refused.errno, os.strerror(refused.errno or 0), where) from None


def build_share(
    config: BuildConfig, *, planner: Planner | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Do the share of one task of a job array (see array_tasks.py) and return what `work_off` does.

    The same config with task_index "merge" then goes to `build`.
    """
    progress = progress or Silent()
    if (array_share := RUNNERS[config.executor].share) is None:
        raise ConfigError(
            f"executor {config.executor} has no tasks; call packprep.build, or give executor array"
        )
    index, total, said = array_share(config, os.environ)
    output = open_output(config)
    tokenizer = _tokenizer(config, progress)
    progress.say(f"task {index} of {total}, from {said}")
    staging = staging_at(output.path)
    with ExitStack() as stack:
        with joining(output.path, progress):
            stack.enter_context(output.held(staging.path, shared=True))
            with remembered(staging.path / DIGESTS):
                sources = output.wanted(resolve(config, staging.scratch, progress), progress)
            inputs = _inputs(config, sources, tokenizer, planner)
            member = member_path(output.path)
            job = Job(
                config=config,
                staging=staging.path,
                tokenizer=tokenizer,
                sources=sources,
                planner=planner,
                process=member.name,
            )
            done = output.already_built(inputs, config, progress) is not None
            if not done:
                done = staging.join(
                    _facts(job, inputs),
                    progress,
                    alone=not at_work(output.path),
                    replaces=output.replaces,
                )
            if not done:
                stack.enter_context(locked(member, "a task is at work"))
        if done:
            staging.leave_empty()
            progress.say(
                f"{output} is this build already, or lacks only --task-index {MERGE}: nothing to do"
            )
            return {"task": index, "tasks": total}
        job.scratch.mkdir(parents=True, exist_ok=True)
        stack.callback(shutil.rmtree, job.scratch, ignore_errors=True)
        work = Stages(job, progress, StageClock())
        with _system_says(work):
            shared = work.share(index, total)
    return shared


def _tokenizer(config: BuildConfig, progress: Progress) -> Tokenizer:
    check_local(config)  # a hub that is asked for a tokenizer may take its time
    tokenizer = load_build_tokenizer(config)
    if config.continuation_bos and tokenizer.bos is None:
        raise ConfigError(
            "continuation_bos needs a BOS, and this tokenizer has none; choose one with --bos TOKEN"
        )
    for note in tokenizer.notes:
        progress.say(note)
    return tokenizer


def _facts(job: Job, inputs: dict[str, Any]) -> dict[str, Any]:
    """Content of build.json."""
    return build_facts(
        inputs,
        names=[source.name for source in job.sources],
        tokens=str(job.tokens),
        source_bytes=sum(source.bytes for source in job.sources),
    )


def _inputs(
    config: BuildConfig, sources: Sequence[Source], tokenizer: Tokenizer, planner: Planner | None
) -> dict[str, Any]:
    """Everything that decides the bytes of the output.

    A planner of the user's own enters by its name.
    """
    options = config.identity()
    if planner is not None:
        options["planner"] = (
            f"{planner.__module__}.{getattr(planner, '__qualname__', type(planner).__qualname__)}"
        )
    inputs: dict[str, Any] = {
        "options": options,
        "sources": [source.as_dict() for source in sources],
        "tokenizer": tokenizer.as_dict(),
    }
    if is_mix(entries := config.entries()):
        files = Counter(source.entry for source in sources)
        inputs["mix"] = [
            {"files": files[number]} | fact for number, fact in enumerate(as_dicts(entries))
        ]
    return inputs
