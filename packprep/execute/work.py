"""Work of one command: origin of its documents, place of its output, the stages between."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from packprep.chat.build_tokenizer import check_continuation, load_build_tokenizer
from packprep.config.build_config import BuildConfig
from packprep.config.grammar.mix import as_dicts
from packprep.config.grammar.source_names import hub_tokenizer
from packprep.config.recorded import as_typed
from packprep.engines.tokenizer import Tokenizer
from packprep.execute.job import Job
from packprep.output.build_facts import BuildFacts, BuildInputs, Change, build_facts
from packprep.output.staging import DIGESTS, Staging
from packprep.output.target import Target
from packprep.schemas.manifest import Manifest
from packprep.sources.digests import remembered
from packprep.sources.formats.zstd_reader import window_within
from packprep.sources.resolve import check_local, resolve
from packprep.sources.skip_rows import with_skip_rows
from packprep.sources.source import Source
from packprep.support.errors import ConfigError
from packprep.support.progress import Progress
from packprep.support.redact import redacted
from packprep.tokens.made_from import MadeFrom
from packprep.tokens.store_entries import EntryFacts, entries_in, using
from packprep.tokens.token_files import BASE_MEMORY
from packprep.windows.planner import Planner

Made = TypeVar("Made")
Made_co = TypeVar("Made_co", covariant=True)


class Origin(Protocol):
    """Origin of the documents of a command: `SourceRows`, or tokens that `stored.Tokens` has.

    has_text: False if their tokens are all that there is.
    """

    @property
    def has_text(self) -> bool: ...

    def tokenizer(self, progress: Progress) -> Tokenizer:
        """Their tokenizer."""

    def sources(self, staging: Staging, progress: Progress) -> list[Source]:
        """Their sources."""

    def used(self, job: Job) -> AbstractContextManager[None]:
        """Keep the token files of a job from deletion while it runs."""


class Destination(Protocol[Made]):
    """Output of a command while it is made; see `packprep.output.build_output.BuildOutput`."""

    @property
    def one_split_does(self) -> bool: ...

    @property
    def target(self) -> Target[Manifest]: ...

    def held(self, staging: Path, *, shared: bool = False) -> AbstractContextManager[None]: ...

    def left_out(self) -> Mapping[str, Collection[int]]: ...

    def wanted(self, sources: Sequence[Source], progress: Progress) -> list[Source]: ...

    def already_built(
        self, inputs: BuildInputs, overwrite: bool, progress: Progress
    ) -> Made | None: ...

    def keep(self, staging: Path, made: Made, progress: Progress) -> Made: ...

    def publish(self, staging: Path, progress: Progress) -> Made: ...


@dataclass(frozen=True)
class SourceRows:
    """Rows of the sources of a config, which are read and tokenized; see `Origin`."""

    config: BuildConfig
    has_text = True

    def tokenizer(self, progress: Progress) -> Tokenizer:
        config = self.config
        check_local(config.reading, config.output)  # first, because the hub may answer slowly
        progress.wait("loading tokenizer")
        tokenizer = load_build_tokenizer(config.tokenizing, config.parsing, config.token_type)
        progress.wait("opening sources")
        for note in tokenizer.notes:
            progress.say(note)
        return tokenizer

    def sources(self, staging: Staging, progress: Progress) -> list[Source]:
        config = self.config
        # Digests are kept if reading sources again is slow, or if other processes need them.
        with remembered(staging.path / DIGESTS, local=config.runner == "array"):
            found = resolve(
                config.reading, config.parsing, config.output, staging.scratch, progress
            )
        window = window_within(config.max_memory - BASE_MEMORY)
        return [replace(source, max_window=window) for source in found]

    @contextmanager
    def used(self, job: Job) -> Iterator[None]:
        if not job.config.keep_tokens:
            yield
            return
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
                    change = Change(entry_inputs(entry.facts), entry_inputs(facts))
                    _check_default(entry.path, change, job.config.given)
        with using(job.tokens, facts):
            MadeFrom.of(job.config, job.tokenizer, job.sources).write(job.tokens)
            yield


def entry_inputs(facts: EntryFacts) -> BuildInputs:
    """The inputs that decided the tokens of an entry."""
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


@dataclass(frozen=True, kw_only=True)
class Work(Generic[Made]):
    """One command, as its user gave it.

    packs: False if it ends with token files. planner: see `packprep.build`.
    """

    config: BuildConfig
    origin: Origin
    output: Destination[Made]
    packs: bool = True
    planner: Planner | None = None

    @property
    def path(self) -> Path:
        """Place of its output, see `Target.path`. ConfigError if none is named."""
        if not self.config.output:
            raise ConfigError("no output is given; add -o with the directory to write to")
        return self.output.target.path

    def tokenizer(self, progress: Progress) -> Tokenizer:
        """Its tokenizer. ConfigError if that lacks a token that cuts need, or has too many ids."""
        tokenizer = self.origin.tokenizer(progress)
        tokenizer.shard_type(self.config.token_type)
        check_continuation(self.config.cutting, tokenizer)
        return tokenizer

    def job(
        self, tokenizer: Tokenizer, staging: Staging, progress: Progress, process: str = ""
    ) -> Job:
        """The job of its sources. process: see `Job`."""
        found = with_skip_rows(
            self.origin.sources(staging, progress), self.config.skip_rows, self.output.left_out()
        )
        return Job(
            config=self.config.with_label_kind(found[0].labels),
            staging=staging.path,
            tokenizer=tokenizer,
            sources=self.output.wanted(found, progress),
            planner=self.planner,
            process=process,
            has_text=self.origin.has_text,
            packs=self.packs,
        )


def inputs_of(job: Job) -> BuildInputs:
    """Inputs that decide the bytes of the output; of the user's own planner, its name."""
    own = {}
    if (planner := job.planner) is not None:
        name = getattr(planner, "__qualname__", type(planner).__qualname__)
        own["planner"] = f"{planner.__module__}.{name}"
    ids = job.tokenizer.shard_type(job.config.token_type)  # instead of auto
    inputs: BuildInputs = {
        "options": {**replace(job.config, token_type=ids).identity(), **own},
        "sources": [source.as_input() for source in job.sources],
        "tokenizer": job.tokenizer.as_dict(),
    }
    if not job.config.is_mix:
        return inputs
    mix = job.config.mix_rules()
    files = Counter(source.entry for source in job.sources)
    if mix.phases:
        facts = [{"max_epochs": float(entry.max_epochs)} for entry in mix.entries]
        inputs["phases"] = [phase.as_dict() for phase in mix.phases]
    else:
        facts = as_dicts(mix.entries)
    inputs["mix"] = [{"files": files[number]} | fact for number, fact in enumerate(facts)]
    return inputs


def facts_of(job: Job, inputs: BuildInputs) -> BuildFacts:
    """Content of build.json."""
    return build_facts(
        inputs,
        names=[source.name for source in job.sources],
        tokens=str(job.tokens),
        source_bytes=sum(source.bytes for source in job.sources),
    )
