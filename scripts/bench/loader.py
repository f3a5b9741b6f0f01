"""Speed from shards to batches and exports, alone or beside an older packprep.

\b
python scripts/bench/loader.py [--megabytes 100] [--runs 3] [--first CHECKOUT]

Builds shards of --text, shards of short documents, and a plan over tokens in a store. Reads three
epochs of each in a process of its own, after one that is not counted. A row is the median of
--runs, in turns, of million tokens a CPU second of that process, a thread that prefetches included.

\b
export NAME     `packprep export --to NAME`
packs.py        loaders/packs.py, the file to copy into a project, as documents
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from common import (
    MB,
    Tree,
    Used,
    again,
    corpus_of,
    first_option,
    in_turns,
    show,
    text_options,
    trees,
)

KINDS: dict[str, Sequence[str]] = {
    "shards": (),
    "short documents": (),
    "plan": ("--columns", "plan"),
}
_SHORT = 400  # characters of a short document


def loader(out: str, packs: int) -> Callable[[], int]:
    from packprep.loaders import PackedLoader, PackedShards

    made: Any = PackedLoader(PackedShards(out), packs, remainder="fill")
    epochs = iter(range(100))

    def epoch() -> int:
        made.set_epoch(next(epochs))
        return sum(len(batch.tokens) for batch in made)

    return epoch


def packs_file(out: str) -> Callable[[], int]:
    sys.path.insert(0, str(Path(__file__).parents[2] / "loaders"))
    packs: Any = __import__("packs")  # as in a project that copied it
    found = packs.Packs(out)
    return lambda: sum(
        len(pack["tokens"])
        for _, pack in packs.rank_packs(found, seed=0, epoch=0, rank=0, world_size=1)
    )


def export(out: str, to: str) -> Callable[[], int]:
    from packprep.cli.main import cli

    tokens = loader(out, 1)()

    def write() -> int:
        with tempfile.TemporaryDirectory() as folder:
            words = ["export", out, "--to", to, "-o", f"{folder}/made", "-q"]
            cli.main(words, standalone_mode=False)
        return tokens

    return write


WAYS: dict[str, Callable[[str], Callable[[], int]]] = {
    "1 pack a batch": partial(loader, packs=1),
    "8 packs a batch": partial(loader, packs=8),
    "packs.py": packs_file,
}
OURS = ("1 pack a batch", "8 packs a batch")
EXPORTS = ("trl", "axolotl", "llama-factory", "megatron", "megatron-bridge", "npy", "parquet")
WAYS |= {f"export {name}": partial(export, to=name) for name in EXPORTS}


def read(way: str, out: str) -> None:
    """Print million tokens a CPU second of three epochs."""
    epoch = WAYS[way](out)
    epoch()
    for _ in range(3):
        began = time.process_time()
        tokens = epoch()
        print(tokens / MB / (time.process_time() - began))


def rate(tree: Tree, way: str, out: Path) -> Used:
    """The median of what `read` prints in a process with this tree."""
    printed = tree.run(__file__, "--read", way, str(out))[1]
    return {"rate": statistics.median(map(float, printed.split()))}


def outputs(folder: Path, tree: Tree, sources: Iterable[Path], tokenizer: Path) -> dict[str, Path]:
    """Builds of each kind, by a tree."""
    made = dict[str, Path]()
    for (kind, more), source in zip(KINDS.items(), sources, strict=True):
        made[kind] = folder / f"{tree.name}-{kind}"
        options = [*more, "--store", str(folder / f"{tree.name}-tokens")] if more else []
        options += ["-o", str(made[kind]), "--tokenizer", str(tokenizer), "-q"]
        tree.packprep("build", str(source), *options)
    return made


@click.command(help=__doc__)
@click.option("--megabytes", default=100.0, show_default=True, help="MB of text.")
@text_options
@first_option
@click.option("--runs", default=3, show_default=True, help="Turns of each row.")
@click.option("--markdown", is_flag=True, help="Print Markdown tables.")
@click.option("--read", "reading", nargs=2, hidden=True)
def main(
    megabytes: float,
    texts: Sequence[Path],
    tokenizer: Path | None,
    first: Path | None,
    runs: int,
    markdown: bool,
    reading: tuple[str, str] | None,
) -> None:
    if reading:
        read(*reading)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        corpus, found = corpus_of(texts, tokenizer, folder)
        source, short = folder / "text.jsonl", folder / "short.jsonl"
        with source.open("w") as file, short.open("w") as few:
            for line in again(corpus, int(megabytes * MB)):
                file.write(line)
                few.write(json.dumps({"text": json.loads(line)["text"][:_SHORT]}) + "\n")
        made = {
            tree: outputs(folder, tree, (source, short, source), found) for tree in trees(first)
        }
        programs: dict[str, Callable[[], Used]] = {
            f"{kind}, {way}, {tree.name}": partial(rate, tree, way, places[kind])
            for kind in KINDS
            for way in OURS
            for tree, places in made.items()
        }
        tree = [*made][-1]
        for way in [each for each in WAYS if each not in OURS]:
            if way.startswith("export"):
                programs |= {
                    f"{way}, {each.name}": partial(rate, each, way, places["shards"])
                    for each, places in made.items()
                }
            else:
                programs[f"shards, {way}"] = partial(rate, tree, way, made[tree]["shards"])
        rates = in_turns(programs, runs)
    base = rates["shards, 1 pack a batch, packprep"]["rate"]
    table = [
        (name, f"{used['rate']:.1f}", f"{base / used['rate']:.2f}") for name, used in rates.items()
    ]
    show(("", "M tokens a CPU s", "packprep, 1 pack, is faster by"), table, markdown)


if __name__ == "__main__":
    main()
