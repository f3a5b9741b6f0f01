"""Runs every benchmark and writes the benchmark page.

    python scripts/bench/all.py [--text FILE]... [--tokenizer DIR] [--only NAME]... [--markdown]

`big` takes an hour and some 50 GB of disk, and runs only with --only big.

With --markdown it writes the page docs/reference/benchmarks.md, with the machine, the versions,
the commit and every command, and the speeds in README.md. Without it the tables go to the
terminal. --quick uses so little data that the figures mean nothing: it shows that every benchmark
runs.
"""

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from common import text_options

BENCH = Path(__file__).parent
ROOT = BENCH.parents[1]
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "reference" / "benchmarks.md"
PACKAGES = (
    "datasets",
    "fastokens",
    "gigatoken",
    "numba",
    "numpy",
    "pyarrow",
    "tokenizers",
    "torch",
    "transformers",
    "trl",
)


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A section of the page: what is measured, by which command, and how to read its table."""

    name: str
    title: str
    arguments: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()
    reads_text: bool = False
    only_when_asked: bool = False
    prose: str


BENCHMARKS = (
    Benchmark(
        name="pipeline",
        title="The whole build",
        arguments=("--peers", "--runs", "2"),
        quick=("--runs", "1"),
        reads_text=True,
        prose="""\
Text in JSON lines to a finished output, in a process of its own. The start-up, a build of the
beginnings of 20 documents, is subtracted from wall and CPU seconds alike. The other rows are
what the same text costs elsewhere, without imports and loading of the tokenizer:

- `raw-hf`, `raw-fastokens`: the tokenizer alone. Texts are in memory, ids are thrown away.
- `gigatoken-bin`: gigatoken's whole-file call, then a flat file of ids, as Megatron-LM's
  `preprocess_data_fast.py` does. No packing, no positions, no boundaries in packs, no account.
- `datatrove-bin`, `dolma-bin`: datatrove's `DocumentTokenizer` and dolma's
  `tokenize_in_parallel`, to flat files of ids, a process for each core. No packing.
- `trl`: `datasets.map` with a transformers tokenizer, TRL's `bfd_split`, `save_to_disk`.
- `lists`: `datasets.map` that returns packed Python lists, `save_to_disk`.

The number in brackets is the number of runs; a row is their median. What is quick gets ten copies
of the text, each with the word "the" changed. `re-plan` makes another strategy and `max_length`
from kept tokens. All take turns, because the speed of a shared
machine changes within minutes; a ratio is the median over rounds.""",
    ),
    Benchmark(
        name="big",
        title="A big build",
        arguments=("--gb", "20"),
        quick=("--gb", "0.02"),
        reads_text=True,
        only_when_asked=True,
        prose="""\
JSON lines of N GB, packed by gzip: the text repeated, with the word "the" changed in every copy.
One build with `--columns \'\'` and `--max-memory 4GB`; the anonymous memory of the build and its
children is read twice a second. Then `packprep verify` and `sha256sum` read the same files in
turns, a file on each core.""",
    ),
    Benchmark(
        name="engines",
        title="Tokenizer engines",
        arguments=("--max-mb", "60", "--reference-mb", "6", "--repeat", "3"),
        quick=("--max-mb", "0.5", "--reference-mb", "0.2", "--repeat", "1"),
        prose="""\
Engines on the same text, a thread for each core, a fresh engine for each run. *Differing*
counts documents whose ids are not those of `hf`; *gate* is what packprep's parity gate decides,
and its seconds. An engine that the gate refuses is never used.""",
    ),
    Benchmark(
        name="guarded",
        title="Builds with each engine",
        quick=("--mb", "0.5", "--runs", "1"),
        prose="""\
Whole builds of the same text in new processes: imports, loading of the tokenizer and the
comparison of engines count too. The tokenizer is a small one with the pre-tokenizer of gpt-oss, on
which both fast engines differ from `hf`. *Guard* is the number of characters on which they do: a
document that holds one goes to `hf`. All outputs have the same bytes. The text is the standard
library and its documentation again and again, with the word "the" changed in every copy. The number
in brackets is the number of builds; a row is their median.""",
    ),
    Benchmark(
        name="chat",
        title="Conversations",
        quick=("--rows", "50", "--peer-rows", "5", "--repeat", "1"),
        prose="""\
Multi-turn chats as JSON text to ids and loss masks, in one process with one caller. `rendering`
and `encoding` are the parts of `packprep`, once the shapes of the rows are known.
`engine alone` encodes the rendered texts and makes no mask. `transformers` is
`apply_chat_template(tokenize=True, return_assistant_tokens_mask=True)` chat by chat, with TRL's
template that marks the assistant's turns, as TRL's `SFTTrainer` does it.""",
    ),
    Benchmark(
        name="packing",
        title="Strategies",
        arguments=("-n", "1M", "-d", "a", "-d", "b4", "-d", "c"),
        quick=("-n", "10k", "-d", "a", "--no-startup"),
        prose="""\
