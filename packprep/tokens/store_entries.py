"""Entries of a token store: what each holds, whether it is whole, and its deletion.

STORE/KEY/
  unit-*.arrow, unit-*.json   token files and their receipts, see store.py
  files.json                  the token files of a finished entry
  entry.json                  tokenizer, sources and text options; older entries have none
  made_from.json              all that packing needs of these, see made_from.py
  used                        touched by every build, which locks it as long as it runs

A store that was merged has order.json, the order in which its entries are packed.

A build shares the lock of `used` with other builds; deletion needs it alone. So an entry that a
build reads is never deleted, and a build that begins meanwhile waits and then writes it again.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from packprep.schemas.canonical import canonical_json, file_size, file_xxh3, parse_json
from packprep.schemas.files import MANIFEST
from packprep.schemas.manifest import Manifest
from packprep.schemas.storage.writing import write_file
from packprep.sources.source import SourceFacts, documents_key
from packprep.support.errors import ConfigError, InputError
from packprep.support.file_lock import Held, locked
from packprep.support.from_json import from_json
from packprep.tokens.made_from import MADE_FROM, MadeFrom, read_made_from
from packprep.tokens.store import (
    STORED,
    TokenFile,
    listed_files,
    read_token_receipt,
    rows_of_sources,
    stored,
    undamaged,
)

ENTRY = "entry.json"
USED = "used"
ORDER = "order.json"  # of a merged store


@dataclass(frozen=True)
class EntryFacts:
    """Content of entry.json."""

    tokenizer: dict[str, object]
    sources: list[SourceFacts]
    options: dict[str, object]


@dataclass(frozen=True)
class StoreEntry:
    """One entry: the tokens of some sources, by one tokenizer."""

    path: Path

    @cached_property
    def facts(self) -> EntryFacts | None:
        """Content of entry.json; None if an older packprep wrote none."""
        try:
            return from_json(EntryFacts, parse_json((self.path / ENTRY).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    @cached_property
    def made_from(self) -> MadeFrom:
        """See `read_made_from`."""
        return read_made_from(self.path)

    @cached_property
    def _listed(self) -> list[str] | None:
        """Names of the token files; None if the entry is not finished, ValueError for damage."""
        try:
            return listed_files((self.path / STORED).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            raise ValueError(f"{self.path / STORED} is not a list of token files") from None

    @cached_property
    def files(self) -> list[TokenFile]:
        """Receipts of the token files that have their size."""
        names = sorted(path.with_suffix(".arrow").name for path in self.path.glob("unit-*.json"))
        receipts = (read_token_receipt(self.path, name, digests=False) for name in names)
        return [receipt for receipt in receipts if receipt is not None]

    @property
    def state(self) -> str:
        """whole, unfinished, or damaged; a damaged byte that leaves sizes equal is not seen."""
        if not (self.path / STORED).exists():
            return "unfinished"
        return "damaged" if stored(self.path, digests=False) is None else "whole"

    @cached_property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(file_size(path) or 0 for path in self.path.iterdir())

    @property
    def last_used(self) -> float:
        """Seconds since 1970 of the begin of the last build that used it."""
        path = self.path / USED
        return (path if path.exists() else self.path).stat().st_mtime

    def as_dict(self) -> dict[str, object]:
        """Facts for people; tokenizer and sources are None if entry.json is missing."""
        facts = self.facts
        return {
            "entry": self.path.name,
            "tokenizer": facts and facts.tokenizer.get("name"),
            "sources": facts and [source.get("name") for source in facts.sources],
            "documents": sum(rows_of_sources(self.files, self._sources)),
            "tokens": sum(file.tokens for file in self.files),
            "bytes": self.bytes,
            "state": self.state,
            "last_used": datetime.fromtimestamp(self.last_used, UTC).isoformat(timespec="seconds"),
        }

    @property
    def _sources(self) -> int:
        return 1 + max((part.source for file in self.files for part in file.parts), default=0)

    def faults(self) -> Iterator[str]:
        """A clause for each file that is missing or differs from its receipt."""
        try:
            listed = self._listed
        except ValueError as error:
            yield str(error)
            listed = None
        try:
            if (self.path / MADE_FROM).exists():
                read_made_from(self.path)
        except InputError:
            yield f"{self.path / MADE_FROM} has changed since it was written"
        if listed is None:
            listed = sorted(path.with_suffix(".arrow").name for path in self.path.glob("*.json"))
            listed = [name for name in listed if name.startswith("unit-")]
        for name in listed:
            if (fault := self._fault(name)) is not None:
                yield fault

    def _fault(self, name: str) -> str | None:
        path, receipt = self.path / name, (self.path / name).with_suffix(".json")
        size = file_size(path)
        if size is None:
            return f"{path} is missing"
        try:
            facts = parse_json(receipt.read_bytes())
            expected, digest = int(facts["bytes"]), str(facts["xxh3"])
        except FileNotFoundError:
            return f"{receipt} is missing, the receipt of {name}"
        except (ValueError, KeyError, TypeError):
            return f"{receipt} is not the receipt of {name}"
        if size != expected:
            return f"{path} has {size:,} bytes; its receipt says {expected:,}"
        if (found := file_xxh3(path)) != digest:
            return f"{path} has xxh3 {found}; its receipt says {digest}"
        if read_token_receipt(self.path, name, digests=False) is None:
            return f"{receipt} is not the receipt of {name}"
        return None

    def used_by(self, manifest: Manifest) -> bool:
        """True if an output reads this entry, or was built from what it holds.

        A build of equal sources, tokenizer and text options would read it. A merged output has
        the sources of several entries.
        """
        index = manifest.data.get("index")
        if isinstance(index, dict):
            keys = {file["path"].split("/")[0] for file in index["files"]}
            return self.path.name in keys
        if self.facts is None:
            return True  # nobody knows
        inputs = manifest.data["inputs"]
        sources, options = map(documents_key, inputs["sources"]), inputs["options"]
        tokenizer = {k: v for k, v in self.facts.tokenizer.items() if k != "name"}
        return (
            tokenizer == inputs["tokenizer"]
            and {*map(documents_key, self.facts.sources)} <= {*sources}
            and all(
                options[name] == value
                for name, value in self.facts.options.items()
                if name in options and name != "max_tokens"
            )
        )

    def delete(self) -> None:
        """Delete the entry; Held if a build writes or reads it.

        Killed in between, it leaves an unfinished entry, which a build finishes.
        """
        with locked(self.path, f"tokens are being written to {self.path}"):
            handle = os.open(self.path / USED, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:  # held, or a file system without locks, where nobody knows
                    raise Held(f"{self.path} is being read by a build; it stays") from None
                (self.path / STORED).unlink(missing_ok=True)
                shutil.rmtree(self.path)
            finally:
                os.close(handle)


def store_entries(store: Path) -> list[StoreEntry]:
    """The entries of a token store, by name.

    Raises InputError if it is not a directory, ConfigError if it belongs to an output.
    """
    if not store.is_dir():
        raise InputError(f"{store} is not a directory; give the one that --keep-tokens names")
    if (store.parent / MANIFEST).exists():
        raise ConfigError(
            f"{store} belongs to the output {store.parent}; packprep verify checks it, and it is "
            "deleted with the output"
        )
    return entries_in(store)


def entries_in(store: Path) -> list[StoreEntry]:
    """The entries in a folder, by name."""
    return [StoreEntry(path) for path in sorted(store.iterdir()) if is_entry(path)]


def entry_order(store: Path) -> list[str]:
    """Names of the entries of a merged store, in order; none of another store.

    Entries that came later are not in it, and it may name deleted ones. Raises InputError if it is
    damaged.
    """
    path = store / ORDER
    try:
        return [str(name) for name in undamaged(parse_json(path.read_bytes()))["entries"]]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} cannot be read: {error}; delete it, and entries are packed in the order of "
            "the names of their sources"
        ) from None


def is_store(path: Path) -> bool:
    """True if a folder is a token store with a finished entry, or such an entry."""
    return (path / STORED).exists() or any(path.glob(f"*/{STORED}"))


def is_entry(path: Path) -> bool:
    """True if a folder is an entry of a token store, finished or not."""
    names = (STORED, ENTRY)
    return any((path / name).exists() for name in names) or any(path.glob("unit-*.json"))


@contextmanager
def using(path: Path, facts: EntryFacts | None = None) -> Iterator[None]:
    """Keep an entry from deletion; other builds may use it at the same time.

    facts: content of entry.json, written unless it is there; None to write none.
    """
    handle = _shared(path)
    try:
        os.utime(handle)
        if facts is not None and StoreEntry(path).facts is None:
            write_file(path / ENTRY, canonical_json(vars(facts)))
        yield
    finally:
        os.close(handle)


def _shared(path: Path) -> int:
    """Open file `used` of an entry, locked together with other builds."""
    while True:
        try:
            path.mkdir(parents=True, exist_ok=True)
            handle = os.open(path / USED, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:
            continue  # deleted in between
        try:
            fcntl.flock(handle, fcntl.LOCK_SH)
        except OSError:  # a file system without locks: there `delete` deletes nothing
            return handle
        try:
            if os.path.samestat(os.fstat(handle), (path / USED).stat()):
                return handle
        except FileNotFoundError:
            pass
        os.close(handle)  # it was deleted while this build waited
