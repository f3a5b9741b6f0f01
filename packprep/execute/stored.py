"""Token stores as what a command packs, and as what it makes.

`tokenize` adds an entry with the tokens of new sources to a store. `pack` takes the entries of
stores, several of them as one, and does what a build of their sources would do next.
"""

import itertools
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from packprep.config.build_config import BuildConfig
from packprep.config.grammar.source_names import names_token_files
from packprep.config.keywords import takes_config
from packprep.config.verbs import PACK, TOKEN_FILES, TOKENIZE, check_verb
from packprep.derive.entries import OF_ENTRY, damage_of, find_entries, join_entries, made_of
from packprep.derive.shards import link_file
from packprep.engines.tokenizer import Tokenizer
from packprep.execute.append import open_output
from packprep.execute.job import Job
from packprep.execute.pipeline import run
from packprep.execute.stages import DamagedTokens
from packprep.execute.work import SourceRows, Work, entry_inputs
from packprep.output.build_facts import BuildInputs, Change
from packprep.output.directory import LocalTarget
from packprep.output.staging import OUTPUT, Staging
from packprep.schemas.index_table import TOKENS
from packprep.schemas.manifest import Manifest
from packprep.schemas.storage.stores import is_url
from packprep.sources.source import Source, documents_key, split_new
from packprep.support.errors import ConfigError, InputError
from packprep.support.progress import Progress
from packprep.tokens.made_from import MadeFrom
from packprep.tokens.store import TokenFile, stored, text_options
from packprep.tokens.store_entries import EntryFacts, StoreEntry, entries_in, using
from packprep.tokens.store_place import check_store_place
from packprep.windows.planner import Planner


@takes_config
def tokenize(config: BuildConfig, *, progress: Progress | None = None) -> list[StoreEntry]:
    """Tokenize the sources that the store at `config.output` does not have yet.

    Their tokens are one new entry of the store. Returns all its entries. Raises ConfigError for an
    option that decides packs, and for a store of another tokenizer or of other text options;
    InputError names file and row. After StoppedError, OSError or an interruption the same call
    resumes.
    """
    return run(of_tokenize(config), progress)


def of_tokenize(config: BuildConfig) -> Work[list[StoreEntry]]:
    """The work of `tokenize`."""
    check_verb(config.given, TOKENIZE, "tokenize", "pack")
    if config.is_mix:
        raise ConfigError("weights of sources draw documents; give --weights to packprep pack")
    if not config.output or is_url(config.output):
        raise ConfigError(
            f"-o is {config.output or 'missing'}, expected a folder on this machine or a shared "
            "disk, to keep tokens in"
        )
    store = Path(config.output)
    check_store_place(config.output, None)
    config = replace(config, keep_tokens=config.output)
    return Work(config=config, origin=SourceRows(config), output=TokenOutput(store), packs=False)


