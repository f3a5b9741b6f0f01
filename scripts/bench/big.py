"""One big build: its speed and memory for each GB of text, and the speed of its verification.

\b
python scripts/bench/big.py [--gb 20] [--text FILE]... [--tokenizer DIR] [--markdown]

Writes N GB of JSON lines to a temporary folder, packed by gzip: the text repeated, with the word
"the" changed in every copy. Builds it with --columns '' and --max-memory, and reads the anonymous
memory of the build and its children (RssAnon in /proc) twice a second. Then verifies the output,
and lets sha256sum read the same files, in turns. Linux only. Removes everything.
"""

import gzip
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import click
import tables
from common import copies, lines, measure, measure_command, resident, text_options

GB = 1_000_000_000
CORES = os.cpu_count() or 1
_SAMPLE_EVERY = 0.5  # seconds


@dataclass
class Record:
    """A build over time, in seconds since its start.

    text: (second, bytes of text tokenized). memory: (second, anonymous bytes).
    """

    text: list[tuple[float, float]] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)
    wall: float = 0.0


@click.command(help=__doc__)
@click.option("--gb", default=20.0, show_default=True, help="GB of text.")
@click.option("--max-memory", default="4GB", show_default=True, help="Of the build.")
@text_options
@click.option(
    "--folder",
    type=click.Path(exists=True, path_type=Path),
    help="Where to put the temporary folder, some 2 GB for each GB of text.",
)
@click.option("--markdown", is_flag=True, help="Print Markdown tables.")
@click.option("--build", "worker", nargs=4, hidden=True)
def main(
    gb: float,
    max_memory: str,
    texts: Sequence[Path],
    tokenizer: Path | None,
    folder: Path | None,
    markdown: bool,
    worker: tuple[str, str, str, str] | None,
) -> None:
    if worker:
        build(*worker)
        return
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        place = Path(temporary)
        if tokenizer is None or not texts:
            measure(["-m", "packprep", "sample", str(place / "sample")])
        source = place / "source"
        write_text(source, texts or [place / "sample" / "code.jsonl"], int(gb * GB))
        record = watched_build(
            source, tokenizer or place / "sample" / "tokenizer", place / "out", max_memory
        )
        show_build(record, markdown)
        show_verify(place / "out", markdown)


def write_text(folder: Path, texts: Sequence[Path], size: int) -> None:
    """Files of a GB of JSON lines each; `size` bytes together, before gzip."""
    folder.mkdir()
    corpus = "".join(line for path in texts for line in lines(path)).encode()
    sizes = [min(GB, size - start) for start in range(0, size, GB)]
    copies_each = GB // len(corpus) + 1

    def write(number: int) -> None:
        with gzip.open(folder / f"part-{number:03}.jsonl.gz", "wb", compresslevel=1) as file:
            file.writelines(copies(corpus, number * copies_each, sizes[number]))

    with ThreadPoolExecutor(CORES) as pool:
        for number, _ in enumerate(pool.map(write, range(len(sizes)))):
            click.echo(f"{number + 1} GB of text written", err=True)


def build(source: str, tokenizer: str, output: str, max_memory: str) -> None:
    """Build in this process and print the progress: bytes of text and the second."""
    import packprep
    from packprep.support.progress import Silent

    class Printed(Silent):
        def advance(self, stage: str, done: float, total: float | None, unit: str) -> None:
            if stage == "tokenize":
                print(time.monotonic(), done * 1e6, flush=True)

    config = packprep.BuildConfig(
        sources=(source,),
        tokenizer=tokenizer,
        output=output,
        columns=(),
        max_memory=max_memory,  # type: ignore[arg-type]
    )
    packprep.build(config, progress=Printed())


def watched_build(source: Path, tokenizer: Path, output: Path, max_memory: str) -> Record:
    """Build in a process of its own and record its text and memory over time."""
    record, start = Record(), time.monotonic()
    options = [str(source), str(tokenizer), str(output), max_memory]
    process = subprocess.Popen(
        [sys.executable, __file__, "--build", *options], stdout=subprocess.PIPE, text=True
    )
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(_SAMPLE_EVERY):
            record.memory.append((time.monotonic() - start, resident(process.pid)))

    sampler = threading.Thread(target=sample)
    sampler.start()
    assert process.stdout is not None
    try:
        for line in process.stdout:
            second, done = map(float, line.split())
            record.text.append((second - start, done))
        if process.wait():
            raise click.ClickException(f"the build failed with status {process.returncode}")
    finally:
        process.kill()
        ended.set()
        sampler.join()
    record.wall = time.monotonic() - start
    return record


