#!/usr/bin/env python3
"""Speed and tightness of every strategy on three kinds of lengths.

\b
scripts/bench/packing.py                        all strategies, 10 thousand to 1 million documents
scripts/bench/packing.py -n 10M -d a -d b4      10 million documents, two kinds of lengths

\b
lengths: a instructions, packs of 2,048; b4 web text, cut at 4,096; c a long tail, 32,768

Times are CPU seconds of one process, the median of five runs after a warm-up, from lengths in
memory to the finished plan: order and offsets, packs in seeded random order, documents ascending in
each. Gap is packs over the best lower bound.
"""

import itertools
from collections.abc import Iterable, Iterator
from functools import partial

import click
import numpy as np
from common import median_seconds, show
from numpy.typing import NDArray

from packprep.packing.api import pack_lengths
from packprep.packing.plan import PackPlan
from packprep.packing.strategies import STRATEGIES

Lengths = NDArray[np.int32]
Row = tuple[str, ...]
DISTRIBUTIONS = ("a", "b4", "c")
COLUMNS = "lengths|documents|packer|CPU ms|packs|utilization|gap|bias|straggler, 8 ranks"


def web_texts(documents: int) -> NDArray[np.int64]:
    """Lengths like those of web text, before they are cut for packs."""
    lengths = np.random.default_rng(0).lognormal(6.2, 1.1, documents)
    return np.maximum(1, lengths.astype(np.int64))


def distribution(name: str, documents: int) -> tuple[Lengths, int]:
    """Lengths, and max_length."""
    random = np.random.default_rng(0)
    if name == "a":
        drawn = random.lognormal(np.log(250) - 0.405, 0.9, documents)
        return np.clip(drawn, 1, 2048).astype(np.int32), 2048
    if name == "b4":
        capacity, texts = 4096, web_texts(documents)
        pieces = -(-texts // capacity)
        lengths = np.full(pieces.sum(), capacity, np.int32)
        lengths[np.cumsum(pieces) - 1] = texts - (pieces - 1) * capacity
        return lengths[:documents].copy(), capacity
    return np.minimum(300 * (1 + random.pareto(1.1, documents)), 32768).astype(np.int32), 32768


def amount(text: str) -> int:
    return int(float(text.rstrip("kM")) * {"k": 1_000, "M": 1_000_000}.get(text[-1], 1))


def own_rows(name: str, documents: int, strategies: Iterable[str]) -> Iterator[Row]:
    """A row for each strategy, and one of best_fit in balanced order."""
    lengths, capacity = distribution(name, documents)
    works = {
        each: partial(pack_lengths, lengths, capacity, each)
        for each in strategies
        if each != "balanced" or documents <= 100_000
    }
    if "best_fit" in works:
        works["best_fit, balanced order"] = partial(
            pack_lengths, lengths, capacity, "best_fit", order="balanced", cost=(0, 1)
        )
    for title, work in works.items():
        plan: PackPlan = work()
        plan.check()
        yield (
            name,
            f"{documents:,}",
            title,
            f"{1e3 * median_seconds(work, 5):,.1f}",
            f"{plan.num_packs:,}",
            f"{plan.utilization:.3%}",
            f"{plan.gap:,}",
            f"{plan.bias:+.2f}",
            f"{plan.straggler(8, (0, 1)):.2f}",
        )


@click.command(help=__doc__)
@click.option("-n", "--documents", multiple=True, default=("10k", "100k", "1M"))
@click.option("-d", "names", multiple=True, default=DISTRIBUTIONS, type=click.Choice(DISTRIBUTIONS))
@click.option(
    "-s", "strategies", multiple=True, default=(*STRATEGIES,), type=click.Choice([*STRATEGIES])
)
@click.option("--markdown", is_flag=True, help="Print a Markdown table.")
def main(
    documents: tuple[str, ...], names: tuple[str, ...], strategies: tuple[str, ...], markdown: bool
) -> None:
    rows = (
        row
        for text, name in itertools.product(documents, names)
        for row in own_rows(name, amount(text), strategies)
    )
    show(COLUMNS.split("|"), rows, markdown)


if __name__ == "__main__":
    main()