From lengths in memory to the finished plan; CPU seconds of one core, median of five. Lengths:
`a` like instructions, packs of 2,048; `b4` like web text, 4,096; `c` with a long tail, 32,768.
*Gap* is packs over the best lower bound. *Bias* and *straggler* are explained in the
[glossary](glossary.md).""",
    ),
    Benchmark(
        name="packers",
        title="Other packers",
        arguments=(
            "-n",
            "100k",
            "-d",
            "a",
            "-d",
            "b4",
            "-s",
            "best_fit",
            "-s",
            "optimal",
            "--peers",
            "--no-startup",
        ),
        quick=("-n", "10k", "-d", "a", "-s", "best_fit", "--no-startup"),
        prose="""\
The same lengths through the packers that the package index has, each at its newest version.
*Lost* is the share of tokens that a packer crops away. nanochat's loader fills every pack by
cropping; its row is our twin of the
[algorithm](https://github.com/karpathy/nanochat/blob/0b949d9c/nanochat/dataloader.py). It gets the
documents of `b4` before they are cut at the pack's length, as nanochat does.""",
    ),
    Benchmark(
        name="claims",
        title="Claims about packing",
        quick=("-n", "2000", "--loop", "500", "--repeats", "2"),
        prose="""\
Figures that guides to packing give, measured here. *Said* is the guide's figure. Forgather's greedy
packing is a loop written again from its description: with truncation it finishes a block after each
document. What each claim means for packprep is on the page
[Claims about packing, checked](documents.md).""",
    ),
    Benchmark(
        name="repack",
        title="Packings for several epochs",
        quick=("--epochs", "2", "--max-length", "1024", "--strategy", "best_fit"),
        reads_text=True,
        prose="""\
`--epochs 4` with each strategy: *in common* is the share of the pairs of neighbours of one
epoch that another one has too, at most. Neighbours are two documents that follow each other in a
pack. *Other seed* is the same of two builds without `--epochs`: equal lengths are shuffled, and
long documents stay beside the same ones. *Once* is the utilization of a build without
`--epochs`.""",
    ),
    Benchmark(
        name="trees",
        title="Shared prefixes",
        quick=("--tokens", "1M", "--repeats", "1", "--runs", "1"),
        prose="""\
`--share-prefixes`. First rows of 200 tokens in memory, in groups of eight: million tokens of rows
per CPU second of one thread; *plan* is everything from documents in a random order to packs. Then
whole builds of conversations with `--turns each`, without and with trees. Last eight answers to
each prompt with `--group-prefix`: the words of one answer in eight random orders, so that they
share little more than the prompt.""",
    ),
    Benchmark(
        name="loader",
        title="Loader",
        arguments=("--tokens", "64M"),
        quick=("--tokens", "1M", "--repeats", "1"),
        prose="""\
From shards to batches: million tokens per CPU second of one process, a prefetch thread
included, warm, median of five. The last column says how much faster the first row is.""",
    ),
    Benchmark(
        name="metrics",
        title="Metrics while training",
        quick=("--tokens", "512", "--repeats", "1"),
        prose="""\
`PackMetrics` in a training loop: CPU microseconds of one thread for a batch, a read after 200
batches included, median of five, and their share of a step of 20 ms. The batches are in the memory
of the CPU. On a GPU some ten small kernels count a batch, which is not measured here.""",
    ),
    Benchmark(
        name="loss_log",
        title="Log of losses",
        quick=("--packs", "2", "--repeats", "1"),
        prose="""\
`LossLog.add` in a training loop: CPU microseconds of a call, median of five runs of 500, and their
share of a step of 20 ms. Losses and batches are in the memory of the CPU.""",
    ),
    Benchmark(
        name="rl",
        title="Rollouts in memory",
        quick=("--samples", "32", "--million", "2000", "--repeats", "1"),
        prose="""\
`pack_sequences` against the loop that extends Python lists and makes a tensor of each; CPU
milliseconds of one thread, median of five, in turns. Arrays, tensors and lists are what the samples
are in. *Trees of eight*: samples of eight share a prompt, and are merged. Then short samples of 20
to 100 tokens in arrow columns, packed once in a process of its own: the memory is its peak above
the input, and holds the packs. Last the share of a training step: of a small Llama on the same
thread, and of a model of half a billion parameters by arithmetic.""",
    ),
    Benchmark(
        name="index",
        title="Index outputs",
        quick=("--tokens", "10M", "--repeats", "1"),
        prose="""\
`--materialize index`: a billion tokens planned over a token store that has a tenth of them, in a
process of its own, from `packprep.build` until a pack is read; CPU seconds of all threads, without
the import of libraries. Then the loader on an index of the store and on its shards, in turn.""",
    ),
    Benchmark(
        name="export",
        title="Exports",
        quick=("--tokens", "1M", "--runs", "1"),
        prose="""\
From shards to the files of other trainers: million tokens per CPU second of one process, reading,
hashing and writing included. The last column compares with a plain copy of the shards, which have
more bytes. Formats of text and of compressed Parquet cost what their libraries cost.""",
    ),
    Benchmark(
        name="attention",
        title="A training step",
        arguments=("--width", "512", "--heads", "8", "--kv-heads", "2", "--repeats", "5"),
        quick=("--width", "64", "--heads", "2", "--only", "mix of eight"),
        prose="""\
Forward and backward over documents packed into one sequence, against the same documents padded
to the longest.""",
    ),
)
SCRIPTS = {"packers": "packing"}


