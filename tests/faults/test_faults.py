"""A short soak: kills in every stage, full disks, failing calls."""

import re

import pytest

from . import harness

pytestmark = pytest.mark.long
COUNTS = {"kills": 5, "workers": 2, "disks": 2, "calls": 1}
SHIM, MOUNTS = bool(harness.may_compile()), harness.may_mount()
# A regular expression, and how many lines of `scripts/soak` it is of, where they can be made.
LINES = {
    r"\d+ SIGKILLs of workers": 1,
    rf"\d+ SIGKILLs: .*{'.*'.join(f'(?=.*in {stage})' for stage in harness.STAGES)}": 1,
    r"\w+ with \w+: \d+ of \d+ calls failed, ": 5 * SHIM,
    "2 full disks, each reported in one line": MOUNTS,
}


@pytest.fixture(scope="module")
def soak() -> list[str]:
    """Lines of `scripts/soak` with few faults of each kind; no failure is tolerated."""
    words = [word for name, count in COUNTS.items() for word in (f"--{name}", str(count))]
    words += ["--kinds", "wr", "--seed", "5"]
    done = harness.under_shim(harness.SOAK, words, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[:-1]


@pytest.mark.parametrize("line", LINES)
def test_an_interrupted_build_leaves_a_whole_output_or_none_and_goes_on_to_the_same_bytes(
    soak: list[str], line: str
) -> None:
    assert sum(re.match(line, each) is not None for each in soak) == LINES[line]
