"""A build compared with its limits and its peers: MB/s of text, tokens/s, CPU, memory, ratios.

Medians of runs.

    python scripts/bench/pipeline.py [--text FILE]... [--tokenizer DIR] [--peers] [--markdown]

Text: the sources of the installed standard library, or the JSON lines given. Every build is a
process of its own; one of the beginnings of 20 documents is start-up, and is subtracted from wall
and CPU seconds alike. Raw loops and peers count no imports and no loading of the tokenizer, in
either column, and raw loops no reading. All take turns, because the speed of a shared machine
changes within minutes: what is quick is measured before each of what is slow, and a ratio is of the
median speeds of the same round. What is quick gets ten copies of the text, each with the word "the"
changed, so that start-up is a small part of it. Kernels are compiled before the first one.
"""

import gzip
import hashlib
import json
import os
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import tables
from common import copies, lines, measure, text_options
from peers import PACKAGES, versions

BENCH = Path(__file__).parent
_RATIOS = [
    ("build fastokens, uint16", "build fastokens"),
    ("build fastokens", "trl"),
    ("build fastokens", "lists"),
    ("build fastokens", "raw-hf"),
    ("build fastokens", "raw-fastokens"),
    ("build fastokens", "gigatoken-bin"),
    ("build hf", "raw-hf"),
    ("build hf", "datatrove-bin"),
    ("build hf", "dolma-bin"),
]


_COPIES = 10  # of the text, for what is quick
_SLOW_PEERS = ("datatrove-bin", "dolma-bin", "trl", "lists")


@click.command()
@text_options
@click.option("--runs", default=3, show_default=True)
@click.option(
    "--peers",
    is_flag=True,
    help="Also datatrove, dolma, datasets.map with TRL and with Python lists, if installed.",
)
@click.option("--markdown", is_flag=True, help="Print a Markdown table.")
def main(
    texts: Sequence[Path], tokenizer: Path | None, runs: int, peers: bool, markdown: bool
) -> None:
    """Measure builds with each engine, a re-plan, the engines alone, and peers."""
    with tempfile.TemporaryDirectory() as folder:
        bench = _Bench(Path(folder), texts, tokenizer)
        bench.quick()
        bench.rounds.clear()  # in it kernels were compiled
        for _ in range(runs):
            bench.rounds.append(defaultdict(list))
            for slow in ("build hf", "raw-hf", *(bench.installed(_SLOW_PEERS) if peers else ())):
                bench.quick()
                bench.slow(slow)
        bench.show(markdown)


