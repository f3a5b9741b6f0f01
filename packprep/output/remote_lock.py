"""One build at a time on an output in a store.

The lock is an object that names its holder; its age is measured by the clock of the store.

A build that finds no lock creates one (create-if-absent, so only one wins). The holder rewrites its
lock every few seconds. A lock that was not rewritten for a minute is stale, and so is a lock of a
process on this host that has ended. The next build replaces a stale lock by creating its successor,
lock.NONCE.json (create-if-absent again). A holder that slept through its lease sees its successor
and stops, and no lock can have two successors.

A lock belongs to a staging directory, not to a process: after a kill the same command resumes at
once, and the tasks of an array share the lock. The lock only saves work; remote.py explains why
two builds never mix without it.
"""

import contextlib
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from os import getpid
from pathlib import Path

from packprep.schemas.canonical import canonical_json, parse_json
from packprep.schemas.storage.store_errors import StoreError
from packprep.schemas.storage.stores import Store
from packprep.support.errors import ConfigError, StoppedError, asked
from packprep.support.file_lock import STALE_AFTER, TOUCHED_EVERY, Held, Holder, runs

FIRST = "lock.json"
PROVEN = ("s3", "s3a", "gs", "gcs", "az", "abfs")
"""Protocols of the stores that `scripts/check_stores` runs the tests of outputs with."""


@dataclass(frozen=True, kw_only=True)
class _Lock:
    """Content of a lock.

    owner: token of a staging directory. nonce: unique to this lock. shared: several processes have
    the same owner, so the lock is not stale because the process in it has ended.
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
    """A lock that this process holds. `check` raises StoppedError once it is lost."""

    def __init__(self, store: Store, activity: str, owner: str, *, shared: bool = False) -> None:
        self._store, self._activity = store, activity
        self._lock = _acquire(store, activity, owner, shared)

    def check(self) -> None:
        """Rewrite the lock; StoppedError if another build has replaced it."""
        last = next(reversed(_chain(self._store)), None)
        if last is None and self._store.create(
            FIRST, _content(self._lock)
        ):  # another process has deleted it
            self._lock = replace(self._lock, name=FIRST)
        elif last is not None and last.nonce == self._lock.nonce:
            self._store.write(last.name, _content(self._lock))
        else:
            by = f" by {last.holder}" if last is not None else ""
            raise StoppedError(
                f"{self._activity}{by} now, because this process did not renew its lock for a "
                "minute; wait until that build is done"
            )

    def release(self) -> None:
        """Delete the chain of locks, beginning with the first.

        So other builds see the whole chain or no lock.
        """
        chain = _chain(self._store)
        if chain and chain[-1].nonce == self._lock.nonce:
            for lock in chain:
                self._store.delete([lock.name])


@contextmanager
def store_locked(
    store: Store, activity: str, owner: str, *, shared: bool, staging: Path | None = None
) -> Iterator[StoreLock]:
    """Hold the lock in a store; raise Held if another build holds it.

    activity: beginning of that error, e.g. "s3://bucket/packed is being built". owner: token of the
    staging directory. shared: other processes with the same owner may be working, so the lock is
    left to expire as long as `staging`, the directory of all of them, is there.
    """
    with asked():
        lock = StoreLock(store, activity, owner, shared=shared)
    done = threading.Event()

    def touch() -> None:
        while not done.wait(TOUCHED_EVERY):
            try:
                lock.check()
            except StoppedError:
                return  # `check` raises again before anything is published
            except OSError:
                continue

    thread = threading.Thread(target=touch, daemon=True)
    thread.start()
    try:
        yield lock
    finally:
        done.set()
        thread.join()
        if not shared or (staging is not None and not staging.exists()):
            with contextlib.suppress(StoreError):
                lock.release()


def check_proven(url: str, *, accepted: bool) -> None:
    """Raise ConfigError for a URL in a store that is not `PROVEN`.

    accepted: True if the caller writes there all the same.
    """
    if url.partition("://")[0] not in PROVEN and not accepted:
        raise ConfigError(
            f"{url} is in a store that packprep was not tested with, so two builds may mix there "
            "and readers may see half of an output; write to s3://, gs:// or az://, write to a "
            "directory and copy it, or add --unproven-store"
        )


def store_holder(store: Store) -> Holder | None:
    """Holder of the lock in a store; None if none was active in the last minute. Only reads."""
    try:
        chain = _chain(store)
        return chain[-1].holder if chain and not _stale(store, chain[-1]) else None
    except FileNotFoundError:
        return None


def _acquire(store: Store, activity: str, owner: str, shared: bool) -> _Lock:
    facts = {"host": socket.gethostname(), "pid": getpid(), "owner": owner, "shared": shared}
    for _ in range(100):
        chain = _chain(store)
        last = chain[-1] if chain else None
        if last is not None and last.owner == owner:
            return _Lock(name=last.name, nonce=last.nonce, **facts)  # type: ignore[arg-type]
        try:
            if last is not None and not _stale(store, last):
                raise Held(
                    f"{activity} by {last.holder}, which holds {store.where(last.name)}; wait "
                    "until it is done or choose another place"
                )
        except FileNotFoundError:
            continue  # it was released meanwhile
        name = last.successor if last is not None else FIRST
        lock = _Lock(name=name, nonce=secrets.token_hex(8), **facts)  # type: ignore[arg-type]
        if store.create(name, _content(lock)):
            if store.create(name, _content(lock)):
                raise ConfigError(
                    f"{store.url} cannot keep two builds apart: it overwrites an object when asked "
                    "to create a new one (If-None-Match), or its package is too old to ask; build "
                    "in a directory and copy the output there"
                )
            if _chain(store)[-1:] == [lock]:
                return lock
            # The lock before was released meanwhile, so no build would find this one.
            store.delete([name])
    raise ConfigError(
        f"{store.where(FIRST)} is replaced again and again; check which builds use {store.url}"
    )


def _chain(store: Store) -> list[_Lock]:
    """The first lock and its successors; the last one counts."""
    chain: list[_Lock] = []
    while (lock := _read(store, chain[-1].successor if chain else FIRST)) is not None:
        chain.append(lock)
    return chain


def _read(store: Store, name: str) -> _Lock | None:
    try:
        loaded = parse_json(store.read(name))
        facts = {key: str(loaded[key]) for key in ("host", "owner", "nonce")}
        return _Lock(name=name, pid=int(loaded["pid"]), shared=bool(loaded.get("shared")), **facts)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{store.where(name)} is not a lock that packprep wrote; delete it, then try again"
        ) from None


def _content(lock: _Lock) -> bytes:
    return canonical_json({key: value for key, value in asdict(lock).items() if key != "name"})


def _stale(store: Store, lock: _Lock) -> bool:
    """True if a lock was not rewritten for a minute, or if its process on this host has ended.

    FileNotFoundError if the lock itself is gone.
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
