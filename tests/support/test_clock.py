import contextlib

import pytest

from packprep.support.clock import StageClock


def test_seconds_are_added_up_for_each_stage_even_one_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("packprep.support.clock.time.monotonic", lambda: now)
    clock = StageClock(started=now)
    for stage, seconds in [("plan", 2.0), ("write", 0.25), ("plan", 1.5)]:
        with contextlib.suppress(OSError), clock(stage):
            now += seconds
            raise OSError("disk")
        now += 1.0  # between the stages
    assert clock.total() == {"plan": 3.5, "write": 0.25, "total": 6.75}


def test_seconds_that_another_stage_measured_are_moved_to_it() -> None:
    clock = StageClock(seconds={"tokenize": 3.0})
    clock.add("start", 2.0)
    clock.add("tokenize", -2.0)
    assert clock.seconds == {"tokenize": 1.0, "start": 2.0}
