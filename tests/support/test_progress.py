import sys
from collections.abc import Callable

import pytest

from packprep.support.progress import Silent, _memory, open_progress


class Clock:
    """time.monotonic, moved by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("packprep.support.progress.time.monotonic", clock)
    monkeypatch.setattr("packprep.support.progress._memory", lambda: ", 97 MB of memory")
    return clock


@pytest.fixture
def shown(clock: Clock, capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """Lines on standard error since the last call, each without the memory at its end."""

    def lines() -> list[str]:
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count(", 97 MB of memory\n") == err.count("\n")
        return err.replace(", 97 MB of memory", "").splitlines()

    return lines


def test_a_line_every_ten_seconds_with_rate_and_time_left(
    clock: Clock, shown: Callable[[], list[str]]
) -> None:
    with open_progress() as console:
        for second in range(1, 26):
            clock.now = 100.0 + second
            console.advance("tokenize", 20.0 * second, 1000.0, "MB")
    assert shown() == [
        "tokenize: 200 MB, 20.0 MB/s, 40 s left",
        "tokenize: 400 MB, 20.0 MB/s, 30 s left",
    ]


def test_a_stage_is_timed_from_the_end_of_the_one_before(
    clock: Clock, shown: Callable[[], list[str]]
) -> None:
    with open_progress() as console:
        clock.now = 105.0
        console.advance("tokenize", 50.0, 50.0, "MB")
        clock.now = 115.0
        console.advance("pack", 1, 4, "windows")
    assert shown() == ["pack: 1 window, 0.1 windows/s, 30 s left"]


def test_rates_leave_out_the_start_of_a_build(clock: Clock, shown: Callable[[], list[str]]) -> None:
    with open_progress() as console:
        clock.now = 120.0
        console.wait("reading text")
        clock.now = 130.0
        console.advance("tokenize", 50.0, 100.0, "MB")
        console.wait("probing engines")
        clock.now = 140.0
        console.advance("tokenize", 100.0, 100.0, "MB")
    assert shown() == ["tokenize: 50 MB, 5.0 MB/s, 10 s left", "tokenize: 100 MB, 5.0 MB/s"]


def test_no_time_left_is_told_where_the_total_is_not_known_or_reached(
    clock: Clock, shown: Callable[[], list[str]]
) -> None:
    with open_progress() as console:
        clock.now = 110.0
        console.advance("tokenize", 1234.0, None, "MB")
        clock.now = 120.0
        console.advance("tokenize", 2000.0, 2000.0, "MB")
    assert shown() == ["tokenize: 1,234 MB, 123.4 MB/s", "tokenize: 2,000 MB, 100.0 MB/s"]


def test_a_terminal_shows_what_a_build_waits_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with open_progress() as progress:
        progress.wait("loading tokenizer")
        progress.advance("tokenize", 1, 2, "MB")
        progress.wait("probing engines")
    shown = capsys.readouterr().err
    assert "loading tokenizer" in shown
    assert "probing engines" not in shown


def test_what_must_be_said_is_said_at_once_and_in_python_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with open_progress() as console:
        console.say("no EOS: [the file] says so")
    assert capsys.readouterr() == ("", "no EOS: [the file] says so\n")
    Silent().say("a")
    Silent().wait("loading tokenizer")
    Silent().advance("tokenize", 1, 2, "MB")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("quiet", [False, True])
def test_a_terminal_has_a_live_line_unless_quiet_is_asked_for(
    quiet: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with open_progress(quiet=quiet) as progress:
        progress.advance("tokenize", 1, 2, "MB")
    assert ("tokenize" in capsys.readouterr().err) is not quiet


def test_memory_is_what_the_process_holds() -> None:
    held = _memory()
    assert held == "" or (held.startswith(", ") and int(held.split()[1].replace(",", "")) > 10)
