#!/usr/bin/env python3
"""Needs of a build of billions of documents.

Packs, tasks, bytes, hours, money, planned from counts of lengths.

\b
scripts/checks/simulate_scale.py                          10 billion documents of web text,
                                                          packs of 4,096
scripts/checks/simulate_scale.py -n 1G --measured packed  lengths and speed of a build of yours
scripts/checks/simulate_scale.py --check corpus.jsonl --tokenizer T
                                                          predicts a build from two smaller
                                                          ones, then runs it

Best fit plans equal documents in bulk, so ten billion of them cost what their distinct lengths
cost, and the number of packs is the exact one. Time is linear in tokens: a core tokenizes and
writes at measured speeds, slices and windows are spread over the workers, and windows are planned
and written when everything is tokenized. Disks and network are taken to keep up: the bytes moved
say what they have to do.
"""

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from packprep.config.build_config import parse_size
from packprep.packing.bounds import bound_of_counts
from packprep.packing.kernels.fit import best_fit_patterns
from packprep.packing.strategies import NO_LIMIT

Int64 = NDArray[np.int64]
_TOKEN_COLUMNS, _SEGMENT_BYTES, _PACK_BYTES = (
    2,
    16,
    24,
)  # of a shard: tokens and positions; ids, starts, ends; offsets


@dataclass(frozen=True)
class Speed:
    """Core seconds of the stages, and of a process to start.

    Per token, from text to token file and from there to a shard.
    """

    tokenize: float
    write: float
    start: float


# The README's table of engines: fastokens on GPT-2's vocabulary, and a start of a process with warm
# caches.
DEFAULT_SPEED = Speed(tokenize=5.5e-8, write=1.2e-8, start=1.5)
"""See --measured for that of a machine of yours."""


@dataclass(frozen=True)
class Lengths:
    """Counts of lengths: counts[i] documents (or pieces) have lengths[i] tokens.

    Both [kinds], lengths falling.
    """

    lengths: NDArray[np.int32]
    counts: Int64

    @property
    def documents(self) -> int:
        return int(self.counts.sum())

    @property
    def tokens(self) -> int:
        return int((self.lengths * self.counts).sum())

    def scaled(self, documents: int) -> "Lengths":
        """The same distribution with so many documents.

        Shares rounded down, the largest remainders up.
        """
        whole = self.counts * (documents / self.documents)
        counts = np.floor(whole).astype(np.int64)
        missing = documents - int(counts.sum())
        counts[np.argsort(counts - whole, kind="stable")[:missing]] += 1
        kept = counts > 0
        return Lengths(self.lengths[kept], counts[kept])

    def packs(self, max_length: int) -> int:
        """Packs of best fit."""
        weights = np.ones_like(self.lengths)
        return int(
            best_fit_patterns(self.lengths, weights, self.counts, max_length, NO_LIMIT)[3].sum()
        )

    def bound(self, max_length: int) -> int:
        return bound_of_counts(self.lengths, self.counts, max_length, self.documents, None)


