"""Options and measurements that several benchmarks share."""

import gzip
import itertools
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

Command = Callable[..., Any]


def text_options(command: Command) -> Command:
    """Add --text and --tokenizer, of which the standard library is the default."""
    command = click.option(
        "--tokenizer",
        type=click.Path(exists=True, path_type=Path),
        help="Directory; default: a BPE trained on the standard library.",
    )(command)
    return click.option(
        "--text",
        "texts",
        multiple=True,
        type=click.Path(exists=True, path_type=Path),
        help="JSON lines with text, plain or .gz; default: the standard library.",
    )(command)


def lines(path: Path) -> Iterator[str]:
    """Lines of a file of JSON lines that have text or messages, each with its line end."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for line in file:
            if '"text"' in line or '"messages"' in line:
                yield line if line.endswith("\n") else line + "\n"


def copies(corpus: bytes, first: int, size: int) -> Iterator[bytes]:
    """JSON lines of `size` bytes together: the corpus again and again.

    The word "the" is changed in every copy, so that no cache knows the words. first: number of the
    first copy.
    """
    if b" the " not in corpus:
        raise click.ClickException('the text never has the word "the", which the copies change')
    for number in itertools.count(first):
        changed = corpus.replace(b" the ", b" the%d " % number)
        if len(changed) > size:
            yield changed[: changed.rfind(b"\n", 0, size) + 1]
            return
        yield changed
        size -= len(changed)


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


def measure(arguments: Sequence[str]) -> tuple[dict[str, float], str]:
    """Wall and CPU seconds and peak bytes of a Python process with its children.

    Also its output.
    """
    return measure_command([sys.executable, *arguments])


def measure_command(command: Sequence[str]) -> tuple[dict[str, float], str]:
    """The same of any program."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise click.ClickException(f"{' '.join(command[1:])} failed with status {status}")
    return {
        "wall": time.perf_counter() - start,
        "cpu": usage.ru_utime + usage.ru_stime,
        "peak": usage.ru_maxrss * 1024.0,
    }, printed


def resident(root: int, kind: str = "RssAnon") -> int:
    """Resident bytes of a process and all below it.

    kind: RssAnon for those of no file, VmRSS for all, in which processes count shared ones again.
    """
    parents: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
        except OSError:  # it has ended
            continue
        process = int(status.parent.name)
        for name, values in (("PPid", parents), (kind, sizes)):
            if match := re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE):
                values[process] = int(match[1])
    total, found = 0, {root}
    for process in sorted(parents):  # nearly in order of their start
        if process == root or parents[process] in found:
            found.add(process)
            total += sizes.get(process, 0) * 1024
    return total
