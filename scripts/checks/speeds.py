"""Measure times and speeds that packprep promises; exit with code 1 if one misses its limit.

\b
python scripts/checks/speeds.py

Times of calls and processes are the best of several runs. Tests check results and never time them.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from packprep.config.build_config import BuildConfig
from packprep.config.yaml_file import from_yaml
from packprep.schemas import check_batch
from packprep.support.errors import ConfigError, InputError

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.helpers.corpus import save_tokenizer, texts, write_jsonl  # noqa: E402
from tests.helpers.tiny_shards import PLAIN, short_segments  # noqa: E402


class Promise(NamedTuple):
    """A figure in `unit`, at most or at least `limit`."""

    name: str
    measured: float
    limit: float
    unit: str
    at_most: bool = True

    @property
    def kept(self) -> bool:
        """True if the figure is within its limit."""
        return self.measured <= self.limit if self.at_most else self.measured >= self.limit

    def __str__(self) -> str:
        bound = "at most" if self.at_most else "at least"
        verdict = "" if self.kept else "  MISSED"
        return f"{self.name:45} {self.measured:8.2f}  {bound} {self.limit:g} {self.unit}{verdict}"


def cpu_seconds(call: Callable[[], Any], times: int = 3) -> float:
    """CPU seconds of a call: the best of several."""
    taken = []
    for _ in range(times):
        begin = time.process_time()
        call()
        taken.append(time.process_time() - begin)
    return min(taken)


def validation() -> Promise:
    """The checks of a record batch."""
    batch = short_segments()
    seconds = cpu_seconds(
        lambda: check_batch(batch, PLAIN, max_length=4096, vocab_size=1000, where="speeds"), 5
    )
    return Promise("shards are validated", batch.nbytes / seconds / 1e6, 500, "MB/s", at_most=False)


def help_page() -> Promise:
    """The start of the command line."""
    command = [sys.executable, "-m", "packprep", "build", "--help"]
    taken = []
    for _ in range(3):
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise click.ClickException(f"{' '.join(command)} ended with status {status}")
        taken.append(usage.ru_utime + usage.ru_stime)
    return Promise("packprep build --help", min(taken), 0.3, "CPU seconds")


def stopped(folder: Path, number: signal.Signals, code: int) -> Promise:
    """The end of a build after a signal, while a thread works on a unit."""
    source = write_jsonl(folder / "big.jsonl", texts(200) * 3000)
    tokenizer, output = save_tokenizer(folder / "tokenizer"), folder / number.name
    command = [sys.executable, "-m", "packprep", "build", str(source), "-q"]
    options = [
        "-o",
        str(output),
        "--tokenizer",
        str(tokenizer),
        "--engine",
        "hf",
        "--num-proc",
        "1",
    ]
    process = subprocess.Popen([*command, *options], cwd=ROOT, stderr=subprocess.PIPE)
    while not (folder / f"{number.name}.incomplete" / "tokens").exists():
        if process.poll() is not None:
            raise click.ClickException("the build ended before it was stopped")
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(number)
    begin = time.monotonic()
    process.communicate()
    if process.returncode != code:
        raise click.ClickException(f"the build ended with {process.returncode}, expected {code}")
    return Promise(f"a build ends after {number.name}", time.monotonic() - begin, 2, "seconds")


def odd_settings(folder: Path) -> Promise:
    """A number in base 60 with 400 thousand digits, which YAML would read for hours."""
    path = folder / "build.yaml"
    path.write_text("seed: 1" + ":1" * 400_000)

    def read() -> None:
        try:
            BuildConfig(**from_yaml(path))
        except ConfigError:
            return
        raise click.ClickException("a number of 800,001 characters was accepted")

    return Promise("hostile YAML is refused", cpu_seconds(read), 20, "CPU seconds")


def quoted() -> Promise:
    """An error that quotes three megabytes: in quadratic time it would take days."""
    parts = ("r", "://", "aa://", "?key", "aa://a:", "Basic ")
    sentences = [f"a.jsonl row 7: {part * (3_000_000 // len(part))}" for part in parts]
    slowest = max(cpu_seconds(partial(InputError, text), 1) for text in sentences)
    return Promise("a sentence of 3 MB is redacted", slowest, 30, "CPU seconds")


@click.command(help=__doc__)
def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        promises = [
            validation(),
            help_page(),
            stopped(folder, signal.SIGINT, 130),
            stopped(folder, signal.SIGTERM, 3),
            odd_settings(folder),
            quoted(),
        ]
    for promise in promises:
        click.echo(promise)
    sys.exit(0 if all(promise.kept for promise in promises) else 1)


if __name__ == "__main__":
    main()