def pack(
    stores: Sequence[str | os.PathLike[str]],
    *,
    planner: Planner | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Manifest:
    """Pack the tokens of stores into shards at `output`; no text is read.

    stores: folders of `tokenize` or of keep_tokens, or entries of them; or token files of another
    tool, with their tokenizer or vocab_size. options: of `BuildConfig`, as far as they decide
    packs. planner, errors: see `packprep.build`. The output has the bytes that a build of the
    sources of one entry has; of several entries, each begins a unit of its own.
    """
    return run(of_pack([os.fspath(store) for store in stores], options, planner), progress)


def of_pack(
    stores: Sequence[str], options: Mapping[str, Any], planner: Planner | None = None
) -> Work[Manifest]:
    """The work of `pack`."""
    of_others = names_token_files(stores)
    check_verb(options, PACK | TOKEN_FILES if of_others else PACK, "pack", "tokenize")
    if of_others:
        config = BuildConfig(sources=tuple(stores), **options)
        output = open_output(config.running, config.command, config.given)
        return Work(config=config, origin=SourceRows(config), output=output, planner=planner)
    tokens = Tokens(find_entries(stores))
    if "max_tokens" in options:
        if not {"weights", "phases"} & {*options}:
            raise ConfigError(
                "--max-tokens of pack is for a mix, and these tokens are all there is to pack; "
                "give it to packprep tokenize, or add --weights"
            )
        if tokens.made_from.options["max_tokens"] is not None:
            raise ConfigError(
                f"{tokens.entries[0].path} was tokenized with --max-tokens, so a mix of it would "
                "draw from a part of its sources; tokenize them without"
            )
    config = BuildConfig(**{**tokens.options, **options})
    output = open_output(config.running, config.command, config.given)
    return Work(config=config, origin=tokens, output=output, planner=planner)


@dataclass(frozen=True)
class Tokens:
    """Entries of token stores, as the origin of documents; see `work.Origin`."""

    entries: Sequence[StoreEntry]
    has_text = False

    @cached_property
    def made_from(self) -> MadeFrom:
        """See `made_of`."""
        return made_of(self.entries)

    @property
    def options(self) -> dict[str, Any]:
        """Options of a build that has these tokens."""
        options = dict(self.made_from.options)
        if options["tokenizer"] is None and self.made_from.tokenizer.json:  # it was an object
            import tokenizers

            text = self.made_from.tokenizer.json.decode()
            options["tokenizer"] = tokenizers.Tokenizer.from_str(text)
        if len(self.entries) == 1:
            options["keep_tokens"] = str(self.entries[0].path.parent)
        return options

    def tokenizer(self, progress: Progress) -> Tokenizer:
        return self.made_from.tokenizer

    def sources(self, staging: Staging, progress: Progress) -> list[Source]:
        return [*self.made_from.sources]

    @contextmanager
    def used(self, job: Job) -> Iterator[None]:
        entries = self._wanted(job.sources)
        with ExitStack() as stack:
            for entry in entries:
                stack.enter_context(using(entry.path))
            if job.config.keep_tokens is None:
                link = link_file if job.config.materialize == "index" else os.symlink
                join_entries(entries, job.tokens, job.scratch, link)
            elif job.tokens != entries[0].path:
                raise InputError(
                    f"{entries[0].path} is not named {job.tokens.name}, as its content asks; "
                    "rename it, or tokenize again if an earlier packprep made it"
                )
            try:
                yield
            except DamagedTokens as error:
                raise next(filter(None, map(damage_of, entries)), error) from None

    def joined(self, job: Job) -> tuple[Path, list[TokenFile]]:
        """Folder of the token files of a job, to read only, and their receipts."""
        entries = self._wanted(job.sources)
        folder = entries[0].path
        if len(entries) > 1:
            folder = job.staging / TOKENS
            join_entries(entries, folder, job.scratch, os.symlink)
        return folder, stored(folder, digests=False) or []

    def _wanted(self, sources: Sequence[Source]) -> list[StoreEntry]:
        """The entries of these sources. ConfigError for an entry that has others too."""
        keys = {documents_key(source.as_dict()) for source in sources}
        left = iter(self.made_from.sources)
        found = []
        for entry in self.entries:
            of_entry = itertools.islice(left, len(entry.made_from.sources))
            wanted = [documents_key(source.as_dict()) in keys for source in of_entry]
            if any(wanted) and not all(wanted):
                raise ConfigError(
                    f"{entry.path} has sources that are packed already, and others; tokenize the "
                    "new ones into an entry of their own"
                )
            found += [entry] * all(wanted)
        return found


@dataclass(frozen=True)
class TokenOutput:
    """A token store to which a command adds an entry; see `work.Destination`."""

    store: Path
    one_split_does = True

    def __str__(self) -> str:
        return str(self.store)

    @cached_property
    def target(self) -> LocalTarget[Manifest]:
        """The store, with no output in it; its lock and working directory are beside it."""
        return LocalTarget(OUTPUT, self.store)

    @property
    def _entries(self) -> list[tuple[StoreEntry, EntryFacts]]:
        """Finished entries, and what they are made from."""
        entries = entries_in(self.store) if self.store.is_dir() else []
        return [
            (entry, facts)
            for entry in entries
            if entry.state == "whole" and (facts := entry.facts) is not None
        ]

    def held(self, staging: Path, *, shared: bool = False) -> AbstractContextManager[None]:
        return nullcontext()

    def left_out(self) -> Mapping[str, Collection[int]]:
        return {}

    def wanted(self, sources: Sequence[Source], progress: Progress) -> list[Source]:
        """Sources that the store does not have. ConfigError for one that has changed since."""
        stored = [source for _, facts in self._entries for source in facts.sources]
        known, new = split_new(sources, stored, self, "tokenize into another -o")
        if known:
            progress.say(f"{len(known):,} of {len(sources):,} sources are in {self}")
        return new

    def already_built(
        self, inputs: BuildInputs, overwrite: bool, progress: Progress
    ) -> list[StoreEntry] | None:
        """The entries if there is nothing to tokenize. ConfigError for a store of other tokens."""
        most = cast("int | None", inputs["options"]["max_tokens"])
        now: BuildInputs = {
            "options": text_options(inputs["options"], most),
            "sources": [],
            "tokenizer": inputs["tokenizer"],
        }
        for _, facts in self._entries:
            was = entry_inputs(facts)
            was["sources"] = []
            was["tokenizer"] = {k: v for k, v in was["tokenizer"].items() if k != "name"}
            if changed := Change(was, now).words(OF_ENTRY):
                raise ConfigError(
                    f"{self} has tokens of other settings ({changed}); "
                    f"{Change(was, now).advice}, or choose another -o"
                )
        return None if inputs["sources"] else self._made()

    def keep(self, staging: Path, made: list[StoreEntry], progress: Progress) -> list[StoreEntry]:
        shutil.rmtree(staging)
        progress.say(f"{self} has all sources already: nothing to do")
        return made

    def publish(self, staging: Path, progress: Progress) -> list[StoreEntry]:
        shutil.rmtree(staging)
        return self._made()

    def _made(self) -> list[StoreEntry]:
        return [entry for entry, _ in self._entries]
