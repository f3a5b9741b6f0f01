"""Whole builds: their start, speed and memory, alone, beside other tools, or an older packprep.

\b
python scripts/bench/pipeline.py [PART]... [--first CHECKOUT]
    text      --megabytes of text: CPU s without the start, and wall s
    peers     the same beside gigatoken, TRL, datasets.map and tokenizers alone: MB/s of text
    memory    --gigabytes of text: most resident memory of the largest process
    chats     --chats, of --text with `messages`: CPU s without the start, and TRL's preparation

Text: the documents of --text again and again, in another order each time. CPU s: of a process and
its children. Of each program one small build comes first, uncounted, so that caches are warm. A
row is the median of --runs turns. Everything is written below --folder, and removed.
"""

import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
from common import (
    GB,
    MB,
    Tree,
    Used,
    again,
    corpus_of,
    first_option,
    in_turns,
    measure,
    show,
    text_options,
    trees,
    versions,
)
from peers import PEERS

_SLOW = 10  # of the peers that are slow, so much less text is measured
_SLOW_PEERS = ("trl", "lists", "hf")
NAMES = {
    "gigatoken": "gigatoken to flat ids",
    "trl": "TRL `pack_dataset` after `datasets.map`",
    "lists": "`datasets.map` with lists",
    "hf": "tokenizers alone, ids thrown away",
}


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where builds are made, and of what. runs: turns of each row."""

    folder: Path
    corpus: Sequence[str]
    tokenizer: Path
    trees: Sequence[Tree]
    runs: int
    markdown: bool

    def options(self, source: Path, **settings: str) -> list[str]:
        """Arguments of a build, whose output is removed before."""
        out, file = self.folder / "out", self.folder / "build.yaml"
        shutil.rmtree(out, ignore_errors=True)
        file.write_text(json.dumps({"token_type": "auto", **settings}))
        options = ["-o", str(out), "--tokenizer", str(self.tokenizer), "-q", "-c", str(file)]
        if '"messages":' in self.corpus[0]:
            options += ["--messages", "messages"]
        return ["build", str(source), *options]

    def seconds(self, tree: Tree, source: Path, **settings: str) -> Used:
        """Wall and CPU seconds of a build."""
        return tree.packprep(*self.options(source, **settings))

    def peer(self, what: str, source: Path, *, whole: bool) -> Used:
        """Seconds of a peer: of the process, or of its work alone."""
        out, program = self.folder / "peer", str(Path(__file__).with_name("peers.py"))
        shutil.rmtree(out, ignore_errors=True)
        command = [sys.executable, program, what, str(self.tokenizer), str(source), str(out)]
        used, printed = measure(command)
        work: Used = json.loads(printed.splitlines()[-1])
        return used if whole else work

    def starts(self) -> dict[str, Used]:
        """Medians of a small build, after one that is not counted.

        It loads what a large one does: the fast engine, and the reference for a sample of a
        thousandth, so that their loading counts as a part of the start.
        """
        few = partial(self.seconds, source=self.few(), engine="fastokens")
        for tree in self.trees:
            few(tree)
        return in_turns({tree.name: partial(few, tree) for tree in self.trees}, self.runs)

    def few(self) -> Path:
        """A file of the 20 shortest documents, 100 times."""
        path = self.folder / "few.jsonl"
        path.write_text("".join(sorted(self.corpus, key=len)[:20] * 100))
        return path

    def written(self, size: float) -> Path:
        """A file of about so many bytes of JSON lines."""
        path = self.folder / f"{size:.0f}.jsonl"
        with path.open("w") as file:
            file.writelines(again(self.corpus, int(size)))
        return path

    def show(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table."""
        show(columns, rows, self.markdown)


def text(bench: Bench, megabytes: float, **_: object) -> None:
    """CPU seconds without the start, and wall seconds of the whole process."""
    source, starts = bench.written(megabytes * MB), bench.starts()
    types = {"ids of four bytes": "int32", "of two bytes": "auto"}
    programs = {
        f"{tree.name}, {words}": partial(bench.seconds, tree, source, token_type=token_type)
        for tree in bench.trees
        for words, token_type in types.items()
    }
    rows, size = list[Sequence[str]](), source.stat().st_size / MB
    for name, used in in_turns(programs, bench.runs).items():
        cpu = used["cpu"] - starts[name.split(",")[0]]["cpu"]
        figures = (used["wall"], used["cpu"], cpu, size / cpu)
        rows.append((name, *(f"{each:.2f}" for each in figures)))
    columns = ("", "wall s", "CPU s", "without the start", "MB per CPU s")
    click.echo(f"{size:,.0f} MB of JSON lines; {bench.runs} runs")
    bench.show(columns, rows)


