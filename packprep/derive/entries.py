"""Entries of token stores taken together: found, compared, and joined as if of one build."""

import functools
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from packprep.config.stages import PER_SOURCE
from packprep.config.verbs import OF_TEXT
from packprep.output.build_facts import Change
from packprep.schemas.storage.writing import write_file
from packprep.sources.source import Source, documents_key
from packprep.support.errors import ConfigError, InputError
from packprep.tokens.made_from import MadeFrom
from packprep.tokens.store import TokenFile, receipt_json, stored
from packprep.tokens.store_entries import StoreEntry, entries_in, entry_order, is_entry
from packprep.tokens.token_files import seal

OF_ENTRY = (OF_TEXT & {*PER_SOURCE}) - {"limit"}
"""Options that the entries of a store need not share: a source may have its own."""

_OF_A_MIX = ("weight", "max_epochs")  # keys of a source
_Value = TypeVar("_Value")


def find_entries(stores: Sequence[str]) -> list[StoreEntry]:
    """The finished entries at these paths, in order.

    A path is an entry or a store, whose entries are in the order of the names of their sources, so
    that it does not matter which was tokenized first. Those that `merge` put there come before
    them, in its order. Raises InputError for another folder, and for an entry that is not finished.
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
        merged = entry_order(path)
        found += sorted(map(_checked, entries), key=functools.partial(_place, merged))
    return found


def _checked(entry: StoreEntry) -> StoreEntry:
    """The entry. Raises InputError if it is not finished."""
    state = entry.state
    if state == "unfinished":
        raise InputError(
            f"{entry.path} is unfinished; run the command that made it again to finish it, or "
            f"delete it with packprep store gc {entry.path.parent}"
        )
    if state == "damaged" and (damage := damage_of(entry)) is not None:
        raise damage
    return entry


def _place(merged: Sequence[str], entry: StoreEntry) -> tuple[int, list[str], str]:
    """Key by which entries of a store are sorted. merged: see `entry_order`."""
    name, sources = entry.path.name, [source.name for source in entry.made_from.sources]
    return merged.index(name) if name in merged else len(merged), sources, name


def damage_of(entry: StoreEntry) -> InputError | None:
    """The error about the first file of an entry that is damaged; None if all are sound."""
    fault = next(entry.faults(), None)
    if fault is None:
        return None
    return InputError(f"{fault}; delete {entry.path} and tokenize its sources again")


def made_of(entries: Sequence[StoreEntry]) -> MadeFrom:
    """Inputs that the tokens of these entries were made from, all sources together.

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
        own = {name: each.options[name] for name in OF_ENTRY}
        own = {name: value for name, value in own.items() if value != first.options[name]}
        sources += [
            replace(source, entry=source.entry + len(named), reading=own | dict(source.reading))
            for source in each.sources
        ]
        named += [_with(source, own) for source in each.options["sources"]]
    options = dict(first.options) | {"sources": named}
    return MadeFrom(options=options, tokenizer=first.tokenizer, sources=sources)


def _difference(first: MadeFrom, other: MadeFrom) -> str:
    shared = (
        OF_TEXT - OF_ENTRY - {"sources", "tokenizer", "engine", "verify_engine", "check_against"}
    )
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
            raise damage_of(entry) or InputError(f"{entry.path} is damaged")
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
