"""Token stores as what a command packs, and as what it makes.

`tokenize` adds an entry with the tokens of new sources to a store. `pack` takes the entries of
stores, several of them as one, and does what a build of their sources would do next.
"""

import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from packprep.config.build_config import BuildConfig
from packprep.config.grammar.source_names import names_token_files
from packprep.config.keywords import takes_config
from packprep.config.stages import PER_SOURCE
from packprep.config.verbs import OF_TEXT, PACK, TOKEN_FILES, TOKENIZE, check_verb
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
from packprep.schemas.manifest import Manifest
from packprep.schemas.storage.stores import is_url
from packprep.schemas.storage.writing import write_file
from packprep.sources.source import Source, documents_key, split_new
from packprep.support.errors import ConfigError, InputError
from packprep.support.progress import Progress
from packprep.tokens.made_from import MadeFrom
from packprep.tokens.store import TokenFile, receipt_json, stored, text_options
from packprep.tokens.store_entries import EntryFacts, StoreEntry, entries_in, is_entry, using
from packprep.tokens.store_place import check_store_place
from packprep.tokens.token_files import seal
from packprep.windows.planner import Planner

_OWN = (OF_TEXT & {*PER_SOURCE}) - {"limit"}
_OF_A_MIX = ("weight", "max_epochs")  # keys of a source
_Value = TypeVar("_Value")


def find_entries(stores: Sequence[str]) -> list[StoreEntry]:
    """The finished entries at these paths, in order.

    A path is an entry or a store, whose entries are in the order of the names of their sources, so
    that it does not matter which was tokenized first. Raises InputError for another folder, and
    for an entry that is not finished.
    """
    found: list[StoreEntry] = []
    for name in stores:
        path = Path(name)
        if is_entry(path):
            found.append(_checked(StoreEntry(path)))
            continue
        entries = entries_in(path) if path.is_dir() else []
        if not entries:
            raise InputError(
                f"{name} has no tokens; expected a folder of packprep tokenize or --keep-tokens "
                "(packprep build tokenizes and packs text)"
            )
        found += sorted(map(_checked, entries), key=_names)
    return found


def _checked(entry: StoreEntry) -> StoreEntry:
    """The entry. Raises InputError if it is not finished."""
    state = entry.state
    if state == "unfinished":
        raise InputError(
            f"{entry.path} is unfinished; run the command that made it again to finish it, or "
            f"delete it with packprep store gc {entry.path.parent}"
        )
    if state == "damaged" and (damage := _damage(entry)) is not None:
        raise damage
    return entry


def _names(entry: StoreEntry) -> tuple[list[str], str]:
    return [source.name for source in entry.made_from.sources], entry.path.name


def _damage(entry: StoreEntry) -> InputError | None:
    """The error about the first file of an entry that is damaged; None if all are sound."""
    fault = next(entry.faults(), None)
    if fault is None:
        return None
    return InputError(f"{fault}; delete {entry.path} and tokenize its sources again")


def made_of(entries: Sequence[StoreEntry]) -> MadeFrom:
    """What the tokens of these entries were made from, all sources together.

    Entries may differ in options that a source may have of its own. Raises ConfigError for entries
    that differ in another option or in their tokenizer, and for a source that is in two of them.
    """
    first = entries[0].made_from
    for entry in entries[1:]:
        if changed := _difference(first, entry.made_from):
            raise ConfigError(
                f"{entry.path} and {entries[0].path} differ ({changed}); pack each by itself, or "
                "tokenize both alike"
            )
    named: list[Any] = []
    sources: list[Source] = []
    have: dict[object, Path] = {}
    for entry in entries:
        each = entry.made_from
        for source in each.sources:
            if (
                other := have.setdefault(documents_key(source.as_dict()), entry.path)
            ) != entry.path:
                raise ConfigError(
                    f"{source.name} is in {other} and in {entry.path}; pack one of them, or delete "
                    "one with packprep store gc"
                )
        own = {name: each.options[name] for name in _OWN}
        own = {name: value for name, value in own.items() if value != first.options[name]}
        sources += [
            replace(source, entry=source.entry + len(named), reading=own | dict(source.reading))
            for source in each.sources
        ]
        named += [_with(source, own) for source in each.options["sources"]]
    options = dict(first.options) | {"sources": named}
    return MadeFrom(options=options, tokenizer=first.tokenizer, sources=sources)


def _difference(first: MadeFrom, other: MadeFrom) -> str:
    shared = OF_TEXT - _OWN - {"sources", "tokenizer", "engine", "verify_engine", "check_against"}
    was, now = (
        {
            "options": {name: each.options[name] for name in shared},
            "sources": [],
            "tokenizer": each.tokenizer.as_dict(),
        }
        for each in (first, other)
    )
    return Change(was, now).words()  # type: ignore[arg-type]  # of the keys of inputs


def _with(source: Any, own: Mapping[str, object]) -> Any:
    """An entry of `sources` with options of its own, and without those of the mix of a build."""
    if isinstance(source, str):
        return {"path": source, **own} if own else source
    return {key: value for key, value in {**own, **source}.items() if key not in _OF_A_MIX}


def join_entries(
    entries: Sequence[StoreEntry],
    directory: Path,
    scratch: Path,
    link: Callable[[Path, Path], object],
) -> None:
    """Make a folder of token files of all entries, numbered one after the other.

    Nothing is done if it is there. scratch: on the same disk. link: f(file, name in the folder).
    """
    if directory.exists():
        return
    made = scratch / "joined"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    files: list[TokenFile] = []
    sources = 0
    for entry in entries:
        of_entry = stored(entry.path, digests=False)
        if of_entry is None:
            raise _damage(entry) or InputError(f"{entry.path} is damaged")
        unit = files[-1].unit + 1 if files else 0
        document = files[-1].end if files else 0
        for file in of_entry:
            moved = _moved(file, unit, document, sources)
            link((entry.path / file.name).absolute(), made / moved.name)
            write_file((made / moved.name).with_suffix(".json"), receipt_json(moved))
            files.append(moved)
        sources += len(entry.made_from.sources)
    seal(made, files)
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        made.rename(directory)
    except OSError:  # another process of this build has made it
        if not directory.exists():
            raise
        shutil.rmtree(made)


def _moved(file: TokenFile, unit: int, document: int, source: int) -> TokenFile:
    """The receipt of a token file after those of other entries."""

    def renumbered(counts: Mapping[str, _Value]) -> dict[str, _Value]:
        return {str(int(number) + source): count for number, count in counts.items()}

    return replace(
        file,
        unit=file.unit + unit,
        first_document=file.first_document + document,
        parts=tuple(replace(part, source=part.source + source) for part in file.parts),
        cut=renumbered(file.cut),
        left_out=renumbered(file.left_out),
        turns=renumbered(file.turns),
    )


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
                raise next(filter(None, map(_damage, entries)), error) from None

    def joined(self, sources: Sequence[Source], staging: Staging) -> Path:
        """Folder of the token files of these sources, to read only."""
        entries = self._wanted(sources)
        if len(entries) == 1:
            return entries[0].path
        join_entries(entries, staging.path / "tokens", staging.scratch, os.symlink)
        return staging.path / "tokens"

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
            if changed := Change(was, now).words(_OWN):
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
