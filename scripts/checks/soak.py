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
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from packprep.support.limits import usable_cores
from tests.faults import harness
from tests.faults.crash_checks import Found, explore
from tests.faults.editions import EDITIONS, Edition
from tests.faults.harness import ERRORS, STAGES, Ended, Fault, forked

SECONDS = {"tokenize": 0.5, "pack": 0.3, "sign off": 0.05}  # share of a build until a kill by time
KIND_NAMES = ("open", "open to read", "write", "fsync", "rename", "read")
KINDS = dict(zip("oOwsri", KIND_NAMES, strict=True))


class Failures:
    """Failures, printed and counted."""

    def __init__(self, seed: int) -> None:
        self.random, self.failures = random.Random(seed), 0

    def fail(self, what: str) -> None:
        self.failures += 1
        print("FAILED", what, flush=True)


class Soak(Failures):
    """One folder of builds, and the output of an undisturbed one to compare with."""

    def __init__(
        self, folder: Path, seed: int, edition: Edition, kind: str | None, *, few: bool = False
    ) -> None:
        super().__init__(seed)
        folder.mkdir(exist_ok=True)
        self.folder, self.edition = folder, edition
        self.steps = edition.steps(folder, kind, few)
        self.output, self.log = folder / "out", folder / "log"
        start = time.monotonic()
        self.expected = self.whole("--num-proc", "1", output=folder / "undisturbed")
        self.seconds = time.monotonic() - start

    def build(self, *more: str, output: Path | None = None, **disturbance: Any) -> Ended:
        steps = [[*step, *more] for step in self.steps(output or self.output)]
        return forked(steps, self.log, main=self.edition.main, **disturbance)

    def whole(self, *more: str, output: Path) -> Any:
        """Facts of the output of a build that is not disturbed."""
        ended = self.build(*more, output=output)
        assert ended.code == 0, ended.err
        return self.edition.data(output)

    def calls(self, kind: str, *more: str) -> int:
        """Number of calls of a kind that an undisturbed build makes, on what is on the disk."""
        ended = self.build(*more, fault=Fault(kind, 0, 0, self.output))
        assert ended.code == 0, ended.err
        return int(ended.err.rsplit("calls ", 1)[1])

    def check_resume(self, what: str, *more: str, output: Path | None = None) -> None:
        """The same command ends with the bytes of an undisturbed build, and leaves nothing else."""
        output = output or self.output
        ended = self.build(*more, output=output)
        if ended.code != 0 or self.edition.data(output) != self.expected:
            self.fail(f"{what}: resumed with exit code {ended.code}: {ended.err[-300:]}")
        elif not self.edition.absent_or_complete(output) or self._is_left(output):
            self.fail(f"{what}: the output is not whole or something is left beside it")

    def _is_left(self, output: Path) -> bool:
        """True if the folder in which an output was made, or a file that was begun, is left."""
        return self.edition.staging_of(output).exists() or any(output.parent.rglob("*.tmp"))

    def kills(self, number: int) -> str:
        """SIGKILL at random times, every stage in turn, workers 1 and 2."""
        landed: Counter[str] = Counter()
        while landed.total() < number or min(landed[stage] for stage in STAGES) < number // 5:
            workers = ("--num-proc", str(self.random.randint(1, 2)))
            harness.clear(self.output)
            stage = min(STAGES, key=lambda name: landed[name])
            delay = self.random.random() * SECONDS[stage] * self.seconds
            ended = self.build(*workers, kill=self._kill_in(stage, delay))
            found = self.edition.stage_of(self.output)
            what = f"kill {landed.total()} in {found}, {workers[1]} workers"
            if not self.edition.absent_or_complete(self.output):
                self.fail(f"{what}: the output is neither absent nor whole")
            if ended.code == -9 and found in STAGES:  # else it was done before
                landed[found] += 1
                self.check_resume(what, "--num-proc", str(self.random.randint(1, 2)))
        hit = ", ".join(f"{count} in {stage}" for stage, count in landed.items())
        return f"{landed.total()} SIGKILLs: {hit}"

    def _kill_in(self, stage: str, delay: float) -> Callable[[int], None]:
        return harness.kill_in(stage, self.output, delay, self.edition.stage_of)

    def failing_calls(self, of: str, most: int | None) -> Iterator[str]:
        """Let the N-th call fail, N = 1, 2, ... until a build is clean.

        `most`: so many of each kind, spread evenly.
        """
        for kind in of:
            for error, what in ERRORS.items():
                if (error == "short" and kind != "w") or (error == "ENOSPC" and kind in "Oi"):
                    continue
                harness.clear(self.output)
                total = self.calls(kind, "--num-proc", "1")
                numbers = range(1, total + 2, max(1, total // most) if most else 1)
                at = f"{KINDS[kind]} {{}} of {total} with {error}"
                faults = (Fault(kind, number, what, self.output) for number in numbers)
                survived = sum(self._fails(fault, total, at) for fault in faults)
                failed = sum(number <= total for number in numbers)
                done = f"{KINDS[kind]} with {error}: {failed} of {total} calls failed"
                yield f"{done}, {survived} of them without harm"

    def _fails(self, fault: Fault, total: int, at: str) -> bool:
        """Let one call fail; True if the build did without it, as of the name of a lock's owner."""
        harness.clear(self.output)
        at = at.format(fault.call)
        ended = self.build("--num-proc", "1", fault=fault)
        lines = [line for line in ended.err.splitlines() if line[:6] not in ("", "calls ")]
        if ended.code == 0:
            if not self.output.exists() or self.edition.data(self.output) != self.expected:
                self.fail(f"{at}: exit code 0 and another output")
            return fault.call <= total
        if ended.code not in (2, 3) or len(lines) != 1 or fault.call > total:
            self.fail(f"{at}: exit code {ended.code}: {ended.err[-300:]}")
        if not self.edition.absent_or_complete(self.output):
            self.fail(f"{at}: a half-written output")
        self.check_resume(at, "--num-proc", "1")
        return False

    def full_disks(self, sizes: int) -> str:
        """A disk that fills up at ten sizes; then it grows, and the same command goes on."""
        disk, big = self.folder / "disk", 1 << 28
        harness.small_disk(disk, big)
        output = disk / "out"
        harness.clear(self.output)
        last = harness.kill_in(STAGES[-1], output, 0, self.edition.stage_of)
        self.build(output=output, kill=last)  # most is there
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
            stages["refused" if refused else self.edition.stage_of(output)] += 1
            harness.small_disk(disk, big)
            self.check_resume(f"disk {number}", output=output)
        subprocess.run(["umount", disk], check=True)
        hit = ", ".join(f"{count} in {stage}" for stage, count in stages.items())
        return f"{sizes} full disks, each reported in one line, exit code 3, and resumed: {hit}"

    def killed_workers(self, number: int) -> str:
        """SIGKILL of worker processes while they start or tokenize: the build goes on."""
        killed: list[int] = []
        while len(killed) < number:
            harness.clear(self.output)
            kill = harness.kill_workers(self.random, 2, killed)
            ended = self.build("--executor=isolated", "--num-proc", "2", kill=kill)
            if ended.code != 0:
                self.fail(f"killed workers: exit code {ended.code}: {ended.err[-300:]}")
            self.check_resume("killed workers")
        return f"{len(killed)} SIGKILLs of workers"


def _parts(folder: Path, given: SimpleNamespace) -> Iterator[tuple[str, int]]:
    """A line of each part, and the number of failures."""
    edition = EDITIONS[given.edition]
    second = given.edition == "second"
    kinds = edition.kinds if second and given.kind is None else [given.kind]

    def soak(name: str, kind: str | None = given.kind, **sizes: Any) -> Soak:
        return Soak(folder / name, given.seed, edition, kind, **sizes)

    for number, kind in enumerate(kinds if given.kills else ()):
        each = soak(f"kills-{number}", kind)
        line = each.kills(given.kills // len(kinds))
        yield f"{kind}: {line}" if second else line, each.failures
    if given.workers and not second:  # the second has no processes
        each = soak("workers")
        yield each.killed_workers(given.workers), each.failures
    if given.mounts and given.disks:
        each = soak("disks")
        yield each.full_disks(given.disks), each.failures
    if given.shim and given.kinds:
        each = soak("calls", few=True)
        for line in each.failing_calls(given.kinds, given.calls):
            yield line, 0
        yield "calls", each.failures


def _power_cuts(folder: Path, given: SimpleNamespace) -> int:
    """Check states of the disk after kills and power cuts. Returns the number of faults."""
    names = [n for n in EDITIONS[given.edition].commands(folder, folder) if given.only in n]
    if not names:
        raise click.UsageError(f"--only is {given.only}, which no command has in its name")
    each = given.crash_states // len(names)
    rest = (given.seed, each, given.every, given.forget)
    cases = [(given.edition, name, folder / name, *rest) for name in names]
    failures, again, by_model, forgotten = 0, 0, Counter[str](), Counter[str]()
    with get_context("fork").Pool(2 * usable_cores().value) as pool:  # threads wait for threads
        for found in pool.imap(_explore, cases):
            for fault in found.faults:
                print("FAILED", fault, flush=True)
            failures += len(found.faults)
            by_model += found.by_model
            forgotten.update(found.forgotten)
            again += found.run_again
            states = f"{found.by_model.total():,} crash states, {found.cut_twice:,} cut twice"
            print(f"{found.name}: {states}, {len(found.faults)} bad", flush=True)
    models = ", ".join(f"{count:,} {model}" for model, count in by_model.items())
    print(f"{by_model.total():,} crash states, {failures} bad: {models}", flush=True)
    print(f"{again:,} times the same command ended with the same bytes", flush=True)
    for pattern, bad in forgotten.items():
        failures += bad == 0
        print(f"without the syncs of {pattern}: {bad} bad", flush=True)
    return failures


def _explore(case: tuple[str, str, Path, int, int, int, Sequence[str]]) -> Found:
    return explore(EDITIONS[case[0]], *case[1:])


def _run(given: SimpleNamespace) -> int:
    if not given.inside:
        return harness.under_shim(Path(__file__), sys.argv[1:]).returncode
    EDITIONS[given.edition].warm()
    start = time.monotonic()
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where syncs take no time
    with tempfile.TemporaryDirectory(dir=memory if given.crash_states else None) as folder:
        if given.crash_states:
            failures = _power_cuts(Path(folder), given)
        else:
            failures = 0
            for line, failed in _parts(Path(folder), given):
                print(line, flush=True)
                failures += failed
        print(f"seed {given.seed}: {failures} failures in {time.monotonic() - start:,.0f} s")
        return 1 if failures else 0


_option = partial(click.option, show_default=True)


@click.command(help=__doc__)
@_option("--seed", default=0)
@_option("--kills", default=200, help="SIGKILLs that land in a stage; a fifth in each at least.")
@_option("--calls", type=int, help="So many failing calls of each kind; default: every one.")
@_option("--kinds", default="oOwsri", help="o(pen) O(pen to read) w(rite) s(ync) r(ename) i(n).")
@_option("--disks", default=10, help="Sizes of a disk that fills up.")
@_option("--workers", default=20, help="SIGKILLs of worker processes.")
@_option("--edition", type=click.Choice([*EDITIONS]), default="first", help="Builds of this one.")
@_option(
    "--kind", help="Kind of build; default: text with a holdout, or all of the second edition."
)
@_option(
    "--crash-states", default=0, help="Check so many states that kills and power cuts leave, only."
)
@_option("--every", default=1, help="Run the command again in one of so many crash states.")
@_option("--only", default="", help="Crash states of commands whose name has this, only.")
@_option("--forget", multiple=True, help="Crash states must show that PATTERN is not synced.")
@_option("--inside", is_flag=True, hidden=True)
@_option("--shim", is_flag=True, hidden=True)
@_option("--mounts", is_flag=True, hidden=True)
def main(**values: Any) -> None:
    sys.exit(_run(SimpleNamespace(**values)))


if __name__ == "__main__":
    main(prog_name="scripts/soak")