def web_text(max_length: int) -> Lengths:
    """Log-normal around 500 tokens, as web text has it, with longer documents split into pieces."""
    random = np.random.default_rng(0)
    documents = np.maximum(1, random.lognormal(6.2, 1.1, 1_000_000).astype(np.int64))
    pieces = np.bincount(documents % max_length, minlength=max_length + 1)
    pieces[0], pieces[max_length] = 0, (documents // max_length).sum()
    return _falling(np.arange(max_length + 1), pieces)


def measured(output: Path) -> tuple[Lengths, Speed]:
    """Lengths of the segments of a finished build, and what its report says of speed."""
    from packprep.inspect.histograms import measure_output

    segments = measure_output(output).segments
    return _falling(segments.values, segments.counts), _speed([_report(output)])


def _falling(values: Int64, counts: Int64) -> Lengths:
    kept = counts > 0
    return Lengths(values[kept][::-1].astype(np.int32), counts[kept][::-1].astype(np.int64))


def _report(output: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((output / "report.json").read_bytes())
    cores = json.loads((output / "manifest.json").read_bytes())["run"]["num_proc"]
    return report | {"cores": cores}


def _speed(reports: Sequence[dict[str, Any]]) -> Speed:
    """Lines through (tokens, seconds) of builds of one machine.

    Of a single build, its start counts as its work.
    """
    tokens = np.array([report["tokens"]["tokens_in"] for report in reports], np.float64)
    cores = reports[0]["cores"]
    slopes, starts = [], 0.0
    for stages in (("hash", "tokenize"), ("plan", "write", "sign off")):
        seconds = np.array(
            [sum(report["seconds"].get(stage, 0.0) for stage in stages) for report in reports]
        )
        slope, start = (
            np.polyfit(tokens, seconds, 1) if len(reports) > 1 else (seconds[0] / tokens[0], 0.0)
        )
        slopes.append(float(slope) * cores)
        starts += max(0.0, float(start))
    return Speed(slopes[0], slopes[1], starts)


@dataclass(frozen=True)
class Job:
    """A build in tokens and bytes, and its cut into tasks."""

    lengths: Lengths
    max_length: int
    text_per_token: float
    unit: int
    window: int
    slice: int = 16_000_000

    @property
    def text(self) -> float:
        return self.lengths.tokens * self.text_per_token

    @property
    def windows(self) -> int:
        return max(1, round(self.text / self.window))

    def packs(self) -> int:
        """Packs of all windows, each a sample of the whole."""
        return self.windows * self.lengths.scaled(self.lengths.documents // self.windows).packs(
            self.max_length
        )

    def shard_bytes(self, packs: int) -> int:
        return (
            4 * _TOKEN_COLUMNS * self.lengths.tokens
            + _SEGMENT_BYTES * self.lengths.documents
            + _PACK_BYTES * packs
        )

    def seconds(self, workers: int, speed: Speed) -> float:
        """Wall time on so many one-core workers.

        Tasks go round, and the last one of each kind is waited for.
        """
        tokens = self.lengths.tokens
        tasks = max(1, round(self.text / self.slice))
        rounds = -(-tasks // workers)
        tokenizing = rounds * tokens / tasks * speed.tokenize
        writing = -(-self.windows // workers) * tokens / self.windows * speed.write
        return speed.start + tokenizing + writing


def _size(_: click.Context, parameter: click.Parameter, value: str) -> int:
    return parse_size(value, str(parameter.name))


@click.command()
@click.option(
    "-n",
    "--documents",
    default="10G",
    show_default=True,
    callback=_size,
    help="Documents of the build.",
)
@click.option("--max-length", default=4096, show_default=True, help="Tokens of a pack.")
@click.option(
    "--measured",
    "output",
    type=click.Path(exists=True, path_type=Path),
    help="Output of a build of yours.",
)
@click.option(
    "--workers", default="2,64,512,4096", show_default=True, help="Cores, a row for each."
)
@click.option(
    "--unit-size",
    "unit",
    default="64MB",
    show_default=True,
    callback=_size,
    help="As in the build.",
)
@click.option("--window", default="4GB", show_default=True, callback=_size, help="As in the build.")
@click.option("--text-per-token", default=4.2, show_default=True, help="Bytes of text of a token.")
@click.option("--core-hour", default=0.04, show_default=True, help="Price of a core for an hour.")
@click.option(
    "--check",
    "source",
    type=click.Path(exists=True, path_type=Path),
    help="JSON lines to build for real.",
)
@click.option("--tokenizer", help="For --check.")
@click.option("--num-proc", default=2, show_default=True, help="For --check.")
def main(
    documents: int,
    max_length: int,
    output: Path | None,
    workers: str,
    unit: int,
    window: int,
    text_per_token: float,
    core_hour: float,
    source: Path | None,
    tokenizer: str | None,
    num_proc: int,
) -> None:
    """Plan a build from counts of lengths, or check such a prediction against a real build."""
    if source is not None:
        if tokenizer is None:
            raise click.UsageError("--check builds, so it needs --tokenizer")
        check(source, tokenizer, num_proc)
        return
    lengths, speed = (
        measured(output) if output is not None else (web_text(max_length), DEFAULT_SPEED)
    )
    started = time.process_time()
    whole = lengths.scaled(documents)
    packs, bound = whole.packs(max_length), whole.bound(max_length)
    planned = time.process_time() - started
    job = Job(whole, max_length, text_per_token, unit, window)
    in_windows = job.packs()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
    for name, value in {
        "documents": f"{whole.documents:,} of {len(whole.lengths):,} lengths",
        "tokens": f"{whole.tokens:,}, {job.text / 1e12:,.1f} TB of text",
        "packs": f"{packs:,}, {packs - bound:,} over the lower bound, planned in {planned:.2f} CPU "
        "s",
        "in windows": f"{in_windows:,} packs, {in_windows / packs - 1:+.4%}, in {job.windows:,} "
        "windows",
        "tasks": f"{job.text / unit:,.0f} units in {job.text / job.slice:,.0f} slices to tokenize; "
        f"{job.windows:,} windows to plan and write",
        "bytes moved": f"{(job.text + 8 * whole.tokens + job.shard_bytes(in_windows)) / 1e12:,.1f} "
        "TB: text read, "
        f"{4 * whole.tokens / 1e12:,.1f} TB of token files, 4 bytes a token, written and read, "
        f"{job.shard_bytes(in_windows) / 1e12:,.1f} TB of shards",
        "memory": f"{memory / 1e6:,.0f} MB for this plan",
    }.items():
        click.echo(f"{name:<12} {value}")
    click.echo("\nworkers      hours      core hours   price      per TB of text")
    for count in map(int, workers.split(",")):
        hours = job.seconds(count, speed) / 3600
        price = hours * count * core_hour
        click.echo(
            f"{count:>7,} {hours:>10,.2f} {hours * count:>15,.0f} {price:>7,.0f} "
            f"{price / (job.text / 1e12):>19,.2f}"
        )


def check(source: Path, tokenizer: str, num_proc: int) -> None:
    """Predict the build of all rows from those of an eighth and a quarter.

    The build of all of them then runs.
    """
    with tempfile.TemporaryDirectory() as folder:
        rows = source.read_bytes().splitlines(keepends=True)
        reports = [_built(Path(folder), rows[:: 8 // part], tokenizer, num_proc) for part in (1, 2)]
        speed = _speed([report for report, _ in reports])
        lengths, _ = measured(Path(folder) / "out")
        whole = lengths.scaled(round(lengths.documents * len(rows) / len(rows[::4])))
        job = Job(whole, 4096, source.stat().st_size / whole.tokens, 64_000_000, 4_000_000_000)
        packs = job.packs()
        report, seconds = _built(Path(folder), rows, tokenizer, num_proc)
        start = float(
            np.mean([spent - measured_["seconds"]["total"] for measured_, spent in reports])
        )
        predicted = {
            "seconds": speed.start
            + start
            + whole.tokens * (speed.tokenize + speed.write) / num_proc,
            "packs": packs,
            "bytes": job.shard_bytes(packs),
        }
    for name, value in {
        "seconds": seconds,
        "packs": report["packs"],
        "bytes": report["bytes"],
    }.items():
        error = predicted[name] / value - 1
        click.echo(
            f"{name:<8} predicted {predicted[name]:>15,.1f}  built {value:>15,.1f}  {error:+.1%}"
        )


def _built(
    folder: Path, rows: Sequence[bytes], tokenizer: str, num_proc: int
) -> tuple[dict[str, Any], float]:
    """Report and wall seconds of a build of these rows: the middle one of three."""
    (folder / "in.jsonl").write_bytes(b"".join(rows))
    found = sorted(_runs(folder, tokenizer, num_proc), key=lambda run: run[1])
    return found[1]


def _runs(folder: Path, tokenizer: str, num_proc: int) -> Iterator[tuple[dict[str, Any], float]]:
    for _ in range(3):
        shutil.rmtree(folder / "out", ignore_errors=True)
        command = [
            sys.executable,
            "-m",
            "packprep",
            "build",
            str(folder / "in.jsonl"),
            "-o",
            str(folder / "out"),
        ]
        started = time.perf_counter()
        subprocess.run(
            [*command, "--tokenizer", tokenizer, "--num-proc", str(num_proc), "-q"], check=True
        )
        yield _report(folder / "out"), time.perf_counter() - started


if __name__ == "__main__":
    main()
