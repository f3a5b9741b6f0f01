import pytest

from packprep.support.clock import StageClock


def test_seconds_are_added_up_for_each_stage_and_counted_from_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("packprep.support.clock.time.monotonic", lambda: now)
    clock = StageClock(started=now)
    for stage, seconds in [("plan", 2.0), ("write", 0.25), ("plan", 1.5)]:
        with clock(stage):
            now += seconds
        now += 1.0  # between the stages
    assert clock.total() == {"plan": 3.5, "write": 0.25, "total": 6.75}


def test_seconds_that_another_stage_measured_are_moved_to_it() -> None:
    clock = StageClock(seconds={"tokenize": 3.0})
    clock.add("start", 2.0)
    clock.add("tokenize", -2.0)
    assert clock.seconds == {"tokenize": 1.0, "start": 2.0}


def test_a_stage_that_fails_is_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("packprep.support.clock.time.monotonic", lambda: now)
    clock = StageClock(started=now)

    def fail() -> None:
        nonlocal now
        with clock("write"):
            now += 2.0
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        fail()
    assert clock.total() == {"write": 2.0, "total": 2.0}