@click.command(help=__doc__)
@text_options
@click.option(
    "--only",
    "names",
    multiple=True,
    type=click.Choice([benchmark.name for benchmark in BENCHMARKS]),
    help="Run these; with --markdown the other sections stay as they are.",
)
@click.option("--quick", is_flag=True, help="Tiny data: shows that all run.")
@click.option("--markdown", is_flag=True, help=f"Write {PAGE.relative_to(ROOT)}.")
def main(
    texts: Sequence[Path],
    tokenizer: Path | None,
    names: Sequence[str],
    quick: bool,
    markdown: bool,
) -> None:
    stamped = stamp()  # before the page is written, which makes the tree dirty
    sections = _sections(PAGE.read_text()) if PAGE.exists() else {}
    for benchmark in BENCHMARKS:
        if benchmark.name not in names if names else benchmark.only_when_asked:
            continue
        arguments = list(benchmark.quick if quick else benchmark.arguments)
        shown = list(arguments)
        if benchmark.reads_text and tokenizer and texts:
            for path in texts:
                arguments += ["--text", str(path)]
                shown += ["--text", path.name]
            arguments += ["--tokenizer", str(tokenizer)]
            shown += ["--tokenizer", tokenizer.name]
        script = f"{SCRIPTS.get(benchmark.name, benchmark.name)}.py"
        click.echo(f"{script} {' '.join(shown)}", err=True)
        printed = _run([str(BENCH / script), *arguments, *(["--markdown"] if markdown else [])])
        if not markdown:
            click.echo(printed)
            continue
        command = " ".join(["python", f"scripts/bench/{script}", *shown])
        sections[benchmark.title] = (
            f"{benchmark.prose}\n\n{stamped}\n\n"
            f'```console not-run="takes minutes"\n$ {command}\n```\n\n'
            f"{_spaced(printed)}\n"
        )
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(page(sections))  # after each: a run that is stopped keeps what it has
        if benchmark.name == "pipeline" and not quick:
            README.write_text(with_speeds(README.read_text(), printed))


def page(sections: dict[str, str]) -> str:
    """The page from the body of each title, in the order of BENCHMARKS."""
    parts = [
        "# Benchmarks",
        "Every figure of the documentation is on this page, written by one command:",
        '```console not-run="takes half an hour"\n$ python scripts/bench/all.py --markdown\n```',
        "Speeds depend on the machine, and a shared machine changes within minutes: compare rows\n"
        "of one table, which were measured in turns, not rows of two.",
    ]
    for benchmark in BENCHMARKS:
        if benchmark.title in sections:
            parts += [f"## {benchmark.title}", sections[benchmark.title].strip()]
    return "\n\n".join(parts) + "\n"


def with_speeds(readme: str, printed: str) -> str:
    """README with the speed of each row of the printed table behind its <!-- speed ROW --> mark."""
    speeds = dict(re.findall(r"^\| (.*?) \(\d+\) \| ([\d.]+) \|", printed, re.MULTILINE))
    return re.sub(
        r"(<!-- speed (.*?) -->)[^|]*",
        lambda mark: f"{mark[1]}{speeds[mark[2]]} MB/s " if mark[2] in speeds else mark[0],
        readme,
    )


def _sections(text: str) -> dict[str, str]:
    """Bodies of an existing page by their titles."""
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)[1:]
    return {title: body.strip() for title, body in zip(parts[::2], parts[1::2], strict=True)}


def stamp() -> str:
    """Date, commit, machine and versions, as one paragraph."""
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    versions = ", ".join(
        f"{package} {version}" for package in PACKAGES if (version := _version(package))
    )
    return (
        f"*{datetime.date.today()}, commit {commit or 'unknown'}; {_machine()}; "
        f"Python {platform.python_version()}, {versions}.*"
    )


def _machine() -> str:
    info = Path("/proc/cpuinfo")
    models = re.findall(r"^model name\s*: (.*)$", info.read_text() if info.exists() else "", re.M)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    model = models[0] if models else platform.processor() or platform.machine()
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _spaced(printed: str) -> str:
    """Lines of text as a list, so that Markdown keeps them apart; tables as they are."""
    lines: list[str] = []
    given = list(filter(None, (line.rstrip() for line in printed.splitlines())))
    for line, following in zip(given, [*given[1:], ""], strict=True):
        is_row = line.startswith("|")
        begins_table = is_row and following.startswith("| --- |")
        if is_row and lines and (begins_table or not lines[-1].startswith("|")):
            lines.append("")
        if not is_row and lines and lines[-1].startswith("|"):
            lines.append("")
        lines.append(line if is_row else f"- {line.strip()}")
    return "\n".join(lines)


def _run(arguments: Sequence[str]) -> str:
    process = subprocess.run(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    if process.returncode:
        raise click.ClickException(f"{' '.join(arguments)} failed with status {process.returncode}")
    return process.stdout


if __name__ == "__main__":
    main()
