"""A build from its config to a finished output, and the share of it that one task of an array does.

All work happens in OUT.incomplete, which becomes OUT by one rename after the manifest is written.
So OUT is absent or complete, whatever interrupts the build, and the same command resumes it.
"""

import importlib
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from packprep.chat.build_tokenizer import load_build_tokenizer
from packprep.config.build_config import BuildConfig
from packprep.config.executors import EXECUTORS
from packprep.config.grammar.mix import as_dicts
from packprep.config.grammar.settings import MERGE, PartSetting
from packprep.config.grammar.source_names import hub_tokenizer
from packprep.config.keywords import takes_config
from packprep.config.pack_rules import MixRules
from packprep.config.recorded import as_typed
from packprep.config.stages import Command, Cutting
from packprep.engines.tokenizer import Tokenizer
from packprep.execute import disk_space
from packprep.execute.append import open_output
from packprep.execute.array_tasks import (
    array_share,
    joining,
    member_path,
    without_tasks,
)
from packprep.execute.job import Job
from packprep.execute.ray_tasks import run_on_ray
from packprep.execute.stages import Stages
from packprep.output.build_facts import BuildFacts, BuildInputs, Change, build_facts
from packprep.output.staging import (
    DIGESTS,
    Staging,
    at_work,
    staged,
    staging_at,
)
from packprep.schemas.errors import FormatError
from packprep.schemas.manifest import Manifest
from packprep.schemas.storage.store_errors import StoreError
from packprep.sources.digests import remembered
from packprep.sources.resolve import check_local, resolve
from packprep.sources.source import Source
from packprep.support.clock import START, StageClock
from packprep.support.errors import (
    ConfigError,
    PackprepError,
    StoppedError,
    system_error,
)
from packprep.support.file_lock import locked
from packprep.support.progress import Progress, Silent
from packprep.support.redact import redacted
from packprep.tokens.store_entries import EntryFacts, entries_in, using
from packprep.windows.planner import Planner


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Functions of an executor. The process that signs off does all work that they leave.

    ahead: does as much as it can of a saved job (`Job.save`) before that process begins; None if
    nothing runs ahead.
    share: takes the part and the environment; returns the index of this task, the number of tasks,
    and the name of the setting that says so. None if one command is the whole build.
    """

    ahead: Callable[[Job, Progress], None] | None = None
    share: Callable[[PartSetting, Mapping[str, str]], tuple[int, int, str]] | None = None


RUNNERS: Final[Mapping[str, Runner]] = {
    "local": Runner(),
    "ray": Runner(ahead=run_on_ray),
    "array": Runner(share=array_share),
}
"""By name, see `Command.runner`; `packprep.config.executors` has the properties of each."""


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
    progress = progress or Silent()
    clock = StageClock()
    output = open_output(config.running, config.command, config.given)
    path = output.target.path
    if config.is_task:
        raise ConfigError(
            "one task of an array makes no manifest; call packprep.execute.pipeline.build_share "
            "instead"
        )
    with clock(START):
        check_local(config.reading, config.output)  # first, because the hub may answer slowly
        progress.wait("loading tokenizer")
        tokenizer = load_build_tokenizer(config.tokenizing, config.parsing, config.token_type)
        _check_tokenizer(tokenizer, config.cutting, progress)
    with (
        locked(path, f"{output} is being built") as dead_holder,
        without_tasks(path, progress, is_merge=config.task is not None),
        staged(path) as staging,
        output.held(staging.path),
    ):
        if dead_holder is not None:
            progress.say(f"the last build of {output}, {dead_holder}, was interrupted")
        if not config.keep_tokens and not output.target.replaces:
            # Text will probably be read; meanwhile sources are hashed and the engine loads.
            load = threading.Thread(target=importlib.import_module, args=("datasets",), daemon=True)
            load.start()
        with clock("hash"), _digests_kept(staging, config.runner):
            found = resolve(
                config.reading, config.parsing, config.output, staging.scratch, progress
            )
            config = config.with_label_kind(found[0].labels)
            sources = output.wanted(found, progress)
            mix = config.mix_rules() if config.is_mix else None
            ids = tokenizer.shard_type(config.token_type)
            options = replace(config, token_type=ids).identity()
            inputs = _inputs(options, mix, sources, tokenizer, planner)
        finished = output.already_built(inputs, config.overwrite, progress)
        if finished is not None:
            return output.keep(staging.path, finished, progress)
        job = Job(
            config=config,
            staging=staging.path,
            tokenizer=tokenizer,
            sources=sources,
            planner=planner,
        )
        is_signed = staging.claim(
            _facts(job, inputs),
            progress,
            replaces=output.target.replaces,
            discard=_discard(config.command),
        )
        if is_signed:
            progress.say(f"{staging.path} is complete: only its last rename was missing")
            return output.publish(staging.path, progress)
        stages = Stages(job, progress, clock, one_split_does=output.one_split_does)
        with _system_errors(stages), _store_used(job):
            stages.run(inputs, RUNNERS[config.runner].ahead)
            return output.publish(staging.path, progress)


def _discard(command: Command) -> bool | None:
    """True if a build deletes what one with other settings left; None if it cannot be asked to."""
    return None if command.append else command.overwrite


def _store_used(job: Job) -> AbstractContextManager[None]:
    """Keep the tokens of a store from deletion while this build reads them."""
    if not job.config.keep_tokens:
        return nullcontext()
    given = job.config.tokenizer
    name = redacted(hub_tokenizer(given)[0]) if isinstance(given, str) else None
    facts = EntryFacts(
        job.tokenizer.as_dict() | {"name": name},
        [{**source.as_dict(), "name": source.name} for source in job.sources],
        job.text_options,
    )
    if not job.tokens.exists() and job.tokens.parent.is_dir():
        for entry in entries_in(job.tokens.parent):
            if entry.facts is not None:
                _check_default(
                    entry.path, Change(_inputs_of(entry.facts), _inputs_of(facts)), job.config.given
                )
    return using(job.tokens, facts)


def _inputs_of(facts: EntryFacts) -> BuildInputs:
    return {"options": facts.options, "sources": facts.sources, "tokenizer": facts.tokenizer}


def _check_default(entry: Path, change: Change, given: frozenset[str]) -> None:
    """ConfigError if a store has these tokens, made when an option had another default."""
    kept = change.earlier_defaults(given)
    if kept and not change.words(kept):
        now = {name: change.options[name][1] for name in kept}
        raise ConfigError(
            f"{entry} has the tokens of these sources with {as_typed(kept)}, the default when they "
            f"were made; give {as_typed(kept)} to use them, or {as_typed(now)} to make others"
        )


def _digests_kept(staging: Staging, executor: str) -> AbstractContextManager[None]:
    """Keep digests of sources if reading them again is slow, or if other processes need them."""
    return remembered(staging.path / DIGESTS, local=EXECUTORS[executor].many_commands)


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


@takes_config
def build_share(
    config: BuildConfig, *, planner: Planner | None = None, progress: Progress | None = None
) -> dict[str, int]:
    """Do the share of one task of a job array (see array_tasks.py) and return its counts.

    Afterwards `build` gets the same config with part "merge".
    """
    progress = progress or Silent()
    if (array_share := RUNNERS[config.runner].share) is None or config.task is None:
        raise ConfigError(
            f"--executor {config.runner} has no tasks; use packprep.build, or give --part"
        )
    index, total, setting = array_share(config.task, os.environ)
    output = open_output(config.running, config.command, config.given)
    path = output.target.path
    check_local(config.reading, config.output)
    progress.wait("loading tokenizer")
    tokenizer = load_build_tokenizer(config.tokenizing, config.parsing, config.token_type)
    _check_tokenizer(tokenizer, config.cutting, progress)
    progress.say(f"task {index} of {total}, from {setting}")
    staging = staging_at(path)
    with ExitStack() as stack:
        with joining(path, progress):
            stack.enter_context(output.held(staging.path, shared=True))
            with remembered(staging.path / DIGESTS):
                found = resolve(
                    config.reading, config.parsing, config.output, staging.scratch, progress
                )
                config = config.with_label_kind(found[0].labels)
                sources = output.wanted(found, progress)
            mix = config.mix_rules() if config.is_mix else None
            ids = tokenizer.shard_type(config.token_type)
            options = replace(config, token_type=ids).identity()
            inputs = _inputs(options, mix, sources, tokenizer, planner)
            member = member_path(path)
            job = Job(
                config=config,
                staging=staging.path,
                tokenizer=tokenizer,
                sources=sources,
                planner=planner,
                process=member.name,
            )
            done = output.already_built(inputs, config.overwrite, progress) is not None
            if not done:
                done = staging.join(
                    _facts(job, inputs),
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
            return {"task": index, "tasks": total}
        job.scratch.mkdir(parents=True, exist_ok=True)
        stack.callback(shutil.rmtree, job.scratch, ignore_errors=True)
        stages = Stages(job, progress, StageClock())
        with _system_errors(stages):
            counts = stages.share(index, total)
    return counts


def _check_tokenizer(tokenizer: Tokenizer, cutting: Cutting, progress: Progress) -> None:
    """Tell the user its notes. ConfigError if it lacks a token that cuts need."""
    progress.wait("opening sources")
    if cutting.continuation_bos and tokenizer.bos is None:
        raise ConfigError(
            "--continuation-bos needs a BOS, and this tokenizer has none; choose one with --bos "
            "TOKEN"
        )
    for note in tokenizer.notes:
        progress.say(note)


def _facts(job: Job, inputs: BuildInputs) -> BuildFacts:
    """Content of build.json."""
    return build_facts(
        inputs,
        names=[source.name for source in job.sources],
        tokens=str(job.tokens),
        source_bytes=sum(source.bytes for source in job.sources),
    )


def _inputs(
    options: Mapping[str, object],
    mix: MixRules | None,
    sources: Sequence[Source],
    tokenizer: Tokenizer,
    planner: Planner | None,
) -> BuildInputs:
    """Inputs that decide the bytes of the output; of the user's own planner, its name.

    options: see `BuildConfig.identity`, with the type of the token ids instead of auto.
    """
    own = {}
    if planner is not None:
        name = getattr(planner, "__qualname__", type(planner).__qualname__)
        own["planner"] = f"{planner.__module__}.{name}"
    inputs: BuildInputs = {
        "options": {**options, **own},
        "sources": [source.as_dict() for source in sources],
        "tokenizer": tokenizer.as_dict(),
    }
    if mix is not None:
        files = Counter(source.entry for source in sources)
        if mix.phases:
            facts = [{"max_epochs": float(entry.max_epochs)} for entry in mix.entries]
            inputs["phases"] = [phase.as_dict() for phase in mix.phases]
        else:
            facts = as_dicts(mix.entries)
        inputs["mix"] = [{"files": files[number]} | fact for number, fact in enumerate(facts)]
    return inputs
