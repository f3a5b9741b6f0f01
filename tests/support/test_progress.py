import sys
from typing import Any

import pytest

from packprep.support.progress import open_progress

Event = tuple[float, str, Any]


@pytest.mark.parametrize(
    ("events", "lines"),
    [
        (
            [(second, "tokenize", (20.0 * second, 1000.0, "MB")) for second in range(1, 26)],
            [
                f"tokenize: {part} MB, 20.0 MB/s, {left} s left"
                for part, left in ((200, 40), (400, 30))
            ],
        ),
        (
            [(5, "tokenize", (50.0, 50.0, "MB")), (15, "pack", (1, 4, "windows"))],
            ["pack: 1 window, 0.1 windows/s, 30 s left"],
        ),
        (
            [
                (20, "reading text", None),
                (30, "tokenize", (50.0, 100.0, "MB")),
                (30, "probing engines", None),
                (40, "tokenize", (100.0, 100.0, "MB")),
            ],
            ["tokenize: 50 MB, 5.0 MB/s, 10 s left", "tokenize: 100 MB, 5.0 MB/s"],
        ),
        (
            [(10, "tokenize", (1234.0, None, "MB")), (20, "tokenize", (2000.0, 2000.0, "MB"))],
            ["tokenize: 1,234 MB, 123.4 MB/s", "tokenize: 2,000 MB, 100.0 MB/s"],
        ),
    ],
    ids=["every ten seconds", "a stage begins where the last ended", "waiting", "no total"],
)
def test_a_line_has_the_rate_and_the_time_left_and_leaves_out_waiting(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    events: list[Event],
    lines: list[str],
) -> None:
    now = 100.0
    monkeypatch.setattr("packprep.support.progress.time.monotonic", lambda: now)
    monkeypatch.setattr("packprep.support.progress._memory", lambda: ", 97 MB of memory")
    with open_progress() as console:
        for second, stage, progress in events:
            now = 100.0 + second
            console.advance(stage, *progress) if progress else console.wait(stage)
    expected = "".join(f"{line}, 97 MB of memory\n" for line in lines)
    assert capsys.readouterr() == ("", expected)


@pytest.mark.parametrize("quiet", [False, True])
def test_a_terminal_has_a_live_line_unless_quiet_is_asked_for(
    quiet: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with open_progress(quiet=quiet) as progress:
        progress.wait("loading tokenizer")
        progress.advance("tokenize", 1, 2, "MB")
        progress.wait("probing engines")
    shown = capsys.readouterr().err
    assert all((words in shown) is not quiet for words in ("loading tokenizer", "tokenize"))
    assert "probing engines" not in shown
