#!/usr/bin/env python3
"""Figures that guides to packing give, measured again on this machine.

\b
scripts/bench/claims.py              a table: the claim, what it says, what was measured, and how
scripts/bench/claims.py --markdown   the same as a Markdown table

Sources: Axolotl's multipack sampler, slime's data packing, Forgather's packing guide and
LLaMA-Factory. Times are the median of several runs after a warm-up, CPU seconds of one process
where only one thread works; ratios are between runs of this process.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import click
import numba
import numpy as np
from common import median_seconds, show
from numpy.typing import NDArray
from packing import web_texts

from packprep.packing.api import pack_lengths

Lengths = NDArray[np.int64]
Row = tuple[str, str, str, str]

_BATCH = 1000  # documents that a call of `map` packs together
_MAX_LENGTH, _LEAST = 4096, 64  # tokens of a block, and the fewest that are kept


# --- batches of `map` -------------------------------------------------------------------------


def greedy_blocks(lengths: Sequence[int], *, split: bool) -> list[int]:
    """Sizes of the blocks that Forgather's greedy packing makes of one batch.

    Without `split` each document is cut at the end of its block, which is then finished: no block
    has two documents. With it, blocks are filled to fewer than `_LEAST` free places, and documents
    go on in the next block.
    """
    blocks, size = [], 0
    for length in lengths:
        if not split:
            blocks.append(min(length, _MAX_LENGTH))
            continue
        while length:
            taken = min(length, _MAX_LENGTH - size)
            size, length = size + taken, length - taken
            if _MAX_LENGTH - size < _LEAST:
                blocks.append(size)
                size = 0
    return [block for block in [*blocks, size] if block >= _LEAST]


def planned_blocks(lengths: Lengths, strategy: str, *, split: bool) -> list[int]:
    """Sizes of the blocks of one batch with a strategy that keeps documents whole."""
    if split:
        pieces = -(-lengths // _MAX_LENGTH)
        cut = np.full(pieces.sum(), _MAX_LENGTH)
        cut[np.cumsum(pieces) - 1] = lengths - (pieces - 1) * _MAX_LENGTH
    else:
        cut = np.minimum(lengths, _MAX_LENGTH)
    fills = pack_lengths(cut, _MAX_LENGTH, strategy).fills
    return [size for size in fills.tolist() if size >= _LEAST]


def blocks_in_batches(documents: int) -> Iterator[Row]:
    """Blocks and utilization of packing inside batches of 1,000 documents."""
    lengths = web_texts(documents)
    batches = [lengths[first : first + _BATCH] for first in range(0, documents, _BATCH)]
    said = {"greedy": "95 %+", "first_fit": "96-98 %", "best_fit": "98 %+"}
    for split, claim in ((False, "50 % fewer blocks"), (True, "few fewer blocks")):
        mode = "split" if split else "truncate"
        sizes = {
            "greedy": [b for batch in batches for b in greedy_blocks(batch.tolist(), split=split)]
        }
        for strategy in ("greedy", "first_fit", "best_fit"):
            name = "next fit (packprep's greedy)" if strategy == "greedy" else strategy
            planned = (planned_blocks(batch, strategy, split=split) for batch in batches)
            sizes[name] = [block for blocks in planned for block in blocks]
        best, greedy = len(sizes["best_fit"]), len(sizes["greedy"])
        title = f"best_fit against greedy, {mode}, in batches of {_BATCH:,} (Forgather)"
        fewer = f"{1 - best / greedy:.1%} fewer: {greedy:,} and {best:,}"
        yield title, claim, fewer, "web-like lengths, blocks of 4,096"
        for name, blocks in sizes.items():
            used = f"{sum(blocks) / (len(blocks) * _MAX_LENGTH):.2%}"
            yield f"utilization of {name}, {mode}", said.get(name, ""), used, "the same"


# --- compiled loops ---------------------------------------------------------------------------


def first_fit_decreasing(lengths: Lengths, capacity: int, room: Lengths) -> int:
    """Bins of first fit decreasing by the plain scan over bins; room: scratch, [documents]."""
    bins = 0
    for length in lengths:
        place = 0
        while place < bins and room[place] < length:
            place += 1
        if place == bins:
            room[place] = capacity
            bins += 1
        room[place] -= length
    return bins


def numba_factor(documents: int) -> Iterator[Row]:
    """The same loop interpreted and compiled."""
    lengths = np.sort(np.minimum(web_texts(documents), _MAX_LENGTH))[::-1].copy()
    compiled, room = numba.njit(first_fit_decreasing), np.empty(documents, np.int64)
    plain = median_seconds(lambda: first_fit_decreasing(lengths, _MAX_LENGTH, room), 1)
    fast = median_seconds(lambda: compiled(lengths, _MAX_LENGTH, room), 5)
    how = f"{documents:,} documents, a scan over all bins"
    factor = f"{plain / fast:.0f}x: {1e3 * plain:,.0f} and {1e3 * fast:,.2f} ms"
    yield "numba against Python, first fit decreasing (Axolotl)", "30-50x", factor, how


# --- loss by sample ---------------------------------------------------------------------------


def ways_of_loss(
    count: int,
) -> tuple[dict[str, Callable[[], object]], dict[str, Callable[[], Any]]]:
    """Ways to cut a flat tensor by lengths, and to sum the means of `count` sequences in it."""
    import torch

    from packprep.loaders import segment_means

    generator = torch.Generator().manual_seed(0)
    lengths: list[int] = torch.randint(50, 150, (count,), generator=generator).tolist()
    values = torch.randn(sum(lengths), generator=generator)
    mask = torch.rand(sum(lengths), generator=generator) < 0.9
    bounds = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)

    def slices(flat: Any) -> list[Any]:
        return [flat[first:last] for first, last in pairwise(bounds.tolist())]

    def means(parts: Iterable[Any], masks: Iterable[Any]) -> Any:
        pairs = zip(parts, masks, strict=True)
        return sum((x * m).sum() / m.sum().clamp(min=1) for x, m in pairs)

    cuts: dict[str, Callable[[], object]] = {
        "a loop": lambda: slices(values),
        "split": lambda: torch.split(values, lengths),
    }
    sums: dict[str, Callable[[], Any]] = {
        "a loop": lambda: means(slices(values), slices(mask)),
        "split": lambda: means(torch.split(values, lengths), torch.split(mask, lengths)),
        "segment_means": lambda: segment_means(values, mask, bounds).sum(),
    }
    return cuts, sums


def loss_rows(counts: Sequence[int], repeats: int) -> Iterator[Row]:
    """Cutting by lengths, and the sum of sample means, for several numbers of sequences."""
    import torch

    torch.set_num_threads(1)
    for count in counts:
        for ways, claim in zip(ways_of_loss(count), ("views", "sum of means"), strict=True):
            expected = ways["a loop"]()
            base = median_seconds(ways["a loop"], repeats, time.perf_counter)
            for name, way in [*ways.items()][1:]:
                if claim != "views" and abs(float(way()) - float(expected)) > 1e-3 * count:
                    raise click.ClickException(f"{name} gives {way()}, the loop {expected}")
                took = median_seconds(way, repeats, time.perf_counter)
                yield (
                    f"{claim} by {name}, {count:,} sequences (slime)",
                    "10-50x" if name == "split" else "",
                    f"{base / took:,.2f}x: {1e3 * took:.3f} ms",
                    f"a loop over slices: {1e3 * base:.3f} ms; one thread",
                )


# --- padding ----------------------------------------------------------------------------------


def padding_rows() -> Iterator[Row]:
    """What no plan says of padding: `packprep plan --padding-of-batch` has its share."""
    before, after = 3 * 2048 * (4 + 1), (512 + 128 + 2048) * (4 + 4) + 4 * 4
    sizes = f"{before / 1024:.1f} and {after / 1024:.1f} KiB: {1 - after / before:.1%}"
    yield "attention of 5 tokens padded to 7 (slime)", "49 %", f"{1 - 25 / 49:.1%}", "arithmetic"
    claim = "bytes of ids and masks, padded and packed, of 512, 128, 2,048 (slime)"
    yield claim, "30 %", sizes, "arithmetic"


@click.command(help=__doc__)
@click.option("-n", "--documents", default=100_000, help="Documents in batches of 1,000.")
@click.option("--loop", default=20_000, help="Documents of the loop that Python runs.")
@click.option("--repeats", default=21)
@click.option("--markdown", is_flag=True)
def main(documents: int, loop: int, repeats: int, markdown: bool) -> None:
    rows = [*blocks_in_batches(documents), *numba_factor(loop)]
    rows += [*loss_rows((10, 100, 1000), repeats), *padding_rows()]
    show(("claim", "said", "here", "how"), rows, markdown)


if __name__ == "__main__":
    main()
