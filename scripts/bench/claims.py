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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import numba
import numpy as np
import tables
from common import median_seconds
from numpy.typing import NDArray
from packing import web_texts

from packprep.packing.api import pack_lengths

if TYPE_CHECKING:
    from torch import Tensor

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


def blocks_in_batches(documents: int) -> list[Row]:
    """Blocks and utilization of packing inside batches of 1,000 documents."""
    lengths = web_texts(documents)
    batches = [lengths[first : first + _BATCH] for first in range(0, documents, _BATCH)]
    rows: list[Row] = []
    for split, claim in ((False, "50 % fewer blocks"), (True, "few fewer blocks")):
        sizes = {
            "greedy": [b for batch in batches for b in greedy_blocks(batch.tolist(), split=split)]
        }
        for name, strategy in (
            ("next fit (packprep's greedy)", "greedy"),
            ("first_fit", "first_fit"),
            ("best_fit", "best_fit"),
        ):
            sizes[name] = [
                block for batch in batches for block in planned_blocks(batch, strategy, split=split)
            ]
        mode = "split" if split else "truncate"
        fewer = 1 - len(sizes["best_fit"]) / len(sizes["greedy"])
        whole = planned_blocks(lengths, "best_fit", split=split)
        rows.append(
            (
                f"best_fit against greedy, {mode}, in batches of {_BATCH:,} (Forgather)",
                claim,
                f"{fewer:.1%} fewer: {len(sizes['greedy']):,} and {len(sizes['best_fit']):,}",
                "web-like lengths, blocks of 4,096; greedy then puts one document into a block"
                if not split
                else f"greedy cuts documents where blocks end; one window: {len(whole):,}",
            )
        )
        said = {"greedy": "95 %+", "first_fit": "96-98 %", "best_fit": "98 %+"}
        for name, blocks in sizes.items():
            used = sum(blocks) / (len(blocks) * _MAX_LENGTH)
            rows.append(
                (
                    f"utilization of {name}, {mode}, in batches",
                    said.get(name, ""),
                    f"{used:.1%}",
                    "the same",
                )
            )
        used = sum(whole) / (len(whole) * _MAX_LENGTH)
        rows.append((f"utilization of best_fit, {mode}, one window", "", f"{used:.2%}", "the same"))
    return rows


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


def numba_factor(documents: int) -> list[Row]:
    """The same loop interpreted and compiled, and the whole plan of packprep."""
    lengths = np.sort(np.minimum(web_texts(documents), _MAX_LENGTH))[::-1].copy()
    compiled = numba.njit(first_fit_decreasing)
    room = np.empty(documents, np.int64)
    plain = median_seconds(lambda: first_fit_decreasing(lengths, _MAX_LENGTH, room), 1)
    fast = median_seconds(lambda: compiled(lengths, _MAX_LENGTH, room), 5)
    plan = median_seconds(lambda: pack_lengths(lengths, _MAX_LENGTH, "first_fit"), 5)
    return [
        (
            "numba against Python, first fit decreasing (Axolotl)",
            "30-50x",
            f"{plain / fast:.0f}x: {1e3 * plain:,.0f} and {1e3 * fast:,.2f} ms",
            f"{documents:,} documents, a scan over all bins",
        ),
        (
            "first_fit of packprep against the compiled scan",
            "",
            f"{fast / plan:.1f}x: {1e3 * plan:,.2f} ms",
            "on counts of equal lengths, with order and offsets",
        ),
    ]


# --- loss by sample ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Ways to split a flat tensor by lengths, and to sum the means of samples in it."""

    loop: Callable[[], object]
    split: Callable[[], object]
    by_loop: Callable[[], Any]
    others: dict[str, Callable[[], Any]]


def losses(count: int) -> Losses:
    """All ways for `count` sequences of 50 to 149 values."""
    import torch

    from packprep.loaders import segment_means

    generator = torch.Generator().manual_seed(0)
    lengths: list[int] = torch.randint(50, 150, (count,), generator=generator).tolist()
    total = sum(lengths)
    values = torch.randn(total, generator=generator)
    mask = torch.rand(total, generator=generator) < 0.9
    bounds = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    segment = torch.repeat_interleave(torch.arange(count), bounds.diff(), output_size=total)

    def slices(flat: "Tensor") -> list["Tensor"]:
        parts, start = [], 0
        for length in lengths:
            parts.append(flat[start : start + length])
            start += length
        return parts

    def means(parts: Iterable["Tensor"], masks: Iterable["Tensor"]) -> Any:
        pairs = zip(parts, masks, strict=True)
        return sum((x * m).sum() / m.sum().clamp(min=1) for x, m in pairs)

    def scattered(values: "Tensor", mask: "Tensor", segment: "Tensor") -> Any:
        sums = torch.zeros(count).index_add(0, segment, values * mask)
        kept = torch.zeros(count).index_add(0, segment, mask.float())
        return (sums / kept.clamp(min=1)).sum()

    def nested() -> Any:
        ragged = torch.nested.nested_tensor_from_jagged(values * mask, bounds.long())
        kept = torch.nested.nested_tensor_from_jagged(mask.float(), bounds.long())
        return (ragged.sum(dim=1) / kept.sum(dim=1).clamp(min=1)).sum()

    compiled = torch.compile(scattered, dynamic=False)
    return Losses(
        loop=lambda: slices(values),
        split=lambda: torch.split(values, lengths),
        by_loop=lambda: means(slices(values), slices(mask)),
        others={
            "split": lambda: means(torch.split(values, lengths), torch.split(mask, lengths)),
            "segment_means": lambda: segment_means(values, mask, bounds).sum(),
            "index_add, compiled": lambda: compiled(values, mask, segment),
            "nested tensors": nested,
        },
    )


