"""Interrupts builds on purpose, many times, and checks the rest: `scripts/soak --seed 1`.

Every part prints a line: the number of faults, the stages they hit, and the number of builds with
other bytes (none, or exit code 1).
"""

import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from packprep.support.limits import usable_cores
from tests.faults import builds, harness
from tests.faults.builds import KINDS, STAGES
from tests.faults.crash_checks import Found, commands, explore
from tests.faults.harness import ERRORS, Ended, Fault

SECONDS = {"tokenize": 0.5, "pack": 0.3, "sign off": 0.05}  # share of a build until a kill by time
CALLS = {
    "o": "open",
    "O": "open to read",
    "w": "write",
    "s": "fsync",
    "r": "rename",
    "i": "read",
}


class Soak:
    """One folder of builds, and the output of an undisturbed one to compare with."""

    def __init__(self, folder: Path, seed: int, kind: str, *, few: bool = False) -> None:
        folder.mkdir(exist_ok=True)
        self.random, self.failures, self.folder = random.Random(seed), 0, folder
        self.steps = builds.steps(folder, kind, few=few)
        self.output, self.log = folder / "out", folder / "log"
        start = time.monotonic()
        ended = self.build("--num-proc", "1", output=folder / "undisturbed")
        assert ended.code == 0, ended.err
        self.expected = builds.data(folder / "undisturbed")
        self.seconds = time.monotonic() - start

    def fail(self, what: str) -> None:
        self.failures += 1
        print("FAILED", what, flush=True)

    def build(self, *more: str, output: Path | None = None, **disturbance: Any) -> Ended:
        steps = [[*step, *more] for step in self.steps(output or self.output)]
        return harness.forked(steps, self.log, **disturbance)

    def check_resume(self, what: str, *more: str, output: Path | None = None) -> None:
        """The same command ends with the bytes of an undisturbed build, and leaves nothing else."""
        output = output or self.output
        ended = self.build(*more, output=output)
        if ended.code != 0 or builds.data(output) != self.expected:
            self.fail(f"{what}: resumed with exit code {ended.code}: {ended.err[-300:]}")
        elif not builds.absent_or_complete(output) or builds.is_left(output):
            self.fail(f"{what}: the output is not whole or something is left beside it")

    def kills(self, number: int) -> str:
        """SIGKILL at random times, every stage in turn, workers 1 and 2."""
        landed: Counter[str] = Counter()
        while landed.total() < number or min(landed[stage] for stage in STAGES) < number // 5:
            workers = ("--num-proc", str(self.random.randint(1, 2)))
            harness.clear(self.output)
            stage = min(STAGES, key=lambda name: landed[name])
            delay = self.random.random() * SECONDS[stage] * self.seconds
            now = partial(builds.stage_of, self.output)
            ended = self.build(*workers, kill=harness.kill_in(stage, now, delay))
            found = now()
            what = f"kill {landed.total()} in {found}, {workers[1]} workers"
            if not builds.absent_or_complete(self.output):
                self.fail(f"{what}: the output is neither absent nor whole")
            if ended.code == -9 and found in STAGES:  # else it was done before
                landed[found] += 1
                self.check_resume(what, "--num-proc", str(self.random.randint(1, 2)))
        return f"{landed.total()} SIGKILLs, {_listed(landed)}"

    def failing_calls(self, of: str, most: int | None) -> Iterator[str]:
        """Let the N-th call fail, N = 1, 2, ... until a build is clean.

        `most`: so many of each kind, spread evenly.
        """
        for kind in of:
            for error, what in ERRORS.items():
                if (error == "short" and kind != "w") or (error == "ENOSPC" and kind in "Oi"):
                    continue
                harness.clear(self.output)
                ended = self.build("--num-proc", "1", fault=Fault(kind, 0, 0, self.output))
                assert ended.code == 0, ended.err
                total = int(ended.err.rsplit("calls ", 1)[1])
                numbers = range(1, total + 2, max(1, total // most) if most else 1)
                at = f"{CALLS[kind]} {{}} of {total} with {error}"
                faults = (Fault(kind, number, what, self.output) for number in numbers)
                survived = sum(self._fails(fault, total, at) for fault in faults)
                failed = sum(number <= total for number in numbers)
                done = f"{CALLS[kind]} with {error}: {failed} of {total} calls failed"
                yield f"{done}, {survived} of them without harm"

    def _fails(self, fault: Fault, total: int, at: str) -> bool:
        """Let one call fail; True if the build did without it, as of a file it need not read."""
        harness.clear(self.output)
        at = at.format(fault.call)
        ended = self.build("--num-proc", "1", fault=fault)
        lines = [line for line in ended.err.splitlines() if line[:6] not in ("", "calls ")]
        if ended.code == 0:
            if not self.output.exists() or builds.data(self.output) != self.expected:
                self.fail(f"{at}: exit code 0 and another output")
            return fault.call <= total
        if ended.code not in (2, 3) or len(lines) != 1 or fault.call > total:
            self.fail(f"{at}: exit code {ended.code}: {ended.err[-300:]}")
        if not builds.absent_or_complete(self.output):
            self.fail(f"{at}: a half-written output")
        self.check_resume(at, "--num-proc", "1")
        return False

    def killed_workers(self, number: int) -> str:
        """SIGKILL of a process that renders chats: a sentence, and the same command goes on."""
        ends: Counter[str] = Counter()
        for _ in range(number):
            harness.clear(self.output)
            delay = self.random.random() * self.seconds
            ended = self.build("--num-proc", "2", kill=harness.kill_child(delay))
            if ended.code not in (0, 3) or len(ended.err.splitlines()) != (ended.code > 0):
                self.fail(f"a killed worker: exit code {ended.code}: {ended.err[-300:]}")
            ends["stopped" if ended.code else "done before"] += 1
            self.check_resume("a killed worker")
        return f"{number} SIGKILLs of workers: {_listed(ends)}"

    def full_disks(self, sizes: int) -> str:
        """A disk that fills up at ten sizes; then it grows, and the same command goes on."""
        disk, big = self.folder / "disk", 1 << 28
        harness.small_disk(disk, big)
        output = disk / "out"
        harness.clear(self.output)
        now = partial(builds.stage_of, output)
        self.build(output=output, kill=harness.kill_in(STAGES[-1], now, 0))  # most is there
        peak = sum(path.stat().st_blocks * 512 for path in disk.rglob("*"))
        stages: Counter[str] = Counter()
        for number in range(sizes):
            harness.clear(output)
            harness.small_disk(disk, int(peak * (0.4 + 0.58 * number / sizes)))
            ended = self.build(output=output)
            refused = " free; free " in ended.err  # before anything was written
            full = "no space left" in ended.err.lower()
            if (ended.code, len(ended.err.splitlines())) != (3, 1) or not (refused or full):
                self.fail(f"disk {number}: exit code {ended.code}: {ended.err[-300:]}")
            if output.exists():
                self.fail(f"disk {number}: a half-written output")
            stages["refused" if refused else now()] += 1
            harness.small_disk(disk, big)
            self.check_resume(f"disk {number}", output=output)
        subprocess.run(["umount", disk], check=True)
        return f"{sizes} full disks, each reported in one line, and resumed: {_listed(stages)}"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {where}" for where, count in counts.items())


def _parts(folder: Path, given: SimpleNamespace) -> Iterator[tuple[str, int]]:
    """A line of each part, and the number of failures."""
    kinds = [given.kind] if given.kind else [*KINDS]
    for number, kind in enumerate(kinds if given.kills else ()):
        each = Soak(folder / f"kills-{number}", given.seed, kind)
        yield f"{kind}: {each.kills(given.kills // len(kinds))}", each.failures
    if given.workers:
        each = Soak(folder / "workers", given.seed, "turns")
        yield each.killed_workers(given.workers), each.failures
    if given.mounts and given.disks:
        each = Soak(folder / "disks", given.seed, kinds[0])
        yield each.full_disks(given.disks), each.failures
    if given.shim and given.calls_of:
        each = Soak(folder / "calls", given.seed, kinds[0], few=True)
        for line in each.failing_calls(given.calls_of, given.calls):
            yield line, 0
        yield "calls", each.failures


def _power_cuts(folder: Path, given: SimpleNamespace) -> int:
    """Check states of the disk after kills and power cuts. Returns the number of faults."""
    names = [*commands(folder, folder)]
    rest = (given.seed, -(-given.crash_states // len(names)), given.every)
    cases = [(name, folder / name, *rest) for name in names]
    failures, again, by_model = 0, 0, Counter[str]()
    with get_context("fork").Pool(2 * usable_cores()) as pool:  # threads wait for threads
        for found in pool.imap(_explore, cases):
            for fault in found.faults:
                print("FAILED", fault, flush=True)
            failures += len(found.faults)
            by_model += found.by_model
            again += found.run_again
            states = f"{found.by_model.total():,} crash states, {found.cut_twice:,} cut twice"
            print(f"{found.name}: {states}, {len(found.faults)} bad", flush=True)
    models = ", ".join(f"{count:,} {model}" for model, count in by_model.items())
    print(f"{by_model.total():,} crash states, {failures} bad: {models}", flush=True)
    print(f"{again:,} times the same command ended with the same bytes", flush=True)
    return failures


def _explore(case: tuple[str, Path, int, int, int]) -> Found:
    return explore(*case)


_option = partial(click.option, show_default=True)


@click.command(help=__doc__)
@_option("--seed", default=0)
@_option("--kills", default=200, help="SIGKILLs that land in a stage; a fifth in each at least.")
@_option("--calls", type=int, help="So many failing calls of each kind; default: every one.")
@_option("--calls-of", default="oOwsri", help="o(pen) O(pen to read) w(rite) s(ync) r(ename) i(n).")
@_option("--disks", default=10, help="Sizes of a disk that fills up.")
@_option("--workers", default=20, help="SIGKILLs of processes that render chats.")
@_option("--kind", type=click.Choice([*KINDS]), help="Kind of build; default: all in turn.")
@_option("--crash-states", default=0, help="Check so many states that kills and power cuts leave.")
@_option("--every", default=1, help="Run the command again in one of so many crash states.")
@_option("--inside", is_flag=True, hidden=True)
@_option("--shim", is_flag=True, hidden=True)
@_option("--mounts", is_flag=True, hidden=True)
def main(**values: Any) -> None:
    given = SimpleNamespace(**values)
    if not given.inside:
        sys.exit(harness.under_shim(Path(__file__), sys.argv[1:]).returncode)
    builds.warm()
    start, failures = time.monotonic(), 0
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where syncs take no time
    with tempfile.TemporaryDirectory(dir=memory if given.crash_states else None) as folder:
        if given.crash_states:
            failures = _power_cuts(Path(folder), given)
        for line, failed in () if given.crash_states else _parts(Path(folder), given):
            print(line, flush=True)
            failures += failed
    print(f"seed {given.seed}: {failures} failures in {time.monotonic() - start:,.0f} s")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main(prog_name="scripts/soak")