def peers(bench: Bench, megabytes: float, **_: object) -> None:
    """Speed by the clock: of whole processes, and of the work alone of what is slow."""
    source = bench.written(megabytes * MB)
    less = bench.written(megabytes * MB / _SLOW)
    missing = [name for name, (_, packages) in PEERS.items() if versions(*packages) is None]
    programs: dict[str, tuple[Path, Callable[[], Used]]] = {}
    for what, name in NAMES.items():
        path, whole = less if what in _SLOW_PEERS else source, what == "gigatoken"
        if what not in missing:
            programs[name] = path, partial(bench.peer, what, path, whole=whole)
        if whole:
            programs |= {
                tree.name: (source, partial(bench.seconds, tree, source)) for tree in bench.trees
            }
    bench.starts()
    used = in_turns({name: program for name, (_, program) in programs.items()}, bench.runs)
    speeds = {
        name: path.stat().st_size / MB / used[name]["wall"] for name, (path, _) in programs.items()
    }
    best = next(iter(speeds.values()))
    rows = [(name, f"{speed:.1f}", f"{speed / best:.2f}") for name, speed in speeds.items()]
    size = source.stat().st_size / MB
    click.echo(f"{size:,.0f} MB of JSON lines, {size / _SLOW:,.0f} of them for the slow ones")
    bench.show(("", "MB/s", "speed"), rows)
    if missing:
        click.echo(f"not installed: {', '.join(missing)}")


def memory(bench: Bench, gigabytes: Sequence[float], **_: object) -> None:
    """Peaks of builds, of several sizes of text."""
    rows = list[Sequence[str]]()
    for size in gigabytes:
        source = bench.written(size * GB)
        programs = {tree.name: partial(bench.seconds, tree, source) for tree in bench.trees}
        for name, used in in_turns(programs, bench.runs).items():
            speed = size * GB / MB / used["wall"]
            figures = (f"{used['peak'] / MB:,.0f}", f"{speed:.1f}")
            rows.append((f"{size:g} GB of JSON lines, {name}", *figures))
        source.unlink()
    bench.show(("largest process of a build", "resident MB", "MB/s"), rows)


def chats(bench: Bench, chats: int, **_: object) -> None:
    """CPU seconds without the start; TRL's of a twentieth of the chats, times 20."""
    if '"messages":' not in bench.corpus[0]:
        raise click.ClickException("the part chats needs --text with `messages`")
    many = list(itertools.islice(itertools.cycle(bench.corpus), chats))
    source, part = bench.folder / "chats.jsonl", bench.folder / "part.jsonl"
    source.write_text("".join(many))
    part.write_text("".join(many[: len(many) // 20]))
    starts = bench.starts()
    programs = {tree.name: partial(bench.seconds, tree, source) for tree in bench.trees}
    used, own = in_turns(programs, bench.runs), dict[str, float]()
    for name in programs:
        own[name] = used[name]["cpu"] - starts[name]["cpu"]
    if known := versions(*PEERS["trl-chats"][1]):
        theirs = in_turns({"": partial(bench.peer, "trl-chats", part, whole=False)}, bench.runs)
        own[known.split(",")[0]] = 20 * theirs[""]["cpu"]
    packprep = own["packprep"]
    rows = [(name, f"{cpu:.2f}", f"{cpu / packprep:.2f}") for name, cpu in own.items()]
    click.echo(f"{len(many):,} chats, {source.stat().st_size / MB:,.0f} MB of JSON lines")
    name = bench.tokenizer.name
    bench.show((name, "CPU s of all chats, without the start", "of packprep"), rows)


PARTS: dict[str, Callable[..., None]] = {
    each.__name__: each for each in (text, peers, memory, chats)
}


@click.command(help=__doc__)
@click.argument("parts", nargs=-1, type=click.Choice([*PARTS]), metavar="[PART]...")
@click.option("--megabytes", default=400.0, show_default=True, help="MB of text.")
@click.option("--gigabytes", multiple=True, default=(1.0,), help="GB of text; may be repeated.")
@click.option("--chats", default=100_000, show_default=True, help="Chats of the part chats.")
@text_options
@first_option
@click.option("--runs", default=3, show_default=True, help="Turns of each row.")
@click.option("--folder", type=click.Path(exists=True, path_type=Path), help="For large files.")
@click.option("--markdown", is_flag=True, help="Print Markdown tables.")
def main(
    parts: Sequence[str],
    texts: Sequence[Path],
    tokenizer: Path | None,
    first: Path | None,
    runs: int,
    folder: Path | None,
    markdown: bool,
    **sizes: Any,
) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        place, named = Path(temporary), parts or ("text", "peers")
        sample = "chats.jsonl" if "chats" in named else "code.jsonl"
        corpus, found = corpus_of(texts, tokenizer, place, sample)
        bench = Bench(
            folder=place,
            corpus=corpus,
            tokenizer=found,
            trees=trees(first),
            runs=runs,
            markdown=markdown,
        )
        for part in named:
            PARTS[part](bench, **sizes)


if __name__ == "__main__":
    main()
