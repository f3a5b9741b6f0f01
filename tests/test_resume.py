"""A build that is killed right after any of its receipts resumes to the same bytes."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults import harness
from tests.faults.editions import EDITIONS

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
    second = EDITIONS["second"]
    steps, log = second.steps(folder, kind, True), folder / "log"
    assert harness.forked(steps(folder / "whole"), log, main=second.main).code == 0
    expected, output, stages = second.data(folder / "whole"), folder / "out", list[str]()
    while True:
        harness.clear(output)
        kill = KillAfter(len(stages) + 1)
        ended = harness.forked(steps(output), log, fault=kill, main=second.main)
        if ended.code == 0:
            return stages
        assert ended.code == -signal.SIGKILL, ended.err
        assert not output.exists()
        stages.append(second.stage_of(output))
        kept = token_files(output)
        ended = harness.forked(steps(output), log, main=second.main)
        assert ended.code == 0, ended.err
        assert second.data(output) == expected
        assert kept.items() <= token_files(output).items()
        names = {path.name for path in folder.iterdir() if path.name.startswith("out")}
        assert names <= {"out", "out.store"}
        assert not [*folder.rglob("*.tmp")]


@pytest.mark.long
def test_a_build_that_is_killed_after_any_receipt_resumes(tmp_path: Path) -> None:
    """In a process of its own, which forks."""
    command = [sys.executable, "-m", __spec__.name, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=harness.ROOT)
    assert done.returncode == 0, done.stderr
    for stages in json.loads(done.stdout):
        assert {*stages} == {*harness.STAGES}


if __name__ == "__main__":
    EDITIONS["second"].warm()
    folders = [Path(sys.argv[1], kind) for kind in KINDS]
    for each in folders:
        each.mkdir()
    print(json.dumps([kill_at_every_receipt(each, each.name) for each in folders]))
