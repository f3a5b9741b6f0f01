"""Costs of executors and their scaling.

CPU of `ray` over `local`, `local` with 1 and 2 workers, flat memory.

    python scripts/bench/executors.py overhead|scaling|memory --text FILE --tokenizer DIR

Each build is a separate process, with units of 1 MB and windows of 8 MB. CPU seconds are
those of all processes that it starts, including Ray's, polled ten times a second. A build of a
quarter of the text, in which every process starts and loads its libraries, is subtracted. Memory is
that of the coordinating process: anonymous memory, and its peak with mapped files.
"""

import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import click

_FILES = 8  # a task of `ray` reads the file that it begins in from its beginning
_EVERY = 0.1  # seconds between looks
_TICK = os.sysconf("SC_CLK_TCK")
_UNITS = ("--unit-size", "1MB", "--window", "8MB", "--max-length", "4096")
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: processes whose parents end stay descendants of this one


@dataclass(frozen=True)
class Run:
    """Measurements of one build.

    seconds: the build's own, without imports. cpu: seconds, of all processes. anonymous, peak:
    bytes.
    """

    seconds: float
    cpu: float
    anonymous: int
    peak: int


class Bench:
    """Builds of one text with one tokenizer in a folder that goes away."""

    def __init__(self, folder: Path, tokenizer: Path, engine: str) -> None:
        self.folder, self.options = (
            folder,
            ("--tokenizer", str(tokenizer), "--engine", engine, *_UNITS),
        )

    def build(self, source: Path, *more: str) -> Run:
        output = self.folder / "out"
        shutil.rmtree(output, ignore_errors=True)
        command = [
            sys.executable,
            "-m",
            "packprep",
            "build",
            str(source),
            "-o",
            str(output),
            "-q",
            *self.options,
        ]
        process = subprocess.Popen([*command, *more])
        cpu: dict[int, float] = {}
        anonymous = peak = 0
        while process.poll() is None:
            cpu |= _cpu()
            held = _memory(process.pid)
            anonymous, peak = max(anonymous, held[0]), max(peak, held[1])
            time.sleep(_EVERY)
        if process.returncode:
            raise SystemExit(f"exit code {process.returncode} of {' '.join(command)}")
        while left := _cpu():  # Ray's processes end after their driver
            cpu |= left
            time.sleep(_EVERY)
            _reap()
        report = output / "report.json"
        seconds = json.loads(report.read_bytes())["seconds"]["total"] if report.exists() else 0.0
        return Run(seconds, sum(cpu.values()), anonymous, peak)

    def cut(self, source: Path, name: str, size: float) -> Path:
        """The first `size` bytes of a file of JSON lines.

        The file again and again where it has less.
        """
        path, left = self.folder / name, int(size)
        with path.open("wb") as into:
            while left > 0:
                with source.open("rb") as file:
                    for line in file:
                        into.write(line)
                        left -= len(line)
                        if left <= 0:
                            break
        return path


def _stat(pid: str) -> tuple[int, float]:
    """Parent of a process, and CPU seconds that it has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICK


def _cpu() -> dict[int, float]:
    """CPU seconds of every living descendant of this process."""
    found: dict[int, tuple[int, float]] = {}
    for pid in (path.name for path in Path("/proc").glob("[0-9]*")):
        try:
            found[int(pid)] = _stat(pid)
        except (OSError, IndexError):
            continue
    ours, grown = {os.getpid()}, True
    while grown:
        more = {pid for pid, (parent, _) in found.items() if parent in ours} - ours
        ours |= more
        grown = bool(more)
    return {pid: found[pid][1] for pid in ours - {os.getpid()}}


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _memory(pid: int) -> tuple[int, int]:
    """Anonymous bytes now, and the peak of all that was in memory, mapped files included."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    fields = {key: rest.split() for key, _, rest in (line.partition(":") for line in lines)}
    anonymous, peak = (
        int(fields[key][0]) * 1024 if key in fields else 0 for key in ("RssAnon", "VmHWM")
    )
    return anonymous, peak


