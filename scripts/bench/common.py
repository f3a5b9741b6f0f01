"""Options, measurements and tables that several benchmarks share."""

import gzip
import importlib.metadata
import itertools
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
MB, GB = 1_000_000, 1_000_000_000
Command = Callable[..., Any]
Used = dict[str, float]


@dataclass(frozen=True)
class Tree:
    """A checkout of packprep: this one, or the one of --first."""

    name: str
    root: Path = ROOT

    def run(self, *arguments: str) -> tuple[Used, str]:
        """`measure` Python with arguments, in this checkout and with it on the path."""
        return measure([sys.executable, *arguments], self.root, PYTHONPATH=str(self.root))

    def packprep(self, *arguments: str) -> Used:
        """Measure a command."""
        return self.run("-m", "packprep", *arguments)[0]


def trees(first: Path | None) -> list[Tree]:
    """The trees to measure in turns, the older one first."""
    return [*([Tree("first", first.resolve())] if first else []), Tree("packprep")]


def first_option(command: Command) -> Command:
    """Add --first."""
    kind: Any = click.Path(exists=True, file_okay=False, path_type=Path)
    words = "An older checkout of packprep, to compare with in turns."
    return click.option("--first", type=kind, help=words)(command)


def text_options(command: Command) -> Command:
    """Add --text and --tokenizer, which are data of `packprep sample` by default."""
    kind: Any = click.Path(exists=True, path_type=Path)
    command = click.option("--tokenizer", type=kind, help="Its folder.")(command)
    words = "JSON lines, plain or .gz; may be repeated."
    return click.option("--text", "texts", multiple=True, type=kind, help=words)(command)


def corpus_of(
    texts: Sequence[Path], tokenizer: Path | None, folder: Path, sample: str = "code.jsonl"
) -> tuple[list[str], Path]:
    """Lines of JSON in a seeded order, and the tokenizer; those of the sample if none is given."""
    if not texts or tokenizer is None:
        Tree("packprep").packprep("sample", str(folder / "sample"))
    found = [line for path in texts or [folder / "sample" / sample] for line in lines(path)]
    random.Random(0).shuffle(found)
    return found, (tokenizer or folder / "sample" / "tokenizer").resolve()


def lines(path: Path) -> Iterator[str]:
    """Lines of a file of JSON lines that have text or messages, each with its line end."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for line in file:
            if '"text"' in line or '"messages"' in line:
                yield line if line.endswith("\n") else line + "\n"


def again(corpus: Sequence[str], size: int) -> Iterator[str]:
    """Lines of about `size` bytes: all of a corpus, in another order each time."""
    order, draw = list(corpus), random.Random(0)
    while True:
        draw.shuffle(order)
        for line in order:
            size -= len(line.encode())
            if size < 0:
                return
            yield line


def in_turns(programs: Mapping[str, Callable[[], Used]], runs: int) -> dict[str, Used]:
    """Medians of what programs measure: the speed of a shared machine changes within minutes."""
    taken: dict[str, list[Used]] = {name: [] for name in programs}
    for _ in range(runs):
        for name, program in programs.items():
            taken[name].append(program())
    return {
        name: {key: statistics.median(each[key] for each in used) for key in used[0]}
        for name, used in taken.items()
    }


def measure(
    command: Sequence[str], folder: Path | None = None, **variables: str
) -> tuple[Used, str]:
    """Wall and CPU seconds of a program with its children, its largest process, and its output."""
    start = time.perf_counter()
    options: Any = {"cwd": folder, "env": os.environ | variables}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise click.ClickException(f"{' '.join(command[1:])} failed with status {status}")
    used = {"wall": time.perf_counter() - start, "cpu": usage.ru_utime + usage.ru_stime}
    return used | {"peak": usage.ru_maxrss * 1024.0}, printed


def median_seconds(
    run: Callable[[], object], repeats: int, clock: Callable[[], float] = time.process_time
) -> float:
    """Median seconds of a call on this process's clock, after a warm-up."""
    run()
    times = []
    for _ in range(repeats):
        start = clock()
        run()
        times.append(clock() - start)
    return statistics.median(times)


def versions(*packages: str) -> str | None:
    """Versions of packages, as "gigatoken 0.10.0"; None if one is not installed."""
    try:
        return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    except importlib.metadata.PackageNotFoundError:
        return None


def show(columns: Sequence[str], rows: Iterable[Sequence[str]], markdown: bool) -> None:
    """Print rows of text under their columns; Markdown row by row, as each is measured."""
    if markdown:
        for row in itertools.chain((columns, ["---"] * len(columns)), rows):
            click.echo(f"| {' | '.join(row)} |")
        return
    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    Console(width=150).print(table)
