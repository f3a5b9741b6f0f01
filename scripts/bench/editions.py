"""The second edition (`packprep.next`) against the first, each build in a new process, in turns.

\b
python scripts/bench/editions.py --what ...
    start     a build of 20 documents: CPU s, and what is imported
    text      --megabytes 400: CPU s without the start, and wall s
    peers     the same text by gigatoken-bin of peers.py: wall s
    memory    --gigabytes 1: peak of JSON lines and of Parquet, both editions
    memory    --gigabytes 10 --gigabytes 20: growth of the second
    entered   modules and code lines that a build of 80 documents enters
    loader    tokens a CPU second of epochs of shards, of short documents, and of plans
    chats     --chats 100000: CPU s without the start, both editions and TRL's preparation;
              --text has rows with `messages`, --tokenizer a chat template

Text: the documents of --text again and again, in another order each time. CPU s: of a process and
its children. Caches are warm: of each program one build of 20 documents comes first, uncounted.
Every table has the medians of --runs turns. Everything is written below --folder, and removed.
"""

import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import tables
from common import lines, measure, resident, text_options
from peers import versions

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.helpers.entered import ROOT, entered

MB, GB = 1_000_000, 1_000_000_000
Used = dict[str, float]
MODULES = {"first": "packprep", "second": "packprep.next"}
_SAMPLE_EVERY = 0.1  # seconds
# The command of an edition, which prints what it has imported at its end.
_ASKED = """
import atexit, importlib, sys
heavy = {"numba", "torch", "transformers"}
atexit.register(lambda: print(", ".join(heavy & sys.modules.keys())))
importlib.import_module(sys.argv.pop(1) + ".cli.main").main()
"""


# Reads an output by the loader of an edition; prints tokens a CPU second of epochs 1 to 3.
_READ = """
import importlib, sys, time
loaders = importlib.import_module(sys.argv[1] + ".loaders")
loader = loaders.PackedLoader(loaders.PackedShards(sys.argv[2]), int(sys.argv[3]))
for epoch in range(4):
    loader.set_epoch(epoch)
    began, tokens = time.process_time(), 0
    for batch in loader:
        tokens += len(batch.tokens)
    if epoch:
        print(tokens / (time.process_time() - began))
"""


