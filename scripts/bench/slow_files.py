"""Speed of the loader on a network file system: each read takes some milliseconds longer.

\b
python scripts/bench/slow_files.py [--tokens 128M] [--delay 5] [--step 0] [--repeats 5]

Writes shards as loader.py does, but smaller, so that an epoch has several windows. Reads an epoch
of them mapped, and with mmap=False, whose every pread sleeps first. Prints the median of M tokens
per second of wall time, from the first batch of an epoch and from its second window on. A batch has
32,768 tokens; without --step the loop does nothing with it, and needs all of a core.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import tables
from loader import size_of, write_shards

from packprep.loaders import PackedLoader, PackedShards
from packprep.schemas.storage import steady

SHARD_TOKENS = 1 << 22
WINDOW = 4
LENGTH = 4096


class Delay:
    """`steady.pread_into` with a delay in seconds."""

    def __init__(self, read: Any) -> None:
        self.seconds, self._read = 0.0, read

    def __call__(self, *arguments: Any) -> Any:
        time.sleep(self.seconds)
        return self._read(*arguments)


def rates(path: Path, mmap: bool, step: float) -> tuple[float, float]:
    """M tokens per second of an epoch, and from its second window on."""
    size = None if mmap else 2 * WINDOW * max(file.stat().st_size for file in path.glob("*.arrow"))
    shards = PackedShards(path, mmap=mmap, cache_size=size)  # as small as it may be
    loader = PackedLoader(shards, 8, shuffle_window=WINDOW)
    tokens = first = 0
    start = time.perf_counter()
    started = 0.0
    for batch in loader:
        tokens += len(batch)
        if step:
            time.sleep(step)
        if not first and tokens >= WINDOW * SHARD_TOKENS:
            first, started = tokens, time.perf_counter()
    end = time.perf_counter()
    return tokens / (end - start) / 1e6, (tokens - first) / (end - started) / 1e6


@click.command(help=__doc__)
@click.option("--tokens", default="128M", show_default=True)
@click.option("--delay", default=5.0, show_default=True, help="Milliseconds of each read.")
@click.option("--step", default=0.0, show_default=True, help="Milliseconds of a training step.")
@click.option("--repeats", default=5, show_default=True)
@click.option("--markdown", is_flag=True, help="Print a Markdown table.")
def main(tokens: str, delay: float, step: float, repeats: int, markdown: bool) -> None:
    steady.pread_into = slow = Delay(steady.pread_into)  # type: ignore[assignment]
    ways = {
        "mapped": (True, 0.0),
        "mmap=False": (False, 0.0),
        f"mmap=False, {delay:g} ms a read": (False, delay / 1e3),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shards"
        write_shards(path, size_of(tokens), LENGTH, shard_tokens=SHARD_TOKENS)
        figures: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for turn in range(repeats + 1):
            for name, (mmap, slow.seconds) in ways.items():
                measured = rates(path, mmap, step / 1e3)
                if turn:  # the first warms the page cache
                    figures[name].append(measured)
    medians = {
        name: [statistics.median(each) for each in zip(*values, strict=True)]
        for name, values in figures.items()
    }
    base = medians["mapped"]
    rows = [
        (name, *(f"{rate:.0f} ({rate / of:.2f})" for rate, of in zip(values, base, strict=True)))
        for name, values in medians.items()
    ]
    tables.show(("M tokens per second (of mapped)", "epoch", "after a window"), rows, markdown)


if __name__ == "__main__":
    main()
