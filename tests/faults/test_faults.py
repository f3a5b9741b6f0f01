"""A short soak on every run of the tests.

Kills in every stage, an interrupted swap, full disks, failing calls.
"""

import shutil
import sys
from pathlib import Path

import pytest

from . import harness

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def soak() -> list[str]:
    """Lines of `scripts/soak` with few faults of each kind; no failure is tolerated."""
    counts = {"kills": 5, "overwrites": 2, "appends": 4, "disks": 2, "workers": 1, "calls": 1}
    words = [word for name, count in counts.items() for word in (f"--{name}", str(count))]
    words += ["--kinds", "wr", "--seed", "5"]
    done = harness.under_shim("tests.faults.soak", words, cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[:-1]


needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None or sys.platform != "linux",
    reason="the library that fails calls needs cc on Linux",
)


def test_builds_that_are_killed_in_any_stage_go_on_to_the_same_bytes(soak: list[str]) -> None:
    [line] = [line for line in soak if " SIGKILLs: " in line]
    assert all(f"in {stage}" in line for stage in harness.STAGES)


@needs_compiler
def test_an_output_that_is_replaced_is_never_gone(soak: list[str]) -> None:
    [line] = [line for line in soak if " while an old output was replaced" in line]
    assert line.endswith("one whole output at each")


@needs_compiler
def test_an_output_that_more_is_appended_to_is_the_old_or_the_new_one(soak: list[str]) -> None:
    assert len([line for line in soak if " SIGKILLs while more was appended: " in line]) == 1


@needs_compiler
def test_calls_that_fail_end_a_build_with_one_sentence_and_the_next_one_succeeds(
    soak: list[str],
) -> None:
    assert len([line for line in soak if " calls failed, " in line]) == 5


@needs_compiler
@pytest.mark.skipif(not harness.may_mount(), reason="no mounts of one's own here")
def test_a_full_disk_is_said_with_what_is_missing_and_the_build_goes_on_when_there_is_room(
    soak: list[str],
) -> None:
    assert len([line for line in soak if line.startswith("2 full disks, ")]) == 1


def test_worker_processes_that_are_killed_are_replaced(soak: list[str]) -> None:
    lines = [line.split()[1] for line in soak if " all recovered" in line]
    assert lines == ["SIGKILLs", "simulated"]
