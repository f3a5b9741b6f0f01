"""CPU seconds that compiled kernels add to the first commands of an installation.

\b
python scripts/checks/first_build.py             the figures, and each kernel with its seconds
python scripts/checks/first_build.py --runs 3    medians of three

Every command runs twice on a small corpus, first with an empty cache of kernels and then with a
full one. `build` starts with an empty cache; `report`, `plan --strategy all` and the loader follow
it, and compile what is new. Exit code 1 if a limit is missed or a kernel is compiled twice.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import click

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.helpers.corpus import save_tokenizer, texts, write_jsonl  # noqa: E402

BUILD_LIMIT, REST_LIMIT = 4.0, 6.0  # CPU seconds

# Runs a command, and prints each function that numba compiles for packprep's kernels to a file.
_TRACED = """
import atexit, json, os, sys, time
from numba.core import event
stack, rows = [], []
class Listener(event.Listener):
    def on_start(self, each):
        stack.append(time.thread_time())
    def on_end(self, each):
        seconds = time.thread_time() - stack.pop()
        function = each.data["dispatcher"].py_func
        if not stack and function.__module__.startswith("packprep"):
            name = f"{function.__module__}.{function.__qualname__}"
            rows.append([name, str(each.data["args"]), seconds])
event.register("numba:compile", Listener())
atexit.register(lambda: open(os.environ["TRACE"], "w").write(json.dumps(rows)))
code = os.environ["CODE"]
exec(code)
"""
_MAIN = "from packprep.__main__ import start; start()"
_LOAD = """
from packprep.loaders import PackedLoader, PackedShards
for batch in PackedLoader(PackedShards(sys.argv[1]), 1): pass
"""


class Run(NamedTuple):
    """CPU seconds of a command, and the kernels it compiled: name, types, seconds."""

    seconds: float
    compiled: list[tuple[str, str, float]]


def measured(folder: Path, cache: Path, code: str, *arguments: str) -> Run:
    """Run Python code with arguments in a new process."""
    trace = folder / "trace.json"
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache), "TRACE": str(trace), "CODE": code}
    process = subprocess.Popen(
        [sys.executable, "-c", _TRACED, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    errors = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise click.ClickException(f"{' '.join(arguments)} ended with status {status}: {errors}")
    rows: list[Any] = json.loads(trace.read_text())
    return Run(usage.ru_utime + usage.ru_stime, [(name, args, s) for name, args, s in rows])


def commands(folder: Path) -> dict[str, tuple[str, list[str]]]:
    """Code and arguments of each command, by its name."""
    source = write_jsonl(folder / "tiny.jsonl", texts(200))
    tokenizer, out = str(save_tokenizer(folder / "tokenizer")), str(folder / "out")
    build = ["build", str(source), "-o", out, "--tokenizer", tokenizer, "-q"]
    plan = ["plan", out, "--strategy", "all", "-q"]
    return {
        "build": (_MAIN, build),
        "report": (_MAIN, ["report", out, "-o", str(folder / "report")]),
        "plan --strategy all": (_MAIN, plan),
        "loader": (_LOAD, [out]),
    }


@click.command(help=__doc__)
@click.option("--runs", default=1, show_default=True, help="Runs of everything, with new caches.")
def main(runs: int) -> None:
    more: dict[str, list[float]] = {}
    kernels: list[tuple[str, str, float]] = []
    for number in range(runs):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            cache = folder / "cache"
            kernels = []
            for title, (code, arguments) in commands(folder).items():
                first = measured(folder, cache, code, *arguments)
                again = [each.replace("/out", "/again") for each in arguments]
                warm = measured(folder, cache, code, *(again if title == "build" else arguments))
                kernels += first.compiled + warm.compiled
                more.setdefault(title, []).append(first.seconds - warm.seconds)
                click.echo(
                    f"run {number + 1}: {title:20} {first.seconds:6.2f} s, "
                    f"{warm.seconds:6.2f} s again, {len(first.compiled)} kernels compiled"
                )
    for kernel, types, seconds in sorted(kernels, key=lambda row: -row[2]):
        click.echo(f"{seconds:6.2f} s  {kernel}  {types.count('Array')} arrays")
    medians = {title: statistics.median(values) for title, values in more.items()}
    build = medians.pop("build")
    rest = sum(medians.values())
    twice = [key for key, count in Counter(row[:2] for row in kernels).items() if count > 1]
    click.echo(f"first build: {build:.2f} CPU seconds more than the next, at most {BUILD_LIMIT:g}")
    click.echo(f"report, plan and loader: {rest:.2f} more, at most {REST_LIMIT:g}")
    click.echo(f"{len(kernels)} kernels compiled, {len(twice)} of them twice")
    sys.exit(1 if twice or build > BUILD_LIMIT or rest > REST_LIMIT else 0)


if __name__ == "__main__":
    main()
