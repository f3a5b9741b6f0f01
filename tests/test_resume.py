"""A build that is killed right after any of its receipts resumes to the same bytes."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults import builds, harness

KINDS = ("jsonl.zst", "limit", "turns", "pairs", "mix", "plan", "tokenize, pack")
RECEIPT = re.compile(r"(tokens-\d+-\d+|train-\d+|validation-\d+|names|manifest)\.json")


class KillAfter:
    """Kills the process in which it is armed when it has written so many receipts."""

    def __init__(self, receipts: int) -> None:
        self.receipts = receipts

    def arm(self) -> None:
        replace, written = os.replace, itertools.count(1)

        def counted(source: Any, target: Any) -> None:
            replace(source, target)
            if RECEIPT.fullmatch(Path(target).name) and next(written) == self.receipts:
                os.kill(os.getpid(), signal.SIGKILL)

        os.replace = counted  # type: ignore[assignment]


def token_files(output: Path) -> dict[str, int]:
    """Token files of a store that have a receipt, with their times."""
    receipts = output.parent.glob(f"{output.name}.store/*/tokens-*.json")
    files = (path.with_suffix(".arrow") for path in receipts)
    return {str(path): path.stat().st_mtime_ns for path in files}


def kill_at_every_receipt(folder: Path, kind: str) -> list[str]:
    """Stages in which builds of a kind were killed, each of which has resumed."""
    steps, log = builds.steps(folder, kind, few=True), folder / "log"
    assert harness.forked(steps(folder / "whole"), log).code == 0
    expected, output, stages = builds.data(folder / "whole"), folder / "out", list[str]()
    while True:
        harness.clear(output)
        ended = harness.forked(steps(output), log, fault=KillAfter(len(stages) + 1))
        if ended.code == 0:
            return stages
        assert ended.code == -signal.SIGKILL, ended.err
        assert not output.exists()
        stages.append(builds.stage_of(output))
        kept = token_files(output)
        ended = harness.forked(steps(output), log)
        assert ended.code == 0, ended.err
        assert builds.data(output) == expected
        assert kept.items() <= token_files(output).items()
        names = {path.name for path in folder.iterdir() if path.name.startswith("out")}
        assert names <= {"out", "out.store"}
        assert not builds.is_left(output)


@pytest.mark.parametrize(
    "kinds", [KINDS[-1:], pytest.param(KINDS[:-1], marks=pytest.mark.long)], ids=["one", "others"]
)
def test_a_build_that_is_killed_after_any_receipt_resumes(
    kinds: Sequence[str], tmp_path: Path
) -> None:
    """In a process of its own, which forks."""
    command = [sys.executable, "-m", __spec__.name, str(tmp_path), *kinds]
    done = subprocess.run(command, capture_output=True, text=True, cwd=harness.ROOT)
    assert done.returncode == 0, done.stderr
    for stages in json.loads(done.stdout):
        assert {*stages} == {*builds.STAGES}


if __name__ == "__main__":
    builds.warm()
    folders = [Path(sys.argv[1], kind) for kind in sys.argv[2:]]
    for each in folders:
        each.mkdir()
    print(json.dumps([kill_at_every_receipt(each, each.name) for each in folders]))
