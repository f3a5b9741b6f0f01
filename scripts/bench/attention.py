"""Savings of packing in a training step.

One packed sequence through varlen attention, against the padded batch.

\b
python scripts/bench/attention.py --device cuda
python scripts/bench/attention.py --width 256 --heads 4 --kv-heads 2 --only "mix of eight"

For each mix of lengths, times forward and backward of attention alone and of a whole transformer
block, over the documents packed into one sequence and over the same documents padded to the
longest. The padded batch runs torch's fused causal attention with no mask, which is correct
because padding is at the end: the best that padding can do. The padding ratio is padded tokens over
real ones. The cost of attention grows with the square of lengths, so its saving can be larger.
Times are medians, on a GPU of events, on a CPU of the CPU time of one thread.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import tables
import torch
from torch.nn import functional

from packprep.loaders import attention_backend, varlen_attention

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from train_tiny import Block, rotate


@dataclass(frozen=True)
class Options:
    """Values of the command line."""

    device: str
    width: int
    heads: int
    kv_heads: int
    repeats: int
    only: str | None

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device == "cuda" else torch.float32


def mixes(seed: int = 0) -> dict[str, list[int]]:
    """Lengths of the documents of one batch, in tokens."""
    generator = torch.Generator().manual_seed(seed)

    def log_normal(count: int, mean: float, spread: float, most: int) -> list[int]:
        values = (
            torch.randn(count, generator=generator)
            .mul(spread)
            .add(mean)
            .exp()
            .long()
            .clamp(8, most)
        )
        return [int(value) for value in values]

    return {
        "mix of eight": [512, 256, 1024, 128, 768, 2048, 384, 640],
        "equal": [1024] * 8,
        "chat": log_normal(32, 5.3, 0.8, 2048),
        "web": log_normal(16, 6.0, 1.1, 4096),
        "short and one long": [64] * 31 + [4096],
    }


def attention_runs(
    lengths: list[int], options: Options
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Forward and backward of attention alone: packed, padded."""
    cu_seqlens, longest = boundaries(lengths, options), max(lengths)
    dim = options.width // options.heads

    def tensors(*shape: int) -> list[torch.Tensor]:
        heads = (options.heads, options.kv_heads, options.kv_heads)
        return [new(options, *shape, count, dim) for count in heads]

    flat, batch = tensors(sum(lengths)), tensors(len(lengths), longest)

    def packed() -> None:
        q, k, v = flat
        varlen_attention(q, k, v, cu_seqlens, longest).sum().backward()

    def padded() -> None:
        q, k, v = (tensor.transpose(1, 2) for tensor in batch)
        out: Any = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out.sum().backward()

    return packed, padded


def block_runs(
    lengths: list[int], options: Options
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Forward and backward of a transformer block: packed, padded."""
    cu_seqlens, longest = boundaries(lengths, options), max(lengths)
    block = Block(options.width, options.heads, options.kv_heads).to(options.device, options.dtype)
    x_flat = new(options, sum(lengths), options.width)
    x_batch = new(options, len(lengths), longest, options.width)
    angles = torch.rand(
        max(sum(lengths), longest * len(lengths)), block.dim // 2, device=options.device
    )
    cos, sin = angles.cos().to(options.dtype), angles.sin().to(options.dtype)

    def packed() -> None:
        block(
            x_flat, cos[: sum(lengths)], sin[: sum(lengths)], cu_seqlens, longest
        ).sum().backward()

    def padded() -> None:
        rows = x_batch.flatten(0, 1)
        heads = block.qkv(block.before_attention(rows)).view(len(rows), -1, block.dim)
        q, k, v = heads.split([block.heads, block.kv_heads, block.kv_heads], dim=1)
        q, k = (
            rotate(q, cos[: len(rows)], sin[: len(rows)]),
            rotate(k, cos[: len(rows)], sin[: len(rows)]),
        )
        q, k, v = (
            tensor.view(len(lengths), longest, -1, block.dim).transpose(1, 2)
            for tensor in (q, k, v)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out = rows + block.out(seen.transpose(1, 2).reshape(len(rows), -1))
        gate, value = block.up(block.before_mlp(out)).chunk(2, dim=-1)
        (out + block.down(functional.silu(gate) * value)).sum().backward()

    return packed, padded


def boundaries(lengths: list[int], options: Options) -> torch.Tensor:
    return torch.tensor([0, *lengths], device=options.device).cumsum(0).to(torch.int32)


def new(options: Options, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=options.device, dtype=options.dtype, requires_grad=True)


def seconds(run: Callable[[], None], options: Options) -> float:
    """Median of `repeats`, after two to warm up."""
    times = []
    for repeat in range(options.repeats + 2):
        if options.device == "cuda":
            cuda: Any = torch.cuda
            first, last = (cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            run()
            last.record()
            torch.cuda.synchronize()
            taken = first.elapsed_time(last) / 1e3
        else:
            start = time.process_time()
            run()
            taken = time.process_time() - start
        if repeat >= 2:
            times.append(taken)
    return float(statistics.median(times))


@click.command(help=__doc__)
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda")
@click.option("--width", default=2048, show_default=True)
@click.option("--heads", default=16, show_default=True)
@click.option("--kv-heads", default=4, show_default=True)
@click.option("--repeats", default=10, show_default=True)
@click.option("--only", help="The name of one mix.")
@click.option("--markdown", is_flag=True, help="Print a Markdown table.")
def main(markdown: bool, **values: Any) -> None:
    options = Options(**values)
    torch.manual_seed(0)
    if options.device != "cuda":
        torch.set_num_threads(1)
    head = torch.zeros(
        1, options.heads, options.width // options.heads, device=options.device, dtype=options.dtype
    )
    click.echo(
        f"width {options.width}, {options.heads} heads over {options.kv_heads}, {options.device}, "
        f"{str(options.dtype).removeprefix('torch.')}, packed attention: {attention_backend(head)}"
    )
    columns = (
        "mix",
        "tokens",
        "padding ratio",
        *(
            f"{part} {how}"
            for part in ("attention", "block")
            for how in ("packed, ms", "padded, ms", "speed-up")
        ),
        "block speed-up / ratio",
    )
    rows = (
        _row(name, lengths, options)
        for name, lengths in mixes().items()
        if options.only in (None, name)
    )
    tables.show(columns, rows, markdown)


def _row(name: str, lengths: list[int], options: Options) -> list[str]:
    ratio = len(lengths) * max(lengths) / sum(lengths)
    attention = [seconds(run, options) * 1e3 for run in attention_runs(lengths, options)]
    block = [seconds(run, options) * 1e3 for run in block_runs(lengths, options)]
    gains = [times[1] / times[0] for times in (attention, block)]
    figures = [*attention, gains[0], *block, gains[1], gains[1] / ratio]
    return [name, f"{sum(lengths):,}", f"{ratio:.2f}", *(f"{figure:.2f}" for figure in figures)]


if __name__ == "__main__":
    main()