class _Bench:
    """The input in four forms, and the measurements of each name.

    All, copies of all, these packed by gzip, 20 beginnings of documents. text: bytes of text of the
    first two.
    """

    def __init__(self, folder: Path, texts: Sequence[Path], tokenizer: Path | None) -> None:
        self.folder = folder
        self.missing: list[str] = []
        self.rounds: list[defaultdict[str, list[dict[str, float]]]] = [defaultdict(list)]
        if tokenizer is None or not texts:
            measure(["-m", "packprep", "sample", str(folder)])
        self.tokenizer = tokenizer or folder / "tokenizer"
        self.all, self.few, self.large = (
            folder / name for name in ("all.jsonl", "few.jsonl", "large.jsonl")
        )
        self.packed = folder / "large.jsonl.gz"
        # Line by line: what this process has in memory counts as the peak of every one that it
        # starts.
        with self.all.open("w") as whole, self.few.open("w") as few:
            for number, line in enumerate(
                line for path in texts or [folder / "code.jsonl"] for line in lines(path)
            ):
                whole.write(line)
                if number < 20:  # whole books would be text that is subtracted
                    few.write(json.dumps({"text": json.loads(line)["text"][:200]}) + "\n")
        with self.large.open("wb") as large, gzip.open(self.packed, "wb", compresslevel=6) as gz:
            for copy in copies(self.all.read_bytes(), 0, _COPIES * self.all.stat().st_size):
                large.write(copy)
                gz.write(copy)
        self.text = {path: _text_bytes(path) for path in (self.all, self.large)}
        self.text[self.packed] = self.text[self.large]

    def quick(self) -> None:
        """Measure everything that is quick."""
        fast = ["--engine", "fastokens"]
        self._build_net("build fastokens", fast, self.large)
        self._peer("raw-fastokens", self.large)
        self._peer("gigatoken-bin", self.large)
        self._build_net("build fastokens, uint16", [*fast, "--token-type", "auto"], self.large)
        self._build_net("build fastokens, .gz", fast, self.packed)
        self._replan()

    def installed(self, names: Sequence[str]) -> list[str]:
        """The peers that can run here; `show` lists the others."""
        self.missing = [name for name in names if versions(name) is None]
        return [name for name in names if name not in self.missing]

    def slow(self, what: str) -> None:
        """Measure one that is slow."""
        if what == "build hf":
            self._build_net(what, ["--engine", "hf"], self.all)
        else:
            self._peer(what, self.all)

    def _build_net(self, name: str, options: Sequence[str], source: Path) -> None:
        self._add_net(name, [(self.few, options), (source, options)], "tokens_in")

    def _replan(self) -> None:
        """Another strategy and max_length from a token store.

        The text is only hashed, to know that it is the same.
        """
        again = []
        for source in (self.few, self.large):
            folder = self.folder / f"store-{source.stem}"
            store = ["--keep-tokens", str(folder)]
            if not folder.exists():
                self._build(source, store)
            again.append((source, [*store, "--strategy", "first_fit", "--max-length", "2048"]))
        self._add_net("re-plan", again, "tokens_packed")
        measured = self.rounds[-1]["re-plan"][-1]
        measured["digest"] = _digest_seconds([self.large])
        measured["digest of output"] = _digest_seconds([*(self.folder / "out").rglob("*.arrow")])

    def _peer(self, what: str, source: Path) -> None:
        out = self.folder / "peer"
        shutil.rmtree(out, ignore_errors=True)
        command = [
            str(BENCH / "peers.py"),
            what,
            str(self.tokenizer),
            str(source),
            str(out),
        ]
        measured, printed = measure(command)
        work = json.loads(printed.splitlines()[-1])
        self._add(what, measured | work | {"tokens": 0, "text": self.text[source]})

    def _add_net(
        self, name: str, builds: Sequence[tuple[Path, Sequence[str]]], tokens: str
    ) -> None:
        """A build less its start-up. builds: a small and a large one, with options."""
        start, whole = (self._build(*build) for build in builds)
        net = {key: whole[key] - start[key] for key in ("wall", "cpu")}
        sizes = {"tokens": self._report()["tokens"][tokens], "text": self.text[builds[-1][0]]}
        self._add(name, whole | net | sizes)

    def _build(self, source: Path, options: Sequence[str]) -> dict[str, float]:
        """Wall and CPU seconds and peak bytes of a whole build process."""
        shutil.rmtree(self.folder / "out", ignore_errors=True)
        command = ["-m", "packprep", "build", str(source), "-o", str(self.folder / "out"), "-q"]
        return measure([*command, "--tokenizer", str(self.tokenizer), *options])[0]

    def _report(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.folder / "out" / "report.json").read_bytes())
        return loaded

    def _add(self, name: str, measured: dict[str, float]) -> None:
        self.rounds[-1][name].append(measured)
        click.echo(
            f"{name}: {measured['wall']:.2f} s, "
            f"{measured['text'] / 1e6 / measured['wall']:.1f} MB/s",
            err=True,
        )

    def show(self, markdown: bool) -> None:
        header = [
            "",
            "MB/s of text",
            "M tokens/s",
            "wall s",
            "CPU s",
            "M tokens per CPU-s",
            "peak MB",
            "MB of text",
        ]
        lines = []
        for name in self.rounds[0]:
            runs = [run for round_ in self.rounds for run in round_[name]]
            row = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            tokens = [
                f"{row['tokens'] / 1e6 / row[of]:.1f}" if row["tokens"] else ""
                for of in ("wall", "cpu")
            ]
            speed = f"{row['text'] / 1e6 / row['wall']:.1f}"
            seconds = [f"{row['wall']:.2f}", f"{row['cpu']:.2f}"]
            lines.append(
                [
                    f"{name} ({len(runs)})",
                    speed,
                    tokens[0],
                    *seconds,
                    tokens[1],
                    f"{row['peak'] / 1e6:,.0f}",
                    f"{row['text'] / 1e6:.0f}",
                ]
            )
        click.echo(f"{os.cpu_count()} cores, medians of the number of runs in brackets")
        tables.show(header, lines, markdown)
        peers = [line for name in self.rounds[0] if name in PACKAGES and (line := versions(name))]
        click.echo(f"peers: {', '.join(dict.fromkeys(', '.join(peers).split(', ')))}")
        for name in self.missing:
            click.echo(f"{name} is left out: {', '.join(PACKAGES[name])} not installed")
        for words, digests in (
            ("of the text", ("digest",)),
            ("of the text and of the output", ("digest", "digest of output")),
        ):
            packed = [
                run["tokens"] / (run["cpu"] - sum(run[digest] for digest in digests))
                for round_ in self.rounds
                for run in round_["re-plan"]
            ]
            click.echo(
                f"re-plan without the sha256 {words}: "
                f"{statistics.median(packed) / 1e6:.1f} M tokens per CPU-s"
            )
        for ours, theirs in _RATIOS:
            if theirs in self.rounds[0]:
                wall, cpu = (
                    statistics.median(
                        _speed(round_[ours], of) / _speed(round_[theirs], of)
                        for round_ in self.rounds
                    )
                    for of in ("wall", "cpu")
                )
                click.echo(
                    f"{ours}: {wall:.2f} x the speed of {theirs}, {cpu:.2f} x by CPU seconds"
                )
        # About three bytes are hashed for each byte of text: sources, token ids and positions.
        click.echo(f"sha256 on this machine: {_sha256_speed() / 1e9:.2f} GB/s per core")


def _speed(runs: Sequence[dict[str, float]], of: str) -> float:
    """Bytes of text per second, by the median of `of`: wall or cpu."""
    return runs[0]["text"] / statistics.median(run[of] for run in runs)


def _text_bytes(path: Path) -> int:
    """Bytes of text in JSON lines."""
    with path.open() as file:
        return sum(len(json.loads(line)["text"].encode()) for line in file)


def _sha256_speed() -> float:
    """Bytes per CPU second; processors with instructions for sha256 have seven times as many."""
    block, start = bytes(64 << 20), time.process_time()
    hashlib.sha256(block)
    return len(block) / (time.process_time() - start)


def _digest_seconds(paths: Sequence[Path]) -> float:
    """CPU seconds of the sha256 of files."""
    start = time.process_time()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256")
    return time.process_time() - start


if __name__ == "__main__":
    main()