@dataclass(frozen=True)
class Bench:
    """Where builds are made, and of what. runs: turns of each row."""

    folder: Path
    corpus: Sequence[str]
    tokenizer: Path
    megabytes: float
    chats: int
    gigabytes: Sequence[float]
    runs: int
    markdown: bool

    def build(self, edition: str, source: Path, token_type: str = "int32") -> list[str]:
        """Arguments of Python for a build, whose output is removed before."""
        out, settings = self.folder / "out", self.folder / "build.yaml"
        shutil.rmtree(out, ignore_errors=True)
        settings.write_text(f"token_type: {token_type}\n")
        options = ["-o", str(out), "--tokenizer", str(self.tokenizer), "-q", "-c", str(settings)]
        if '"messages":' in self.corpus[0]:
            column = {"first": "--messages-column", "second": "--messages"}[edition]
            options += [column, "messages", "--max-length", "4096"]
        return ["-m", MODULES[edition], "build", str(source), *options]

    def rate(self, edition: str, source: Path, packs: int, more: Sequence[str]) -> Used:
        """Tokens a CPU second of an epoch, in millions. more: options of the build."""
        out = self.folder / f"{edition}-{source.stem}{len(more)}"
        if not out.exists():
            options = ["-o", str(out), "--tokenizer", str(self.tokenizer), "-q", *more]
            store = ["--store", str(self.folder / f"{edition}-tokens")] if "plan" in more else []
            if store and edition == "first":
                options = [*options[:-2], "--materialize", "index"]
                store = ["--keep-tokens", str(self.folder / "first-tokens")]
            measure(["-m", MODULES[edition], "build", str(source), *options, *store])
        printed = measure(["-c", _READ, MODULES[edition], str(out), str(packs)])[1]
        return {"rate": statistics.median(map(float, printed.split())) / MB}

    def seconds(self, edition: str, source: Path, token_type: str = "int32") -> Used:
        """Wall and CPU seconds of a build."""
        return measure(self.build(edition, source, token_type))[0]

    def peak(self, edition: str, source: Path) -> Used:
        """Most resident bytes of a build and its children: all, and those of no file."""
        process = subprocess.Popen([sys.executable, *self.build(edition, source, "auto")])
        most = {"VmRSS": 0.0, "RssAnon": 0.0}
        while process.poll() is None:
            for kind in most:
                most[kind] = max(most[kind], resident(process.pid, kind))
            time.sleep(_SAMPLE_EVERY)
        if process.returncode:
            raise click.ClickException(f"{edition}: a build failed, {process.returncode}")
        return most

    def in_turns(self, programs: Mapping[str, Callable[[], Used]]) -> dict[str, Used]:
        """Medians of what programs measure."""
        taken: dict[str, list[Used]] = {name: [] for name in programs}
        for _ in range(self.runs):
            for name, program in programs.items():
                taken[name].append(program())
        return {
            name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            for name, runs in taken.items()
        }

    def starts(self) -> dict[str, Used]:
        """Medians of a build of 20 documents by each edition, after one that is not counted."""
        few = self.few()
        for edition in MODULES:
            self.seconds(edition, few)
        return self.in_turns({edition: partial(self.seconds, edition, few) for edition in MODULES})

    def few(self, documents: int = 20) -> Path:
        """A file of few documents."""
        path = self.folder / f"{documents}.jsonl"
        path.write_text("".join(self.corpus[:documents]))
        return path

    def written(self, size: int, kind: str = "jsonl") -> Path:
        """A file of about so many bytes of JSON lines, or of Parquet with their texts."""
        path = self.folder / f"text.{kind}"
        rows = again(self.corpus, size)
        if kind == "jsonl":
            with path.open("w") as file:
                file.writelines(rows)
            return path
        schema = pa.schema([("text", pa.string())])
        with pq.ParquetWriter(path, schema) as writer:
            while group := [json.loads(line)["text"] for line in itertools.islice(rows, 2000)]:
                writer.write_table(pa.table({"text": group}, schema))
        return path

    def show(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table."""
        tables.show(columns, rows, self.markdown)


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


def start(bench: Bench) -> None:
    """CPU seconds of a build of 20 documents, and the large libraries that it imports."""
    rows, used = [], bench.starts()
    for edition, module in MODULES.items():
        command = ["-c", _ASKED, module, *bench.build(edition, bench.few())[2:]]
        imported = measure(command)[1].strip() or "none"
        share = used[edition]["cpu"] / used["first"]["cpu"]
        wall, cpu = (f"{used[edition][key]:.2f}" for key in ("wall", "cpu"))
        rows.append((edition, wall, cpu, f"{share:.2f}", imported))
    bench.show(("20 documents", "wall s", "CPU s", "of the first", "imports"), rows)


def text(bench: Bench) -> None:
    """CPU seconds without the start, and wall seconds of the whole process."""
    source, starts = bench.written(int(bench.megabytes * MB)), bench.starts()
    first, second = (partial(bench.seconds, edition, source) for edition in MODULES)
    used = bench.in_turns(
        {
            "first, int32": first,
            "second, int32": second,
            "second, two bytes": partial(second, "auto"),
        }
    )
    rows, cpus, walls = [], list[float](), list[float]()
    for name, seconds in used.items():
        cpus.append(seconds["cpu"] - starts[name.split(",")[0]]["cpu"])
        walls.append(seconds["wall"])
        times = [f"{each:.2f}" for each in (seconds["cpu"], cpus[-1], cpus[0] / cpus[-1])]
        rows.append((name, *times, f"{walls[-1]:.2f}", f"{walls[0] / walls[-1]:.2f}"))
    columns = ("", "CPU s", "without start", "ratio", "wall s", "ratio")
    click.echo(f"{source.stat().st_size / MB:,.0f} MB of text; ratio: of the first row to each")
    bench.show(columns, rows)


def peers(bench: Bench) -> None:
    """Wall seconds of whole processes beside gigatoken's."""
    installed = versions("gigatoken-bin")
    if installed is None:
        click.echo("gigatoken is not installed here; pip install gigatoken awkward")
        return
    source, flat = bench.written(int(bench.megabytes * MB)), bench.folder / "flat"
    program = str(Path(__file__).with_name("peers.py"))

    def gigatoken() -> Used:
        shutil.rmtree(flat, ignore_errors=True)
        return measure([program, "gigatoken-bin", str(bench.tokenizer), str(source), str(flat)])[0]

    bench.starts()
    used = bench.in_turns(
        {
            f"gigatoken-bin, {installed}": gigatoken,
            "first, two bytes": partial(bench.seconds, "first", source, "uint16"),
            "second, two bytes": partial(bench.seconds, "second", source, "auto"),
        }
    )
    theirs = next(iter(used.values()))["wall"]
    rows = [
        (name, *(f"{each:.2f}" for each in (used["wall"], used["cpu"], theirs / used["wall"])))
        for name, used in used.items()
    ]
    click.echo(f"{source.stat().st_size / MB:,.0f} MB of text; ratio: of the first row to each")
    bench.show(("whole processes", "wall s", "CPU s", "ratio of wall s"), rows)


def memory(bench: Bench) -> None:
    """Peaks of one size of text by both editions, or of the second by several sizes."""
    one, rows = len(bench.gigabytes) == 1, []
    for size in bench.gigabytes:
        for kind in ("jsonl", "parquet") if one else ("jsonl",):
            source = bench.written(int(size * GB), kind)
            editions = MODULES if one else ("second",)
            programs = {edition: partial(bench.peak, edition, source) for edition in editions}
            for edition, most in bench.in_turns(programs).items():
                shown = [f"{value / MB:,.0f}" for value in most.values()]
                rows.append((f"{size:g} GB of {kind}", edition, *shown))
            source.unlink()
    bench.show(("text", "edition", "resident MB", "of no file, MB"), rows)


def enters(bench: Bench) -> None:
    """Modules entered and code lines called; see tests/helpers/entered.py."""
    rows, source = [], bench.few(80)
    for edition, module in MODULES.items():
        bench.seconds(edition, source)
        called = entered(module, bench.build(edition, source)[2:], bench.folder / "traced")
        rows.append((edition, str(len(called)), f"{sum(called.values()):,}"))
    bench.show(("edition", "modules entered", "code lines called"), rows)


def chats(bench: Bench) -> None:
    """CPU seconds without the start; TRL's of a twentieth of the chats, times 20."""
    many = list(itertools.islice(itertools.cycle(bench.corpus), bench.chats))
    source, part = bench.folder / "chats.jsonl", bench.folder / "part.jsonl"
    source.write_text("".join(many))
    part.write_text("".join(many[: len(many) // 20]))
    program, out = str(Path(__file__).with_name("prepared_by_trl.py")), bench.folder / "trl"

    def trl(path: Path) -> Used:
        shutil.rmtree(out, ignore_errors=True)
        return measure([program, str(bench.tokenizer), str(path), str(out)])[0]

    starts = {**bench.starts(), "TRL": trl(bench.few())}
    programs = {edition: partial(bench.seconds, edition, source) for edition in MODULES}
    used, rows = bench.in_turns({**programs, "TRL": partial(trl, part)}), list[Sequence[str]]()
    own = {name: used[name]["cpu"] - starts[name]["cpu"] for name in used}
    own["TRL"] *= 20
    for name, cpu in own.items():
        rows.append((name, f"{used[name]['cpu']:.2f}", f"{cpu:.2f}", f"{own['first'] / cpu:.2f}"))
    click.echo(f"{len(many):,} chats, {source.stat().st_size / MB:,.0f} MB; TRL {version('trl')}")
    bench.show(("", "CPU s", "of all chats, without start", "ratio"), rows)


def loader(bench: Bench) -> None:
    """Tokens a CPU second of epochs that are in memory."""
    source, short = bench.written(int(bench.megabytes * MB)), bench.folder / "short.jsonl"
    texts = (json.loads(line)["text"][:400] for line in again(bench.corpus, 10**12))
    with short.open("w") as file:
        for number, each in zip(range(int(bench.megabytes * 1000)), texts, strict=False):
            file.write(json.dumps({"text": each, "id": number}) + "\n")
    kinds = {"shards": (source, ()), "short": (short, ()), "plans": (source, ("--columns", "plan"))}
    rows = []
    for (name, (path, more)), packs in itertools.product(kinds.items(), (1, 8)):
        programs = {edition: partial(bench.rate, edition, path, packs, more) for edition in MODULES}
        first, second = (used["rate"] for used in bench.in_turns(programs).values())
        shown = [f"{each:.0f}" for each in (first, second)]
        rows.append((f"{name}, {packs} packs a batch", *shown, f"{second / first:.2f}"))
    bench.show(("", "first", "second, M tokens a CPU s", "ratio"), rows)


PARTS = {
    "loader": loader,
    "chats": chats,
    "start": start,
    "text": text,
    "peers": peers,
    "memory": memory,
    "entered": enters,
}


@click.command(help=__doc__)
@click.option("--what", type=click.Choice([*PARTS]), required=True)
@click.option("--megabytes", default=400.0, show_default=True, help="MB of text.")
@click.option("--gigabytes", multiple=True, default=(1.0,), help="GB of text; may be repeated.")
@click.option("--chats", default=100_000, show_default=True, help="Chats of --what chats.")
@text_options
@click.option("--runs", default=3, show_default=True, help="Turns of each row.")
@click.option("--folder", type=click.Path(exists=True, path_type=Path), help="For large files.")
@click.option("--markdown", is_flag=True, help="Print Markdown tables.")
def main(
    what: str, texts: Sequence[Path], tokenizer: Path | None, folder: Path | None, **given: Any
) -> None:
    os.environ["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        place = Path(temporary)
        if tokenizer is None or not texts:
            measure(["-m", "packprep", "sample", str(place / "sample")])
        corpus = [line for path in texts or [place / "sample/prose.jsonl"] for line in lines(path)]
        random.Random(0).shuffle(corpus)
        PARTS[what](Bench(place, corpus, tokenizer or place / "sample/tokenizer", **given))


if __name__ == "__main__":
    main()
