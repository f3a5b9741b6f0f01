"""A short soak on every run of the tests.

Kills in every stage, an interrupted swap, full disks, failing calls.
"""

import shutil
import sys
from pathlib import Path

import pytest

from . import harness

ROOT = Path(__file__).parents[2]


def soak(*arguments: object) -> list[str]:
    """Output of `scripts/soak`, without its last line; no failure is tolerated."""
    words = ["--seed", "5", *map(str, arguments)]
    done = harness.under_shim("tests.faults.soak", words, cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[:-1]


def only(**parts: object) -> list[object]:
    """Arguments for these parts of a soak and no others."""
    none = dict.fromkeys(("kills", "overwrites", "appends", "disks", "workers"), 0) | {"kinds": ""}
    chosen: dict[str, object] = none | parts
    return [word for name, value in chosen.items() for word in (f"--{name}", value)]


needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None or sys.platform != "linux",
    reason="the library that fails calls needs cc on Linux",
)


def test_builds_that_are_killed_in_any_stage_go_on_to_the_same_bytes() -> None:
    (line,) = soak(*only(kills=5))
    assert all(f"in {stage}" in line for stage in harness.STAGES)


@needs_compiler
def test_an_output_that_is_replaced_is_never_gone() -> None:
    assert "one whole output at each" in soak(*only(overwrites=2))[0]


@needs_compiler
def test_an_output_that_more_is_appended_to_is_the_old_or_the_new_one() -> None:
    assert "SIGKILLs while more was appended" in soak(*only(appends=4))[0]


@needs_compiler
def test_calls_that_fail_end_a_build_with_one_sentence_and_the_next_one_succeeds() -> None:
    assert len(soak(*only(kinds="wr"), "--calls", 1)) == 5


@needs_compiler
@pytest.mark.skipif(not harness.may_mount(), reason="no mounts of one's own here")
def test_a_full_disk_is_said_with_what_is_missing_and_the_build_goes_on_when_there_is_room() -> (
    None
):
    assert soak(*only(disks=2))[0].startswith("2 full disks")


def test_worker_processes_that_are_killed_are_replaced() -> None:
    assert [line.split(",")[0].split()[1] for line in soak(*only(workers=1))] == [
        "SIGKILLs",
        "simulated",
    ]
