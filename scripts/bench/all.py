"""Runs the benchmarks, and writes docs/benchmarks.md and the speeds in README.md.

\b
python scripts/bench/all.py                    prints the tables
python scripts/bench/all.py --write            writes the page and the README
python scripts/bench/all.py --quick            so little data that figures mean nothing

Text and tokenizers: --text, --chats, --tokenizer and --chat-tokenizer; those of `packprep sample`
by default. --only NAME runs some; with --write the other sections of the page stay as they are, and
so do sections of other titles, which people write. Takes about an hour on two cores.
"""

import datetime
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from common import ROOT, versions

BENCH = Path(__file__).parent
PACKAGES = "datasets fastokens gigatoken numba numpy pyarrow tokenizers torch transformers trl"
# First cells of rows of README.md, and of the table of `pipeline.py peers` that has their speed.
SPEEDS = ("gigatoken to flat ids", "packprep", "TRL `pack_dataset`", "`datasets.map` with lists")


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A section of the page: its command, and how to read its table.

    reads: text or chats, if it takes --text and --tokenizer. quick: replaces the arguments.
    """

    title: str
    arguments: str
    quick: str
    reads: str = ""
    prose: str


BENCHMARKS = {
    "build": Benchmark(
        title="The whole build",
        arguments="pipeline.py text peers memory --runs 5",
        quick="pipeline.py text --megabytes 1 --runs 1",
        reads="text",
        prose="""\
Text in JSON lines to a finished output, medians in turns. CPU without the start is that of the
process less that of 2,000 short documents with the same engines, the fast one and the reference of
its sample. Speeds beside other tools are by the clock:

- gigatoken to a flat file of ids, as Megatron-LM's `preprocess_data_fast.py`: no packing, no
  boundaries, no account. The whole process, as of packprep.
- TRL: `datasets.map` with a transformers tokenizer, `bfd_split`, `save_to_disk`. Lists:
  `datasets.map` that returns packed Python lists, `save_to_disk`. Their work alone, without
  imports, on a tenth of the text; so of tokenizers alone.""",
    ),
    "chats": Benchmark(
        title="Chats",
        arguments="pipeline.py chats --runs 1",
        quick="pipeline.py chats --chats 40 --runs 1",
        reads="chats",
        prose="""\
CPU without the start, against TRL's own preparation: ids, masks of answers, packs of its `bfd`. A
twentieth of the chats is prepared by TRL, and its time is multiplied.""",
    ),
    "strategies": Benchmark(
        title="Strategies",
        arguments="packing.py -n 1M -d a -d b4 -d c",
        quick="packing.py -n 10k -d a -s best_fit",
        prose="""\
From lengths in memory to the finished plan: CPU of one core, median of five, a million documents.
`a`: lengths like instructions, packs of 2,048; `b4`: like web text, 4,096; `c`: a long tail,
32,768. *Gap* is packs over the best lower bound.""",
    ),
    "claims": Benchmark(
        title="Claims about packing",
        arguments="claims.py",
        quick="claims.py -n 2000 --loop 500 --repeats 2",
        prose="""\
Figures that guides to packing give, measured here. *Said* is the guide's figure.
[Claims about packing, checked](documents.md) says what each means for packprep.""",
    ),
    "loader": Benchmark(
        title="Loader and exports",
        arguments="loader.py",
        quick="loader.py --megabytes 3 --runs 1",
        reads="text",
        prose="""\
From shards in the page cache to batches, a thread that prefetches included. Short documents have
400 characters. Plans read their tokens from the store. Exports are written from the shards.""",
    ),
    "step": Benchmark(
        title="A training step on a CPU",
        arguments="attention.py --width 512 --heads 8 --kv-heads 2 --repeats 3",
        quick="attention.py --width 64 --heads 2 --kv-heads 1 --repeats 1",
        prose="""\
