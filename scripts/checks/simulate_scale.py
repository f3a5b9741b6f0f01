#!/usr/bin/env python3
"""Estimate a build of billions of documents: packs, tasks, bytes, hours and cost.

\b
scripts/checks/simulate_scale.py                          10 billion documents of web text,
                                                          packs of 4,096
scripts/checks/simulate_scale.py -n 1G --measured packed  lengths and speed of your build
scripts/checks/simulate_scale.py --check corpus.jsonl --tokenizer T
                                                          predicts a build from two smaller
                                                          ones, then runs it

Best fit plans documents of equal length in bulk. So the cost of planning ten billion documents
depends only on their distinct lengths, and the number of packs is exact. Time is linear in tokens:
a core tokenizes and writes at measured speeds, slices and windows are spread over the workers, and
windows are planned and written once everything is tokenized. Disks and network are assumed to be
fast enough for the bytes moved, which are printed.
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

from packprep.cli.amount_types import SizeType
from packprep.packing.bounds import bound_of_counts
from packprep.packing.kernels.fit import best_fit_patterns
from packprep.packing.strategies import NO_LIMIT

Int64 = NDArray[np.int64]
# Of a shard: columns tokens and position_ids; ids, starts and ends of a segment; offsets of a pack.
_TOKEN_COLUMNS, _SEGMENT_BYTES, _PACK_BYTES = 2, 16, 24


@dataclass(frozen=True)
class Speed:
    """Core seconds per token of two stages, and seconds to start a process.

    tokenize: from text to token files. write: from token files to shards.
    """

    tokenize: float
    write: float
    start: float


# From the table of engines in README.md: fastokens with GPT-2's vocabulary, and the start of a
# process with warm caches.
DEFAULT_SPEED = Speed(tokenize=5.5e-8, write=1.2e-8, start=1.5)
"""--measured gives the speed of another machine."""


@dataclass(frozen=True)
class Lengths:
    """Counts of lengths: counts[i] documents (or pieces) have lengths[i] tokens.

    Both arrays have one entry per distinct length; lengths fall.
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
        """The same distribution with this number of documents.

        Counts are rounded down, those with the largest remainders up.
        """
        exact = self.counts * (documents / self.documents)
        counts = np.floor(exact).astype(np.int64)
        missing = documents - int(counts.sum())
        counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
        kept = counts > 0
        return Lengths(self.lengths[kept], counts[kept])

    def packs(self, max_length: int) -> int:
        """Number of packs of best fit."""
        weights = np.ones_like(self.lengths)
        return int(
            best_fit_patterns(self.lengths, weights, self.counts, max_length, NO_LIMIT)[3].sum()
        )

    def bound(self, max_length: int) -> int:
        """Lower bound on the number of packs."""
        return bound_of_counts(self.lengths, self.counts, max_length, self.documents, None)


