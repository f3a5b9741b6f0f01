"""Merges token stores into one: `packprep merge` of stores. Its entries are links to all of theirs.

It is made beside its place and renamed there, so a killed merge leaves no store.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from packprep.derive.entries import OF_ENTRY, damage_of, find_entries, made_of
from packprep.derive.shards import link_file
from packprep.output.staging import staged
from packprep.schemas.storage.writing import sync_directory, write_file
from packprep.sources.source import SourceFacts, split_new
from packprep.support.errors import ConfigError
from packprep.support.file_lock import locked
from packprep.support.progress import Progress, Silent
from packprep.tokens.made_from import MADE_FROM
from packprep.tokens.store import STORED, with_digest
from packprep.tokens.store_entries import ENTRY, ORDER, StoreEntry, entry_order, using
from packprep.tokens.store_place import check_store_place
from packprep.tokens.token_files import sync_tokens


def merge_stores(
    stores: Sequence[Path], store: Path, progress: Progress | None = None
) -> list[StoreEntry]:
    """Make a store with the entries of all, in this order, and return them.

    `pack` of it writes what `pack` of all of them writes. Every file is compared with its digest.
    Nothing is done if `store` is the result already. Raises ConfigError if `store` is something
    else, if entries differ in their tokenizer or in an option that they share, and for a source
    that has other content in another store; InputError for damage.
    """
    progress = progress or Silent()
    check_store_place(str(store), None)
    entries = find_entries([str(each) for each in stores])
    kept = _without_repeated(entries)
    made_of(kept)
    names = [entry.path.name for entry in kept]
    with ExitStack() as stack:
        stack.enter_context(locked(store, f"{store} is being built"))
        staging = stack.enter_context(staged(store))
        if store.exists() and not (store.is_dir() and not any(store.iterdir())):
            if entry_order(store) != names or not all((store / name).exists() for name in names):
                raise ConfigError(f"{store} exists already; choose another -o")
            progress.say(f"{store} has these entries already: nothing to do")
            return [StoreEntry(store / name) for name in names]
        if repeated := len(entries) - len(kept):
            progress.say(f"{repeated:,} of {len(entries):,} entries are in another store too")
        made = staging.scratch / "store"
        for number, entry in enumerate(kept, 1):
            stack.enter_context(using(entry.path))
            if (damage := damage_of(entry)) is not None:
                raise damage
            _link(entry, made / entry.path.name)
            progress.advance("merge", number, len(kept), "entries")
        write_file(made / ORDER, with_digest({"entries": names}))
        made.rename(store)
        sync_directory(store.absolute().parent)
    return [StoreEntry(store / name) for name in names]


def _without_repeated(entries: Sequence[StoreEntry]) -> list[StoreEntry]:
    """The entries without those whose sources are all in another one."""
    kept: dict[StoreEntry, list[SourceFacts]] = {}
    for entry in sorted(entries, key=lambda each: -len(each.made_from.sources)):
        made = entry.made_from
        own = {name: made.options[name] for name in OF_ENTRY}
        sources = [replace(each, reading=own | dict(each.reading)) for each in made.sources]
        for other, stored in kept.items():
            advice = "pack the stores without merging them"
            if not split_new(sources, stored, other.path, advice)[1]:
                break
        else:
            kept[entry] = [{**each.as_dict(), "name": each.name} for each in sources]
    return [entry for entry in entries if entry in kept]


def _link(entry: StoreEntry, folder: Path) -> None:
    """Link the files of an entry, but not the file that shows its use."""
    folder.mkdir(parents=True)
    receipts = [Path(file.name).with_suffix(".json").name for file in entry.files]
    for name in (*receipts, *(file.name for file in entry.files), STORED, ENTRY, MADE_FROM):
        if (entry.path / name).exists():
            link_file(entry.path / name, folder / name)
    sync_tokens(folder, entry.files)
