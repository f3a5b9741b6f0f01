import socket
import threading
from typing import Any

import pytest

from packprep.output import remote_lock
from packprep.output.remote_lock import StoreLock, store_holder, store_locked
from packprep.schemas import canonical_json
from packprep.schemas.storage.stores import Store
from packprep.support.errors import ConfigError, StoppedError
from packprep.support.file_lock import Held

BUILT = "out is being built"
DEAD = 2**22 + 1  # above any process number


@pytest.fixture
def work(bucket: str) -> Store:
    return Store(f"{bucket}/out.incomplete")


def left_behind(work: Store, host: str, pid: int, **more: Any) -> None:
    facts = {"host": host, "pid": pid, "owner": "another", "nonce": "n"} | more
    work.write("lock.json", canonical_json(facts))


def test_a_staging_directory_goes_on_with_its_own_lock_at_once(work: Store) -> None:
    left_behind(work, "elsewhere", 1, owner="one")
    with store_locked(work, BUILT, "one", shared=True):
        pass
    assert list(work.list()) == ["lock.json"], "tasks of an array leave it to the next one"
    with store_locked(work, BUILT, "one", shared=False):
        pass
    assert work.list() == {}


def test_the_lock_of_a_dead_process_of_this_host_is_passed_over_at_once(work: Store) -> None:
    left_behind(work, socket.gethostname(), DEAD)
    assert store_holder(work) is None
    with store_locked(work, BUILT, "one", shared=False):
        assert list(work.list()) == ["lock.json", "lock.n.json"]
    assert work.list() == {}


def test_a_lock_of_tasks_that_come_and_go_counts_for_a_minute_whoever_is_gone(work: Store) -> None:
    left_behind(work, socket.gethostname(), DEAD, shared=True)
    with pytest.raises(Held, match=f"is being built by process {DEAD}"):
        StoreLock(work, BUILT, "one")


def test_a_lock_that_nobody_touches_is_passed_over_and_its_holder_hears_of_it(
    work: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = StoreLock(work, BUILT, "one")
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    with pytest.raises(Held):
        StoreLock(work, BUILT, "two")
    with monkeypatch.context() as patch:
        patch.setattr(remote_lock, "STALE_AFTER", -1.0)
        second = StoreLock(work, BUILT, "two")
    second.check()
    with pytest.raises(Held, match=r"process [0-9]+ on elsewhere"):
        StoreLock(work, BUILT, "three")
    with pytest.raises(StoppedError, match=r"by process [0-9]+ on elsewhere now, .* not renew"):
        first.check()
    first.release()
    second.check()
    second.release()
    assert work.list() == {}


@pytest.mark.parametrize("stale", [False, True])
def test_of_many_that_come_at_once_one_has_the_lock(
    work: Store, monkeypatch: pytest.MonkeyPatch, stale: bool
) -> None:
    if stale:
        left_behind(work, "elsewhere", 1)
        age = remote_lock._stale
        monkeypatch.setattr(
            remote_lock, "_stale", lambda store, lock: lock.nonce == "n" or age(store, lock)
        )
    create, at_once = Store.create, threading.Lock()

    def created(store: Store, name: str, content: bytes) -> bool:
        with at_once:  # a store decides between requests; moto looks first, and writes then
            return create(store, name, content)

    monkeypatch.setattr(Store, "create", created)
    held: list[StoreLock] = []
    refused: list[int] = []
    together = threading.Barrier(8)

    def come(number: int) -> None:
        together.wait()
        try:
            held.append(StoreLock(work, BUILT, f"build {number}"))
        except Held:
            refused.append(number)

    threads = [threading.Thread(target=come, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(held), len(refused)) == (1, 7)
    held[0].check()
    held[0].release()
    assert work.list() == {}


def test_a_lock_that_somebody_deletes_is_made_again_unless_another_build_was_faster(
    work: Store,
) -> None:
    lock = StoreLock(work, BUILT, "one")
    work.delete(["lock.json"])
    lock.check()
    assert list(work.list()) == ["lock.json"]
    work.delete(["lock.json"])
    other = StoreLock(work, BUILT, "two")
    with pytest.raises(StoppedError, match=f"{BUILT} by process"):
        lock.check()
    other.release()


def test_what_is_no_lock_and_a_store_that_cannot_create_are_refused(
    work: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.write("lock.json", b"{}")
    with pytest.raises(ConfigError, match="is not a lock that packprep wrote; delete it"):
        StoreLock(work, BUILT, "one")
    work.delete(["lock.json"])

    def create(store: Store, name: str, content: bytes) -> bool:
        store.write(name, content)
        return True

    monkeypatch.setattr(Store, "create", create)
    with pytest.raises(ConfigError, match=r"two builds apart: it overwrites .*If-None-Match"):
        StoreLock(work, BUILT, "one")


def test_the_lock_is_touched_while_it_is_held(work: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_lock, "TOUCHED_EVERY", 0.01)
    touched = threading.Event()
    check = StoreLock.check

    def checked(lock: StoreLock) -> None:
        check(lock)
        touched.set()

    monkeypatch.setattr(StoreLock, "check", checked)
    with store_locked(work, BUILT, "one", shared=False):
        assert touched.wait(60)
