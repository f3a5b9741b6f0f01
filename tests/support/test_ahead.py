"""Work done ahead keeps its order and its bounds.

Threads are replaced after the work they were given.
"""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from packprep.support.ahead import RenewedThreads, ahead


@pytest.mark.parametrize("most", [0, 1, 3, 100])
def test_results_come_in_order_and_only_so_many_are_begun(most: int) -> None:
    begun = 0

    def submit(item: int) -> "Future[int]":
        nonlocal begun
        begun += 1
        return pool.submit(slow, item)

    def slow(item: int) -> int:
        time.sleep(0.002 * (item % 3))
        return item * item

    with ThreadPoolExecutor(4) as pool:
        for taken, made in enumerate(ahead(submit, range(20), most)):
            assert made == taken * taken
            assert begun <= taken + 1 + most
    assert begun == 20


def test_after_an_error_nothing_more_is_begun() -> None:
    gate = threading.Event()
    done: list[int] = []

    def work(item: int) -> int:
        if item == 0:
            raise ValueError("the first")
        gate.wait(10)
        done.append(item)
        return item

    with ThreadPoolExecutor(1) as pool:
        results = ahead(lambda item: pool.submit(work, item), range(10), 5)
        with pytest.raises(ValueError, match="the first"):
            next(results)
        gate.set()
    assert len(done) <= 1  # the one that had begun


def test_threads_are_replaced_after_their_work_and_end() -> None:
    threads = RenewedThreads(10)
    made = [threads.submit(1, 4, threading.current_thread).result() for _ in range(9)]
    assert [made.index(thread) for thread in made] == [0, 0, 0, 3, 3, 3, 6, 6, 6]
    for thread in made[:6]:
        thread.join(10)
        assert not thread.is_alive()


def test_a_forked_process_has_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = RenewedThreads()
    before = [threads.submit(1, 0, threading.current_thread).result() for _ in range(2)]
    monkeypatch.setattr("packprep.support.ahead.os.getpid", lambda: 1)
    after = [threads.submit(1, 0, threading.current_thread).result() for _ in range(2)]
    assert before[0] is before[1] is not after[0] is after[1]
