"""Neighbours that two epochs of one output have in common, and the utilization of its epochs.

\b
python scripts/bench/repack.py [--text FILE]... [--tokenizer DIR] [--epochs 4]

The text is built with --epochs for every strategy and max_length, from kept tokens.
Neighbours are two different documents whose segments follow each other in a pack. *In common* is
the largest share of the pairs of one epoch that another one has too. *Other seed* is the same of
two builds without --epochs and with another seed: what shuffling alone gives.
"""

import tempfile
from collections.abc import Sequence
from itertools import pairwise, permutations
from pathlib import Path

import click
import numpy as np
import tables
from common import measure, text_options

from packprep.inspect.report_file import read_report
from packprep.loaders import PackedShards

STRATEGIES = ("best_fit", "optimal", "stream", "greedy", "balanced", "wrapped")
LENGTHS = (1024, 4096, 32768)


@click.command(help=__doc__)
@text_options
@click.option("--epochs", default=4, show_default=True)
@click.option("--max-length", "lengths", multiple=True, type=int, default=LENGTHS)
@click.option("--strategy", "strategies", multiple=True, default=STRATEGIES)
@click.option("--markdown", is_flag=True, help="Print a Markdown table.")
def main(
    texts: Sequence[Path],
    tokenizer: Path | None,
    epochs: int,
    lengths: Sequence[int],
    strategies: Sequence[str],
    markdown: bool,
) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sources = [str(text.absolute()) for text in texts]
        if not sources:
            measure(["-m", "packprep", "sample", str(folder / "data")])
            sources = [str(folder / "data" / "*.jsonl")]
        given = [*sources, "--tokenizer", str(tokenizer or folder / "data" / "tokenizer")]
        given += ["--keep-tokens", str(folder / "tokens"), "--quiet"]
        for number, (strategy, length) in enumerate(
            (strategy, length) for strategy in strategies for length in lengths
        ):
            out = folder / str(number)
            build = ["-m", "packprep", "build", *given, "--strategy", strategy]
            build += ["--max-length", str(length)]
            measure([*build, "-o", f"{out}-all", "--epochs", str(epochs)])
            for seed in ("0", "1"):
                measure([*build, "-o", f"{out}-{seed}", "--seed", seed])
            report = read_report(Path(f"{out}-all"))
            shares = [figures["utilization"] for figures in report["epochs"]]
            together = [neighbours(Path(f"{out}-all"), epoch) for epoch in range(epochs)]
            apart = [neighbours(Path(f"{out}-{seed}")) for seed in ("0", "1")]
            plain = read_report(Path(f"{out}-0"))["utilization"]
            utilization = f"{min(shares):.3%} to {max(shares):.3%}"
            common = [f"{in_common(pairs):.2%}" for pairs in (together, apart)]
            rows.append([strategy, f"{length:,}", *common, utilization, f"{plain:.3%}"])
    header = ["strategy", "max_length", "in common", "other seed", "utilization", "once"]
    click.echo(f"{report['documents']['in']:,} documents, {epochs} epochs")
    tables.show(header, rows, markdown)


def neighbours(output: Path, epoch: int | None = None) -> set[tuple[int, int]]:
    """Pairs of different documents that follow each other in a pack."""
    pairs = set()
    for pack in PackedShards(output, epoch=epoch):
        ids = np.asarray(pack.document_ids).tolist()
        pairs |= {
            (min(one, other), max(one, other)) for one, other in pairwise(ids) if one != other
        }
    return pairs


def in_common(epochs: Sequence[set[tuple[int, int]]]) -> float:
    """Largest share of the pairs of an epoch that another one has."""
    return max(len(one & other) / max(1, len(one)) for one, other in permutations(epochs, 2))


if __name__ == "__main__":
    main()
