"""One build at a time on an output in a store.

An object names the holder; the clock of the store tells since when.

Whoever finds no lock creates one, which only one of several can. Its holder writes it anew every
few seconds; one that was not for a minute, or whose process on this host is gone, is passed over by
creating its successor, lock.NONCE.json, which again only one can; so a holder that was asleep finds
his successor and stops, and no lock is ever taken from two.

A lock belongs to a staging directory, not to a process: the same command after a kill goes on at
once, and the tasks of an array have it together. It saves work and keeps nothing else: see
publish.py for why no two builds can mix.
"""

import contextlib
import json
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from os import getpid

from packprep.schemas.canonical import canonical_json
from packprep.schemas.storage.store_errors import StoreError
from packprep.schemas.storage.stores import Store
from packprep.support.errors import ConfigError, StoppedError, asked
from packprep.support.file_lock import STALE_AFTER, TOUCHED_EVERY, Held, Holder, runs

FIRST = "lock.json"


@dataclass(frozen=True, kw_only=True)
class _Lock:
    """Content of a lock.

    owner: token of a staging directory. nonce: of this lock, which no other ever has.

    shared: processes with the same owner come and go, so that one of them is gone says nothing.
    """

    name: str
    host: str
    pid: int
    owner: str
    nonce: str
    shared: bool

    @property
    def successor(self) -> str:
        return f"lock.{self.nonce}.json"

    @property
    def holder(self) -> Holder:
        return Holder(self.host, self.pid, alive=True)


class StoreLock:
    """A lock that is held. `check` raises StoppedError once it is lost."""

    def __init__(self, store: Store, what: str, owner: str, *, shared: bool = False) -> None:
        self._store, self._what = store, what
        self._lock = _taken(store, what, owner, shared)

    def check(self) -> None:
        """Write the lock anew; StoppedError where another build has passed it over."""
        last = next(reversed(_chain(self._store)), None)
        if last is None and self._store.create(
            FIRST, _content(self._lock)
        ):  # somebody has tidied up
            self._lock = replace(self._lock, name=FIRST)
        elif last is not None and last.nonce == self._lock.nonce:
            self._store.write(last.name, _content(self._lock))
        else:
            by = f" by {last.holder}" if last is not None else ""
            raise StoppedError(
                f"{self._what}{by} now, after this process was not heard of for a minute; wait "
                "until it is done"
            )

    def release(self) -> None:
        """Remove the locks, the first one first.

        Other builds then see none of them, or all that are left.
        """
        found = _chain(self._store)
        if found and found[-1].nonce == self._lock.nonce:
            for lock in found:
                self._store.delete([lock.name])


@contextmanager
def store_locked(store: Store, what: str, owner: str, *, shared: bool) -> Iterator[StoreLock]:
    """Hold the lock of what a build works with. Held where another one has it.

    what: beginning of that sentence, e.g. "s3://bucket/packed is being built". owner: token of the
    staging directory. shared: others with the same one may be at work, so the lock is left there
    for a minute.
    """
    with asked():
        lock = StoreLock(store, what, owner, shared=shared)
    done = threading.Event()

    def touch() -> None:
        while not done.wait(TOUCHED_EVERY):
            try:
                lock.check()
            except StoppedError:
                return  # found again before anything is published
            except OSError:
                continue

    thread = threading.Thread(target=touch, daemon=True)
    thread.start()
    try:
        yield lock
    finally:
        done.set()
        thread.join()
        if not shared:
            with contextlib.suppress(StoreError):
                lock.release()


def store_holder(store: Store) -> Holder | None:
    """The holder of the lock there; None where none was active in the last minute.

    Looks only.
    """
    try:
        found = _chain(store)
        return found[-1].holder if found and not _stale(store, found[-1]) else None
    except FileNotFoundError:
        return None


def _taken(store: Store, what: str, owner: str, shared: bool) -> _Lock:
    facts = {"host": socket.gethostname(), "pid": getpid(), "owner": owner, "shared": shared}
    for _ in range(100):
        found = _chain(store)
        if found and found[-1].owner == owner:
            return _Lock(name=found[-1].name, nonce=found[-1].nonce, **facts)  # type: ignore[arg-type]
        try:
            if found and not _stale(store, found[-1]):
                raise Held(
                    f"{what} by {found[-1].holder}, which holds {store.where(found[-1].name)}; "
                    "wait until it is done "
                    "or choose another place"
                )
        except FileNotFoundError:
            continue  # it was released meanwhile
        name = found[-1].successor if found else FIRST
        mine = _Lock(name=name, nonce=secrets.token_hex(8), **facts)  # type: ignore[arg-type]
        if store.create(name, _content(mine)):
            if store.create(name, _content(mine)):
                raise ConfigError(
                    f"{store.url} lets one object take the place of another where only a new one "
                    "was asked for "
                    "(If-None-Match), or its package is too old to ask, so builds could not be "
                    "kept apart; build in a "
                    "directory and copy it there"
                )
            if _chain(store)[-1:] == [mine]:
                return mine
            store.delete(
                [name]
            )  # the one before was released meanwhile, so nobody would find this one
    raise ConfigError(f"{store.where(FIRST)} changes all the time; look at what builds there")


def _chain(store: Store) -> list[_Lock]:
    """The first lock and those that have passed it over; the last one counts."""
    chain: list[_Lock] = []
    while (lock := _read(store, chain[-1].successor if chain else FIRST)) is not None:
        chain.append(lock)
    return chain


def _read(store: Store, name: str) -> _Lock | None:
    try:
        loaded = json.loads(store.read(name))
        facts = {key: str(loaded[key]) for key in ("host", "owner", "nonce")}
        return _Lock(name=name, pid=int(loaded["pid"]), shared=bool(loaded.get("shared")), **facts)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{store.where(name)} is not a lock that packprep wrote; delete it to go on"
        ) from None


def _content(lock: _Lock) -> bytes:
    return canonical_json({key: value for key, value in asdict(lock).items() if key != "name"})


def _stale(store: Store, lock: _Lock) -> bool:
    """True if nobody has touched a lock for a minute, or its process on this host is gone.

    FileNotFoundError where the lock itself is gone.
    """
    if not lock.shared and lock.host == socket.gethostname() and not runs(lock.pid):
        return True
    clock = f"clock.{secrets.token_hex(8)}"
    store.write(clock, b"")
    try:
        age = store.modified(clock) - store.modified(lock.name)
    finally:
        store.delete([clock])
    return age.total_seconds() >= STALE_AFTER