Forward and backward over documents packed into one sequence, against the same documents padded to
the longest.""",
    ),
}


def body(benchmark: Benchmark, shown: Sequence[str], printed: str) -> str:
    """A section of the page below its title."""
    command = f"python scripts/bench/{' '.join(shown)}"
    block = f'```console not-run="takes minutes"\n$ {command}\n```'
    return f"{benchmark.prose}\n\n{block}\n\n{spaced(printed)}\n\n{stamp()}"


def spaced(printed: str) -> str:
    """Lines of text as a list, and tables, apart from each other as Markdown needs them."""
    lines = [line.rstrip() for line in printed.splitlines() if line.strip()]
    made, was_row = list[str](), False
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        is_row, is_head = line.startswith("|"), after.startswith("| ---")
        made += [""] * ((is_row != was_row or is_head) and bool(made))
        made.append(line if is_row else f"- {line.strip()}")
        was_row = is_row
    return "\n".join(made)


def stamp() -> str:
    """Date, commit, machine and versions, as one paragraph."""
    describe = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    info = Path("/proc/cpuinfo")
    models = re.findall(r"^model name\s*: (.*)$", info.read_text() if info.exists() else "", re.M)
    model = models[0] if models else platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    machine = f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}"
    found = [f"Python {platform.python_version()}", *filter(None, map(versions, PACKAGES.split()))]
    return f"*{datetime.date.today()}, commit {commit}; {machine}; {', '.join(found)}.*"


def with_sections(page: str, new: dict[str, str]) -> str:
    """The page with these sections; a title that it lacks is put before "On a GPU"."""
    head, *parts = re.split(r"^## (.*)$", page, flags=re.MULTILINE)
    old = dict(zip(parts[::2], map(str.strip, parts[1::2]), strict=True))
    ours = [each.title for each in BENCHMARKS.values()]
    titles = [title for title in ours if title in {**old, **new}]
    titles += [title for title in old if title not in ours]
    bodies = [f"## {title}\n\n{ {**old, **new}[title] }\n" for title in titles]
    return f"{head.strip()}\n\n" + "\n".join(bodies)


def with_speeds(readme: str, printed: str) -> str:
    """README.md with the speeds of its table, beside that of gigatoken."""
    rows = re.findall(r"^\| (.+?) \| [\d.]+ \| ([\d.]+) \|$", printed, re.MULTILINE)
    for first in SPEEDS:
        speeds = [speed for name, speed in rows if name.startswith(first)]
        pattern = rf"^(\| {re.escape(first)}[^|]*\| )[\d.]+ \|"
        if speeds:
            made = f"{float(speeds[-1]):.2f}".rstrip("0").rstrip(".") or "0"
            readme = re.sub(pattern, rf"\g<1>{made} |", readme, flags=re.MULTILINE)
    return readme


def run(arguments: Sequence[str]) -> str:
    """What a benchmark prints."""
    command = [sys.executable, str(BENCH / arguments[0]), *arguments[1:]]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode:
        raise click.ClickException(f"{' '.join(arguments)} failed with status {ran.returncode}")
    return ran.stdout


_PATH: Any = click.Path(exists=True, path_type=Path)


@click.command(help=__doc__)
@click.option("--text", "texts", multiple=True, type=_PATH, help="JSON lines; may be repeated.")
@click.option("--tokenizer", type=_PATH, help="Its folder.")
@click.option("--chats", type=_PATH, help="JSON lines with `messages`.")
@click.option("--chat-tokenizer", type=_PATH, help="Its folder, with a chat template.")
@click.option("--only", "names", multiple=True, type=click.Choice([*BENCHMARKS]))
@click.option("--quick", is_flag=True, help="Tiny data: shows that all run.")
@click.option("--write", is_flag=True, help="Write the page and the README.")
def main(
    texts: Sequence[Path],
    tokenizer: Path | None,
    chats: Path | None,
    chat_tokenizer: Path | None,
    names: Sequence[str],
    quick: bool,
    write: bool,
) -> None:
    page, readme = ROOT / "docs" / "benchmarks.md", ROOT / "README.md"
    files = {"text": (texts, tokenizer), "chats": ([chats] if chats else [], chat_tokenizer)}
    for name in names or BENCHMARKS:
        benchmark = BENCHMARKS[name]
        arguments = (benchmark.quick if quick else benchmark.arguments).split()
        shown = [*arguments]
        sources, folder = files.get(benchmark.reads, ((), None))
        for option, paths in (("--text", sources), ("--tokenizer", [folder] if folder else [])):
            for path in paths:
                arguments += [option, str(path)]
                shown += [option, path.name]
        click.echo(f"\n{' '.join(shown)}", err=True)
        printed = run([*arguments, *(["--markdown"] if write else [])])
        click.echo(printed)
        if write:  # after each: a run that is stopped keeps what it has
            section = {benchmark.title: body(benchmark, shown, printed)}
            page.write_text(with_sections(page.read_text(), section))
            if name == "build":
                readme.write_text(with_speeds(readme.read_text(), printed))


if __name__ == "__main__":
    main()