def show_build(record: Record, markdown: bool) -> None:
    """Print speed and memory of each GB of text."""
    if not record.text:
        raise click.ClickException("the build reported no text; choose a larger --gb")
    end, total = record.text[-1]
    amounts = [float(number * GB) for number in range(int(total / GB) + 1)]
    marks = [(_second_at(record, amount), amount) for amount in amounts]
    if total - marks[-1][1] > 0.2 * GB or len(marks) == 1:
        marks.append((end, total))
    rows, speeds, peaks = [], [], []
    for (start, before), (stop, after) in itertools.pairwise(marks):
        inside = [size for second, size in record.memory if start <= second < stop]
        speeds.append((after - before) / (stop - start) / 1e6)
        peaks.append(max(inside, default=0) / 1e6)
        rows.append(
            (
                f"{before / GB:.0f} to {after / GB:.4g}",
                f"{stop - start:.1f}",
                f"{speeds[-1]:.1f}",
                f"{peaks[-1]:,.0f}",
                f"{statistics.median(inside or [0]) / 1e6:,.0f}",
            )
        )
    last = [size for second, size in record.memory if second >= end]
    rest = record.wall - end
    rows.append(
        (
            "after the text",
            f"{rest:.1f}",
            "",
            f"{max(last, default=0) / 1e6:,.0f}",
            f"{statistics.median(last or [0]) / 1e6:,.0f}",
        )
    )
    click.echo(
        f"{total / GB:.2f} GB of text in {record.wall:.0f} s, start-up, packing and writing "
        f"included: {total / record.wall / 1e6:.1f} MB/s, {CORES} cores"
    )
    columns = ("GB of text", "wall s", "MB/s", "anonymous MB, most", "anonymous MB, median")
    tables.show(columns, rows, markdown)
    if len(speeds) > 2:
        click.echo(f"last GB: {speeds[-1] / speeds[1]:.3f} x the speed of the second")
        click.echo(f"most memory after the second GB: {max(peaks[2:]) / peaks[1]:.3f} x that of it")


def _second_at(record: Record, amount: float) -> float:
    """Second at which so much text was tokenized, between two reports of the build."""
    before = (0.0, 0.0)
    for second, done in record.text:
        if done >= amount > 0:
            share = (amount - before[1]) / (done - before[1])
            return before[0] + share * (second - before[0])
        before = (second, done)
    return before[0] if amount else 0.0


def show_verify(output: Path, markdown: bool, rounds: int = 3) -> None:
    """Print the speed of `packprep verify` beside sha256sum, both with a file per core."""
    files = sorted(str(path) for path in output.rglob("*") if path.is_file())
    size = sum(Path(path).stat().st_size for path in files)
    listed = output.parent / "files"
    listed.write_text("\0".join(files))
    commands = {
        "packprep verify": [sys.executable, "-m", "packprep", "verify", str(output), "-q"],
        "sha256sum": ["xargs", "-0", "-a", str(listed), "-n1", f"-P{CORES}", "sha256sum"],
    }
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            runs[name].append(measure_command(command)[0])
    rows = []
    for name, measured in runs.items():
        wall, cpu = (statistics.median(run[key] for run in measured) for key in ("wall", "cpu"))
        rows.append(
            (
                name,
                f"{wall:.2f}",
                f"{size / wall / 1e6:,.0f}",
                f"{cpu:.2f}",
                f"{size / cpu / 1e6:,.0f}",
            )
        )
    click.echo(f"{size / GB:.2f} GB of output, {len(files)} files, {CORES} at a time")
    columns = ("", "wall s", "MB/s", "CPU s", "MB per CPU-s")
    tables.show(columns, rows, markdown)
    for key, words in (("wall", "speed"), ("cpu", "speed per CPU second")):
        ratio = statistics.median(
            theirs[key] / ours[key]
            for ours, theirs in zip(runs["packprep verify"], runs["sha256sum"], strict=True)
        )
        click.echo(f"packprep verify: {ratio:.2f} x the {words} of sha256sum")


if __name__ == "__main__":
    main()