def web_text(max_length: int) -> Lengths:
    """Lengths like those of web text: log-normal around 500 tokens, long documents in pieces."""
    random = np.random.default_rng(0)
    documents = np.maximum(1, random.lognormal(6.2, 1.1, 1_000_000).astype(np.int64))
    pieces = np.bincount(documents % max_length, minlength=max_length + 1)
    pieces[0], pieces[max_length] = 0, (documents // max_length).sum()
    return _falling(np.arange(max_length + 1), pieces)


def measured(output: Path) -> tuple[Lengths, Speed]:
    """Lengths of the segments of a finished build, and its speed according to its report."""
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
    """Speed by lines through (tokens, seconds) of builds on one machine.

    The start of a single build cannot be separated, so it counts as work.
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
    """A build in tokens and bytes, divided into tasks."""

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
        """Packs of all windows; each window is a sample of all documents."""
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
        """Wall time on this number of one-core workers.

        Workers take tasks in rounds, and each stage waits for its last task.
        """
        tokens = self.lengths.tokens
        tasks = max(1, round(self.text / self.slice))
        rounds = -(-tasks // workers)
        tokenizing = rounds * tokens / tasks * speed.tokenize
        writing = -(-self.windows // workers) * tokens / self.windows * speed.write
        return speed.start + tokenizing + writing


@click.command()
@click.option(
    "-n",
    "--documents",
    default="10G",
    show_default=True,
    type=SizeType(),
    help="Number of documents of the build.",
)
@click.option("--max-length", default=4096, show_default=True, help="Tokens per pack.")
@click.option(
    "--measured",
    "output",
    type=click.Path(exists=True, path_type=Path),
    help="Output of your own build, for its lengths and speed.",
)
@click.option(
    "--workers",
    default="2,64,512,4096",
    show_default=True,
    help="Numbers of cores, one row for each.",
)
@click.option(
    "--unit-size",
    "unit",
    default="64MB",
    show_default=True,
    type=SizeType(),
    help="Same as in the build.",
)
@click.option(
    "--window", default="4GB", show_default=True, type=SizeType(), help="Same as in the build."
)
@click.option("--text-per-token", default=4.2, show_default=True, help="Bytes of text per token.")
@click.option("--core-hour", default=0.04, show_default=True, help="Price of a core for an hour.")
@click.option(
    "--check",
    "source",
    type=click.Path(exists=True, path_type=Path),
    help="File of JSON lines to build and compare with its prediction.",
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
    """Estimate a build from counts of lengths, or compare an estimate with a real build."""
    if source is not None:
        if tokenizer is None:
            raise click.UsageError("--check runs a build, so it needs --tokenizer")
        check(source, tokenizer, num_proc)
        return
    lengths, speed = (
        measured(output) if output is not None else (web_text(max_length), DEFAULT_SPEED)
    )
    started = time.process_time()
    corpus = lengths.scaled(documents)
    packs, bound = corpus.packs(max_length), corpus.bound(max_length)
    planned = time.process_time() - started
    job = Job(corpus, max_length, text_per_token, unit, window)
    in_windows = job.packs()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
    for name, value in {
        "documents": f"{corpus.documents:,} with {len(corpus.lengths):,} different lengths",
        "tokens": f"{corpus.tokens:,}, {job.text / 1e12:,.1f} TB of text",
        "packs": f"{packs:,}, {packs - bound:,} above the lower bound, planned in {planned:.2f} "
        "CPU s",
        "in windows": f"{in_windows:,} packs, {in_windows / packs - 1:+.4%}, in {job.windows:,} "
        "windows",
        "tasks": f"{job.text / unit:,.0f} units in {job.text / job.slice:,.0f} slices to tokenize; "
        f"{job.windows:,} windows to plan and write",
        "bytes moved": f"{(job.text + 8 * corpus.tokens + job.shard_bytes(in_windows)) / 1e12:,.1f}"
        " TB: text read, "
        f"{4 * corpus.tokens / 1e12:,.1f} TB of token files (4 bytes per token) written and read, "
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
    """Predict the build of all rows from builds of an eighth and a quarter, then run it."""
    with tempfile.TemporaryDirectory() as folder:
        rows = source.read_bytes().splitlines(keepends=True)
        reports = [_built(Path(folder), rows[:: 8 // part], tokenizer, num_proc) for part in (1, 2)]
        speed = _speed([report for report, _ in reports])
        lengths, _ = measured(Path(folder) / "out")
        corpus = lengths.scaled(round(lengths.documents * len(rows) / len(rows[::4])))
        job = Job(corpus, 4096, source.stat().st_size / corpus.tokens, 64_000_000, 4_000_000_000)
        packs = job.packs()
        report, seconds = _built(Path(folder), rows, tokenizer, num_proc)
        start = float(np.mean([spent - build["seconds"]["total"] for build, spent in reports]))
        predicted = {
            "seconds": speed.start
            + start
            + corpus.tokens * (speed.tokenize + speed.write) / num_proc,
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
    """Report and wall seconds of a build of these rows: the median of three."""
    (folder / "in.jsonl").write_bytes(b"".join(rows))
    runs = sorted(_runs(folder, tokenizer, num_proc), key=lambda run: run[1])
    return runs[1]


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
