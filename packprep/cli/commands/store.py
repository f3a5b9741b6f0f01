"""`packprep store`: the entries of a token store, checked and deleted."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from packprep.cli.completion import of_paths
from packprep.cli.options import json_option
from packprep.cli.printing import print_json

if TYPE_CHECKING:
    from packprep.tokens.store_entries import StoreEntry

_SHORT = 12  # characters of a name
_TOTALS = ("documents", "tokens", "bytes")
_AGAIN = "the next build from it makes it again"


@click.command("store", short_help="List, verify or clean a store of tokens (--keep-tokens).")
@click.argument("action", type=click.Choice(["ls", "verify", "gc"]))
@click.argument("store", metavar="DIR", shell_complete=of_paths("dir"))
@click.option(
    "--keep",
    multiple=True,
    metavar="OUT",
    shell_complete=of_paths("dir"),
    help="gc: output, finished or not, whose tokens stay; may be repeated. Without it, gc deletes "
    "unfinished entries only.",
)
@click.option("--yes", is_flag=True, help="gc: do not ask.")
@json_option()
@click.pass_context
def command(
    context: click.Context,
    /,
    action: str,
    store: str,
    keep: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """List, verify or clean DIR, a store of tokens that --keep-tokens names.

    An entry of the store has the tokens of some sources by one tokenizer.

    ls shows each entry. verify compares every file with its digest. gc deletes entries that are
    unfinished, and those that no output given by --keep uses; it asks first, and leaves those that
    a running build uses.

    \b
    Example:
      packprep store ls store
      packprep store gc store --keep packed --keep packed-4k

    Exit codes: 1 verify found damage, 2 there is no store.
    """
    from packprep.support.errors import ConfigError
    from packprep.tokens.store_entries import store_entries

    if action != "gc" and (keep or yes):
        raise ConfigError(f"--keep and --yes are for gc, not {action}; leave them out")
    entries = store_entries(Path(store))
    if action == "ls":
        _list(store, entries, as_json)
    elif action == "verify":
        context.exit(verify_entries(Path(store), entries, as_json=as_json))
    else:
        _clean(store, entries, keep, yes, as_json)


def _list(store: str, entries: "list[StoreEntry]", as_json: bool) -> None:
    from packprep.cli.printing import print_columns

    if as_json:
        print_json([entry.as_dict() for entry in entries])
        return
    if not entries:
        click.echo(f"{store} has no tokens")
    print_columns([_shown(entry) for entry in entries])


def _shown(entry: "StoreEntry") -> dict[str, object]:
    """Facts of an entry as cells of a table."""
    row = entry.as_dict()
    sources = row["sources"] if isinstance(row["sources"], list) else []
    more = f" and {len(sources) - 1:,} more" if len(sources) > 1 else ""
    return row | {
        "entry": entry.path.name[:_SHORT],
        "tokenizer": row["tokenizer"] or "unknown",
        "sources": f"{sources[0]}{more}" if sources else "unknown",
        "last_used": time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.last_used)),
    }


def verify_entries(
    store: Path, entries: "list[StoreEntry]", *, as_json: bool, quiet: bool = False
) -> int:
    """Print the faults of a store and of all its entries; 1 if there are any."""
    from packprep.support.errors import InputError
    from packprep.tokens.store_entries import ORDER, entry_order

    faults = {
        entry.path.name: [f"{fault}; {_AGAIN}" for fault in entry.faults()] for entry in entries
    }
    try:
        entry_order(store)
    except InputError as error:
        faults[ORDER] = [str(error)]
    count = sum(map(len, faults.values()))
    if as_json:
        print_json({"sound": not count, "faults": faults})
        return int(count > 0)
    for sentences in faults.values():
        for sentence in sentences:
            click.echo(sentence)
    size = sum(entry.bytes for entry in entries)
    found = f"{count:,} damaged files" if count != 1 else "1 damaged file"
    if not quiet or count:
        click.echo(f"{_entries(len(entries))}, {_size(size)}: {found if count else 'sound'}")
    return int(count > 0)


def print_store(store: str, *, as_json: bool, quiet: bool) -> None:
    """Print the entries of a store that a command has made as JSON, or their sums as a table."""
    from packprep.cli.printing import print_table
    from packprep.tokens.store_entries import entries_in

    entries = [entry.as_dict() for entry in entries_in(Path(store))]
    if as_json:
        print_json(entries)
    elif not quiet:
        totals = {name: sum(entry[name] for entry in entries) for name in _TOTALS}  # type: ignore[misc]
        rows = [("entries", f"{len(entries):,}"), *((k, f"{v:,}") for k, v in totals.items())]
        print_table(store, rows)


def _clean(
    store: str, entries: "list[StoreEntry]", keep: tuple[str, ...], yes: bool, as_json: bool
) -> None:
    from packprep.support.errors import ConfigError
    from packprep.support.file_lock import Held

    kept = _kept(entries, keep)
    doomed = [
        (entry, "unfinished" if entry.state == "unfinished" else "no output given uses it")
        for entry in entries
        if entry.path.name not in kept and (keep or entry.state == "unfinished")
    ]
    if not as_json:
        for entry, why in doomed:
            click.echo(f"{entry.path.name[:_SHORT]}  {_size(entry.bytes)}  {why}")
    if doomed and not yes:
        if as_json:
            raise ConfigError("--json cannot ask; give --yes too")
        size = sum(entry.bytes for entry, _ in doomed)
        if not click.confirm(f"delete {_entries(len(doomed))}, {_size(size)}?"):
            doomed = []
    freed, deleted, busy = 0, [], []
    for entry, _ in doomed:
        size = entry.bytes
        try:
            entry.delete()
        except Held as error:
            busy.append(str(error))
            continue
        freed += size
        deleted.append(entry.path.name)
    if as_json:
        print_json({"deleted": deleted, "bytes": freed, "in_use": busy})
        return
    for sentence in busy:
        click.echo(sentence)
    stay = len(entries) - len(deleted)
    click.echo(
        f"{_size(freed)} freed; {_entries(stay)} {'stays' if stay == 1 else 'stay'} in {store}"
    )


def _kept(entries: "list[StoreEntry]", outputs: tuple[str, ...]) -> set[str]:
    """Names of the entries that these outputs use, finished ones or not."""
    from packprep.cli.output_type import output_at
    from packprep.output.staging import BUILD, appended_path, staging_path
    from packprep.schemas.manifest import read_manifest

    kept: set[str] = set()
    for output in outputs:
        places = staging_path(Path(output)), staging_path(appended_path(Path(output)))
        builds = [path / BUILD for path in places if (path / BUILD).exists()]
        unfinished = {Path(json.loads(path.read_bytes())["tokens"]).name for path in builds}
        kept |= unfinished
        if unfinished and not Path(output).exists():
            continue
        manifest = read_manifest(output_at(output))
        kept |= {entry.path.name for entry in entries if entry.used_by(manifest)}
    return kept


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count:,} entries"


def _size(size: int) -> str:
    from packprep.execute.disk_space import size_text

    return size_text(size)
