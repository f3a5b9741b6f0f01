"""Interrupts builds on purpose, many times, and checks the rest: `scripts/soak --seed 1`.

Every part prints a line: the number of faults, the stages they hit, and the number of builds with
other bytes (none, or exit code 1).
"""

import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click

from packprep.execute import worker_pool as workers
from packprep.output.staging import staging_path
from packprep.schemas import read_manifest
from packprep.support.limits import usable_cores
from tests.helpers.corpus import write_jsonl

from . import harness
from .crash_checks import Found, commands, explore
from .harness import DIE_AFTER, DIE_BEFORE, ERRORS, STAGES, Ended, Fault, forked


class Soak:
    """One folder of builds, and the output of an undisturbed one to compare with."""

    def __init__(self, folder: Path, seed: int, shim: bool, *more: str) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.shim = shim
        self.arguments = [*harness.corpus(folder), *more]
        self.output = folder / "out"
        self.log = folder / "log"
        self.failures = 0
        start = time.monotonic()
        undisturbed = self.build("--num-proc", "1", output=folder / "undisturbed")
        self.seconds = time.monotonic() - start
        assert undisturbed.code == 0, undisturbed.err
        self.expected = read_manifest(folder / "undisturbed").data

    def fail(self, what: str) -> None:
        self.failures += 1
        print("FAILED", what, flush=True)

    def build(
        self,
        *more: str,
        output: Path | None = None,
        fault: Fault | None = None,
        kill: object = None,
    ) -> Ended:
        target = output or self.output
        return forked([*self.arguments, "-o", str(target), *more], self.log, fault, kill)  # type: ignore[arg-type]

    def calls(self, kind: str, *more: str) -> int:
        """Number of calls of a kind that an undisturbed build makes."""
        harness.clear(self.output)
        ended = self.build(*more, fault=Fault(kind, 0, 0, self.folder / "out"))
        assert ended.code == 0, ended.err
        return int(ended.err.rsplit("calls ", 1)[1])

    def check_resume(self, what: str, *more: str, output: Path | None = None) -> None:
        """The same command ends with the bytes of an undisturbed build."""
        output = output or self.output
        ended = self.build(*more, output=output)
        if ended.code != 0 or read_manifest(output).data != self.expected:
            self.fail(f"{what}: resumed with exit code {ended.code}: {ended.err[-300:]}")
        elif not harness.absent_or_complete(output) or staging_path(output).exists():
            self.fail(f"{what}: the output is not whole or something is left beside it")

    def kills(self, number: int) -> str:
        """SIGKILL at random calls and at random times, every stage in turn, workers 1 and 2."""
        total = self.calls("*", "--num-proc", "1") if self.shim else 0
        landed: Counter[str] = Counter()
        tried = 0
        while (
            sum(landed[stage] for stage in STAGES) < number
            or min(landed[stage] for stage in STAGES) < number // 5
        ):
            tried += 1
            workers = str(1 + tried % 2)
            harness.clear(self.output)
            stage = min(STAGES, key=lambda name: landed[name])
            if self.shim and tried % 4:
                first = (
                    total - total // 10 if stage == STAGES[-1] else 1
                )  # few of the calls are the last stage's
                fault = Fault(
                    "*",
                    self.random.randint(first, total),
                    self.random.choice([DIE_BEFORE, DIE_AFTER]),
                    self.output,
                )
                ended = self.build("--num-proc", workers, fault=fault)
            else:
                delay = (
                    self.random.random()
                    * {"tokenize": 0.5, "pack": 0.3, "sign off": 0.05}[stage]
                    * self.seconds
                )
                ended = self.build(
                    "--num-proc", workers, kill=harness.kill_in(stage, self.output, delay)
                )
            found = harness.stage_of(self.output)
            what = f"kill {tried} in {found}, {workers} workers"
            if not harness.absent_or_complete(self.output):
                self.fail(f"{what}: the output is neither absent nor whole")
            if ended.code != -9:
                continue  # it was done before
            landed[found] += 1
            self.check_resume(what, "--num-proc", str(self.random.randint(1, 2)))
        return f"{sum(landed.values())} SIGKILLs: " + ", ".join(
            f"{landed[stage]} in {stage}" for stage in landed
        )

    def overwrites(self, number: int) -> str:
        """SIGKILL while an old output is replaced: one complete output always exists."""
        total = self.calls("*")
        landed = 0
        for tried in range(number):
            harness.clear(self.output)
            old = self.build("--max-length", "32")
            assert old.code == 0, old.err
            # Most of them around the swap, which is at the end.
            call = (
                total - self.random.randint(0, total // 10)
                if tried % 2
                else self.random.randint(1, total)
            )
            fault = Fault("*", call, self.random.choice([DIE_BEFORE, DIE_AFTER]), self.output)
            ended = self.build("--overwrite", fault=fault)
            if not self.output.exists() or not harness.absent_or_complete(self.output):
                self.fail(f"overwrite {tried}, call {call}: no whole output is there")
            landed += ended.code == -9
            self.check_resume(f"overwrite {tried}, call {call}", "--overwrite")
        return f"{landed} SIGKILLs while an old output was replaced: one whole output at each"

    def appends(self, number: int) -> str:
        """SIGKILL while more is appended to an output.

        It is the old one or the new one, and the same command ends.
        """
        both, base = self.arguments, self.folder / "base"
        self.arguments = both[:2] + both[3:]
        first = self.build(output=base)
        self.arguments = both
        assert first.code == 0, first.err

        def begin() -> None:
            harness.clear(self.output)
            shutil.copytree(base, self.output)

        begin()
        counted = self.build("--append", fault=Fault("*", 0, 0, self.output))
        assert counted.code == 0, counted.err
        total = int(counted.err.rsplit("calls ", 1)[1])
        old, self.expected = read_manifest(base).data, read_manifest(self.output).data
        landed: Counter[str] = Counter()
        for tried in range(number):
            begin()
            # Half of them in the last part, where outputs are put together and swapped.
            call = (
                total - self.random.randint(0, total // 4)
                if tried % 2
                else self.random.randint(1, total)
            )
            fault = Fault("*", call, self.random.choice([DIE_BEFORE, DIE_AFTER]), self.output)
            ended = self.build("--append", fault=fault)
            there = (
                read_manifest(self.output).data if harness.absent_or_complete(self.output) else {}
            )
            if there not in (old, self.expected):
                self.fail(
                    f"append {tried}, call {call}: neither the old nor the new output is there"
                )
            landed["new" if there == self.expected else "old"] += ended.code == -9
            self.check_resume(f"append {tried}, call {call}", "--append")
            if left := sorted(path.name for path in self.folder.glob("out?*")):
                self.fail(f"append {tried}, call {call}: {left} are left")
        return (
            f"{landed.total()} SIGKILLs while more was appended: {landed['old']} left the old "
            "output, the rest the new"
        )

    def failing_calls(self, of: str, most: int | None) -> Iterator[str]:
        """Let the N-th call fail, N = 1, 2, ... until a build is clean.

        `most`: so many of each kind, spread evenly.
        """
        self.arguments = harness.few_files(self.arguments)
        self.build(output=self.folder / "few")
        self.expected = read_manifest(self.folder / "few").data
        kinds = {
            "o": "open",
            "O": "open to read",
            "w": "write",
            "s": "fsync",
            "r": "rename",
            "i": "read",
        }
        for kind, name in ((kind, kinds[kind]) for kind in of):
            for error, what in ERRORS.items():
                if (error == "short" and kind != "w") or (error == "ENOSPC" and kind in "Oi"):
                    continue
                total = self.calls(kind, "--num-proc", "1")
                numbers = range(1, total + 2, max(1, total // most) if most else 1)
                survived = 0
                for number in numbers:
                    harness.clear(self.output)
                    ended = self.build(
                        "--num-proc", "1", fault=Fault(kind, number, what, self.output)
                    )
                    said = [
                        line
                        for line in ended.err.splitlines()
                        if line and not line.startswith("calls ")
                    ]
                    at = f"{name} {number} of {total} with {error}"
                    if ended.code == 0:
                        survived += (
                            number <= total
                        )  # nothing a build cannot do without, such as who had its lock
                        if (
                            not self.output.exists()
                            or read_manifest(self.output).data != self.expected
                        ):
                            self.fail(f"{at}: exit code 0 and another output")
                        continue
                    if ended.code not in (2, 3) or len(said) != 1 or number > total:
                        self.fail(f"{at}: exit code {ended.code}: {ended.err[-300:]}")
                    if self.output.exists() and not harness.absent_or_complete(self.output):
                        self.fail(f"{at}: a half-written output")
                    self.check_resume(at, "--num-proc", "1")
                failed = sum(number <= total for number in numbers)
                yield (
                    f"{name} with {error}: {failed} of {total} calls failed, {survived} of them "
                    "without harm"
                )

    def full_disks(self, sizes: int) -> str:
        """A disk that fills up at ten sizes; then it grows, and the same command goes on."""
        disk = self.folder / "disk"
        big = 1 << 28
        harness.small_disk(disk, big)
        output = disk / "out"
        fault = Fault(
            "*", self.calls("*") - 30, DIE_BEFORE, output
        )  # near the end, where most is on the disk
        self.build(output=output, fault=fault)
        peak = sum(path.stat().st_blocks * 512 for path in disk.rglob("*"))
        stages: Counter[str] = Counter()
        for number in range(sizes):
            harness.clear(output)
            harness.small_disk(disk, int(peak * (0.4 + 0.58 * number / sizes)))
            ended = self.build(output=output)
            at = f"disk {number}"
            refused = " free; free " in ended.err  # before anything was written
            if (
                ended.code != 3
                or not (refused or ("no space left" in ended.err and "are needed" in ended.err))
                or len(ended.err.splitlines()) != 1
            ):
                self.fail(f"{at}: exit code {ended.code}: {ended.err[-300:]}")
            if output.exists():
                self.fail(f"{at}: a half-written output")
            stages["refused" if refused else harness.stage_of(output)] += 1
            harness.small_disk(disk, big)
            self.check_resume(at, output=output)
        subprocess.run(["umount", disk], check=True)
        hit = ", ".join(f"{count} in {stage}" for stage, count in stages.items())
        return f"{sizes} full disks, each reported in one line, exit code 3, and resumed: {hit}"

    def killed_workers(self, number: int) -> str:
        """Worker processes that are killed while they tokenize, or start to."""
        killed: list[int] = []
        builds = 0
        while len(killed) < number:
            builds += 1
            harness.clear(self.output)
            ended = self.build(
                "--isolate",
                "--num-proc",
                "2",
                kill=harness.kill_workers(self.random, 3.0, 2, killed),
            )
            if ended.code != 0:
                self.fail(
                    f"killed workers, build {builds}: exit code {ended.code}: {ended.err[-300:]}"
                )
            self.check_resume(f"killed workers, build {builds}")
        return f"{len(killed)} SIGKILLs of workers in {builds} builds, all recovered"

    def out_of_memory(self, number: int) -> str:
        """Rows that the system kills a worker for once each, as it does when memory is short."""
        folder = self.folder / "oom"
        folder.mkdir()
        rows = [f"row {row} <once {folder / str(row)}>" for row in range(number)]
        write_jsonl(
            folder / "a.jsonl", [text for row in rows for text in (row, *["some other text"] * 20)]
        )
        arguments = [
            "build",
            str(folder / "a.jsonl"),
            *self.arguments[3:],
            "--num-proc",
            "1",
            "--isolate",
        ]
        arguments[arguments.index("4KB")] = "300"
        for row in range(number):
            (folder / str(row)).write_text("<oom>")
        real, workers.COMMAND = (
            workers.COMMAND,
            (sys.executable, "-m", "tests.faults.poisoned_worker"),
        )
        ended = forked([*arguments, "-o", str(folder / "out")], self.log)
        workers.COMMAND = real
        plain = forked([*arguments, "-o", str(folder / "plain")], self.log)
        left = sum((folder / str(row)).exists() for row in range(number))
        if ended.code or plain.code or left:
            self.fail(
                f"out of memory: exit codes {ended.code} and {plain.code}, {left} rows not reached"
            )
        elif read_manifest(folder / "out").data != read_manifest(folder / "plain").data:
            self.fail("out of memory: another output")
        return f"{number - left} simulated kills for memory in one build, all recovered"


@dataclass(frozen=True)
class Given:
    """Values of the command line."""

    seed: int
    kills: int
    overwrites: int
    appends: int
    calls: int | None
    kinds: str
    disks: int
    workers: int
    index: bool
    crash_states: int
    every: int
    forget: tuple[str, ...]
    inside: bool
    shim: bool
    mounts: bool


@click.command(help=__doc__)
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--kills",
    default=200,
    show_default=True,
    help="SIGKILLs that land in a stage; a fifth in each at least.",
)
@click.option("--overwrites", default=40, show_default=True)
@click.option("--appends", default=40, show_default=True)
@click.option("--calls", type=int, help="So many failing calls of each kind; default: every one.")
@click.option(
    "--kinds",
    default="oOwsri",
    show_default=True,
    help="Of calls: o(pen) O(pen to read) w(rite) s(ync) r(ename) i(n).",
)
@click.option("--disks", default=10, show_default=True, help="Sizes of a disk that fills up.")
@click.option(
    "--workers",
    default=20,
    show_default=True,
    help="Worker processes killed, and as many for memory.",
)
@click.option("--index", is_flag=True, help="Build index outputs, with their tokens in OUT.")
@click.option(
    "--crash-states",
    default=0,
    help="Check so many states of the disk that power cuts may leave, and do nothing else.",
)
@click.option(
    "--every",
    default=1,
    show_default=True,
    help="With --crash-states: run the command again in one of so many states.",
)
@click.option(
    "--forget",
    multiple=True,
    metavar="PATTERN",
    help="With --crash-states: as many states must show that files of this name are not synced.",
)
@click.option("--inside", is_flag=True, hidden=True)
@click.option("--shim", is_flag=True, hidden=True)
@click.option("--mounts", is_flag=True, hidden=True)
def main(**values: Any) -> None:
    sys.exit(_run(Given(**values)))


def _run(given: Given) -> int:
    if not given.inside:
        return harness.under_shim("tests.faults.soak", sys.argv[1:]).returncode
    harness.warm()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        if given.crash_states:
            with _in_memory(Path(folder), given.mounts) as memory:
                failures = _power_cuts(memory, given)
        else:
            index = ["--materialize", "index"] if given.index else []
            soak = Soak(Path(folder), given.seed, given.shim, *index)
            for line in _parts(soak, given):
                print(line, flush=True)
            failures = soak.failures
        print(f"seed {given.seed}: {failures} failures in {time.monotonic() - start:,.0f} s")
        return 1 if failures else 0


@contextmanager
def _in_memory(folder: Path, mounts: bool) -> Iterator[Path]:
    """A folder in memory, where syncs take no time; the folder itself where there are no mounts."""
    if not mounts:
        yield folder
        return
    memory = folder / "memory"
    harness.small_disk(memory, 1 << 28)
    try:
        yield memory
    finally:
        subprocess.run(["umount", "--lazy", memory], check=True)


def _power_cuts(folder: Path, given: Given) -> int:
    """Check states of the disk after power cuts. Returns the number of faults."""
    names = [*commands(folder, folder)]
    each = given.crash_states // len(names)
    cases = [(name, folder / name, given.seed, each, given.every, given.forget) for name in names]
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


def _explore(case: tuple[str, Path, int, int, int, Sequence[str]]) -> Found:
    return explore(*case)


def _parts(soak: Soak, given: Given) -> Iterator[str]:
    if given.kills:
        yield soak.kills(given.kills)
    if given.shim and given.overwrites:
        yield soak.overwrites(given.overwrites)
    if given.shim and given.appends:
        expected = soak.expected
        yield soak.appends(given.appends)
        soak.expected = expected
    if given.mounts and given.shim and given.disks:
        yield soak.full_disks(given.disks)
    if given.workers:
        yield soak.killed_workers(given.workers)
        yield soak.out_of_memory(given.workers)
    if given.shim:
        yield from soak.failing_calls(given.kinds, given.calls)


if __name__ == "__main__":
    main(prog_name="scripts/soak")