@click.command()
@click.argument("what", type=click.Choice(["overhead", "scaling", "memory"]))
@click.option(
    "--text",
    required=True,
    type=click.Path(exists=True, path_type=Path),
    help="JSON lines with text.",
)
@click.option("--tokenizer", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--engine", default="hf", show_default=True)
@click.option("--size", default=30.0, show_default=True, help="MB of the file to use.")
@click.option("--runs", default=3, show_default=True)
@click.option("--folder", default=None, type=click.Path(path_type=Path), help="Where to work.")
def main(
    what: str, text: Path, tokenizer: Path, engine: str, size: float, runs: int, folder: Path | None
) -> None:
    """Measure one of them and print what comes of it."""
    if sys.platform != "linux":
        raise SystemExit("this reads /proc, so it runs on Linux only")
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        bench = Bench(Path(made), tokenizer, engine)
        {"overhead": overhead, "scaling": scaling, "memory": memory}[what](
            bench, text, size * 1e6, runs
        )


def overhead(bench: Bench, text: Path, size: float, runs: int) -> None:
    """CPU seconds of `ray` over `local`, two workers each, alternating.

    The text is in eight files.
    """
    few, whole = bench.cut(text, "few.jsonl", size / 4), bench.cut(text, "all.jsonl", size)
    all_ = bench.folder / "parts"
    all_.mkdir()
    with whole.open("rb") as lines:
        for number in range(_FILES):
            (all_ / f"{number}.jsonl").write_bytes(b"".join(lines.readlines(int(size / _FILES))))
    local, ray = ("--num-proc", "2"), ("--num-proc", "2", "--executor", "ray")
    ratios = []
    for _ in range(runs):
        used = {}
        for name, how in (("local", local), ("ray", ray)):
            start, run = bench.build(few, *how), bench.build(all_, *how)
            used[name] = run.cpu - start.cpu
            print(f"{name:6} a quarter {start.cpu:6.2f} s, the rest {used[name]:6.2f} s of CPU")
        ratios.append(used["ray"] / used["local"])
    print(
        f"ray over local: {statistics.median(ratios) - 1:+.1%} CPU, median of "
        f"{[round(r, 3) for r in ratios]}"
    )


def scaling(bench: Bench, text: Path, size: float, runs: int) -> None:
    """Seconds of `local` with one worker and with two, alternating."""
    source = bench.cut(text, "all.jsonl", size)
    ratios = []
    for _ in range(runs):
        one, two = (bench.build(source, "--num-proc", workers) for workers in ("1", "2"))
        ratios.append(one.seconds / two.seconds)
        print(
            f"1 worker {one.seconds:.2f} s ({one.cpu:.2f} CPU), 2 workers {two.seconds:.2f} s "
            f"({two.cpu:.2f} CPU)"
        )
    print(
        f"2 workers over 1: {statistics.median(ratios):.2f}x, median of "
        f"{[round(ratio, 2) for ratio in ratios]}"
    )


def memory(bench: Bench, text: Path, size: float, runs: int) -> None:
    """Memory of the coordinating process for a text and for ten times as much."""
    sources = [bench.cut(text, f"{times}.jsonl", size * times) for times in (1, 10)]
    executors = {
        "local": (),
        "ray": ("--executor", "ray"),
        "array": ("--part", "0/1"),
        "merge": ("--part", "merge"),
    }
    for name, how in executors.items():
        found = []
        for source in sources:
            if name == "merge":
                bench.build(source, "--num-proc", "2", *executors["array"])
            found.append(bench.build(source, "--num-proc", "2", *how))
            shutil.rmtree(bench.folder / "out.incomplete", ignore_errors=True)
        for what, (small, large) in {
            "anonymous": [run.anonymous / 1e6 for run in found],
            "peak RSS": [run.peak / 1e6 for run in found],
        }.items():
            print(f"{name:6} {what:9} {small:6.0f} and {large:6.0f} MB ({large / small - 1:+.1%})")


if __name__ == "__main__":
    main()