def loss_rows(counts: Sequence[int], repeats: int) -> list[Row]:
    """Splitting by lengths, and the sum of sample means, for several numbers of sequences."""
    import torch

    torch.set_num_threads(1)
    rows: list[Row] = []
    for count in counts:
        ways = losses(count)
        loop, split = (
            median_seconds(ways.loop, repeats, time.perf_counter),
            median_seconds(ways.split, repeats, time.perf_counter),
        )
        rows.append(
            (
                f"split against slices in a loop, {count:,} sequences (slime)",
                "10-50x",
                f"{loop / split:.1f}x: {1e3 * loop:.3f} and {1e3 * split:.3f} ms",
                "views only, one thread",
            )
        )
        expected, base = (
            float(ways.by_loop()),
            median_seconds(ways.by_loop, repeats, time.perf_counter),
        )
        for name, way in ways.others.items():
            title = f"sum of sample means by {name}, {count:,} sequences"
            try:
                result = float(way())
            except RuntimeError as error:  # torch without a compiler or an operator
                rows.append((title, "", "not here", str(error).splitlines()[0][:60]))
                continue
            if abs(result - expected) > 1e-3 * max(1, abs(expected)):
                raise click.ClickException(f"{name} gives {result}, the loop {expected}")
            took = median_seconds(way, repeats, time.perf_counter)
            rows.append(
                (
                    title,
                    "10-50x" if name == "split" else "",
                    f"{base / took:,.2f}x: {1e3 * took:.3f} ms",
                    f"a loop over slices: {1e3 * base:.3f} ms",
                )
            )
    return rows


# --- padding ----------------------------------------------------------------------------------

_EIGHT = (512, 256, 1024, 128, 768, 2048, 384, 640)


def places(lengths: Sequence[int]) -> float:
    """Places for each token in a batch that is padded to its longest document."""
    return len(lengths) * max(lengths) / sum(lengths)


def padding_rows() -> list[Row]:
    """Padding of the batches that the guides show, and the bytes of both forms."""
    rows: list[Row] = []
    for lengths, said in (((5, 3, 7), "28.6 %"), ((512, 128, 2048), "56.25 %"), (_EIGHT, "64.8 %")):
        shown, padding = ", ".join(map(str, lengths)), 1 - 1 / places(lengths)
        rows.append(
            (f"padding of a batch of {shown} (slime)", said, f"{padding:.2%}", "arithmetic")
        )
    rows += [
        ("attention of 5 tokens padded to 7 (slime)", "49 %", f"{1 - 25 / 49:.1%}", "arithmetic"),
        (
            "padding of 100, 200, 150 padded to 256 (slime)",
            "41.4 %",
            f"{1 - 450 / 768:.1%}",
            "arithmetic",
        ),
        (
            "tokens computed for each token of the eight (slime)",
            "2.84x",
            f"{places(_EIGHT):.2f}x",
            "arithmetic; so `packprep plan` says",
        ),
        (
            "net of 5 % for attention and 2 % for packing (slime)",
            "2.6x",
            f"{places(_EIGHT) * 0.95 * 0.98:.2f}x",
            "arithmetic; both shares need a GPU",
        ),
        *memory_rows(),
        (
            "throughput, GPU utilization, memory of a training run",
            "2-3x, 60 to 95 %, -40 to -60 %",
            "not measured",
            "needs a GPU",
        ),
    ]
    return rows


def memory_rows() -> list[Row]:
    """Bytes of three sequences, padded and packed, counted in the arrays themselves."""
    lengths = (512, 128, 2048)
    longest, total = max(lengths), sum(lengths)
    padded = [np.zeros((3, longest), np.int32), np.zeros((3, longest), np.bool_)]
    packed = [np.zeros(total, np.int32), np.zeros(total, np.int32), np.zeros(4, np.int32)]
    before, after = (sum(array.nbytes for array in arrays) for arrays in (padded, packed))
    eight, most = sum(_EIGHT), 8 * max(_EIGHT)
    return [
        (
            "bytes of ids and mask, against ids, positions and bounds, of 512, 128, 2,048 (slime)",
            "30 KB, 21 KB: 30 %",
            f"{before / 1024:.1f} and {after / 1024:.1f} KiB: {1 - after / before:.1%}",
            "bytes of int32 and bool arrays",
        ),
        (
            "activations of the eight, in proportion to tokens (slime)",
            "35 % of padded",
            f"{eight / most:.1%}",
            "arithmetic",
        ),
    ]


@click.command(help=__doc__)
@click.option("-n", "--documents", default=100_000, help="Documents in batches of 1,000.")
@click.option("--loop", default=20_000, help="Documents of the loop that Python runs.")
@click.option("--repeats", default=21)
@click.option("--markdown", is_flag=True)
def main(documents: int, loop: int, repeats: int, markdown: bool) -> None:
    rows = [*blocks_in_batches(documents), *numba_factor(loop)]
    rows += loss_rows((10, 100, 1000), repeats)
    rows += padding_rows()
    tables.show(("claim", "said", "here", "how"), rows, markdown)


if __name__ == "__main__":
    main()
