"""Savings of packing in a training step, and the cost of each attention that keeps documents apart.

\b
python scripts/bench/attention.py --device cuda
python scripts/bench/attention.py --width 256 --heads 4 --kv-heads 2 --only "mix of eight"
python scripts/bench/attention.py packed --device cuda

Without PACKED: for each mix of lengths, forward and backward of a transformer block, over the
documents in one sequence and over the same documents padded to the longest. The padded batch runs
torch's fused causal attention with no mask, which is correct because padding is at the end: the
best that padding can do. The padding ratio is padded tokens over real ones.

With PACKED, an output of packprep build: each attention over a batch of it, forward and backward,
and how its result differs from the reference; one causal document of all tokens, which a batch
without boundaries would be; and what makes the masks.

Times are medians, on a GPU of events, on a CPU of the CPU time of one thread.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import click
import torch
from common import show
from torch.nn.functional import scaled_dot_product_attention, silu

from packprep.loaders import (
    PackedBatch,
    PackedLoader,
    attention_backend,
    to_flex_block_mask,
    to_hf_4d,
    varlen_attention,
)
from packprep.loaders.attention import Backend

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from train_tiny import Block, rotate

Call = Callable[[], Any]
Attention = Callable[..., Any]  # of q, k, v, cu_seqlens, max_seqlen, as varlen_attention


@dataclass(frozen=True)
class Options:
    """Values of the command line."""

    device: str
    width: int
    heads: int
    kv_heads: int
    repeats: int

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device == "cuda" else torch.float32

    def new(self, *shape: int) -> torch.Tensor:
        """Random values."""
        return torch.randn(*shape, device=self.device, dtype=self.dtype, requires_grad=True)

    def qkv(self, *shape: int) -> list[torch.Tensor]:
        """Random queries, keys and values."""
        heads = (self.heads, self.kv_heads, self.kv_heads)
        return [self.new(*shape, count, self.width // self.heads) for count in heads]


def mixes() -> dict[str, list[int]]:
    """Lengths of the documents of one batch, in tokens."""
    generator = torch.Generator().manual_seed(0)

    def log_normal(count: int, mean: float, spread: float, most: int) -> list[int]:
        drawn = torch.randn(count, generator=generator).mul(spread).add(mean).exp()
        return [int(value) for value in drawn.long().clamp(8, most)]

    return {
        "mix of eight": [512, 256, 1024, 128, 768, 2048, 384, 640],
        "equal": [1024] * 8,
        "chat": log_normal(32, 5.3, 0.8, 2048),
        "web": log_normal(16, 6.0, 1.1, 4096),
        "short and one long": [64] * 31 + [4096],
    }


def boundaries(lengths: list[int], options: Options) -> torch.Tensor:
    return torch.tensor([0, *lengths], device=options.device).cumsum(0).to(torch.int32)


def blocks(lengths: list[int], options: Options) -> tuple[Call, Call]:
    """Forward and backward of a transformer block: packed, padded."""
    ends, longest, total = boundaries(lengths, options), max(lengths), sum(lengths)
    block = Block(options.width, options.heads, options.kv_heads).to(options.device, options.dtype)
    flat, rows = (options.new(count, options.width) for count in (total, longest * len(lengths)))
    angles = torch.rand(len(rows), block.dim // 2, device=options.device)
    cos, sin = angles.cos().to(options.dtype), angles.sin().to(options.dtype)

    def padded() -> None:
        heads = block.qkv(block.before_attention(rows)).view(len(rows), -1, block.dim)
        q, k, v = heads.split([block.heads, block.kv_heads, block.kv_heads], dim=1)
        q, k, v = (
            tensor.view(len(lengths), longest, -1, block.dim).transpose(1, 2)
            for tensor in (rotate(q, cos, sin), rotate(k, cos, sin), v)
        )
        seen = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out = rows + block.out(seen.transpose(1, 2).reshape(len(rows), -1))
        gate, value = block.up(block.before_mlp(out)).chunk(2, dim=-1)
        (out + block.down(silu(gate) * value)).sum().backward()

    places = cos[:total], sin[:total]
    return lambda: block(flat, *places, ends, longest).sum().backward(), padded


def attentions(batch: PackedBatch, dtype: torch.dtype) -> dict[str, Attention]:
    """Those that can run; prints why others cannot. The last two are for this batch alone."""
    device = batch.tokens.device
    q = torch.zeros(8, 2, 64, device=device, dtype=dtype)
    one = torch.tensor([0, 8], dtype=torch.int32, device=device)
    ways: dict[str, Attention] = {}
    for backend in get_args(Backend):
        try:
            varlen_attention(q, q, q, one, 8, backend=backend)
            ways[backend] = partial(varlen_attention, backend=backend)
        except ValueError as error:
            click.echo(f"not run: {str(error).split(';')[0]}")
    mask = to_hf_4d(batch, SimpleNamespace(), dtype=dtype)["attention_mask"]

    def masked(q: Any, k: Any, v: Any, *_: Any) -> Any:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        return _by_heads(scaled_dot_product_attention, q, k, v, attn_mask=mask)

    ways["SDPA with a 4-D mask"] = masked
    if device.type == "cuda":  # on a CPU it has no gradients
        from torch.nn.attention.flex_attention import flex_attention

        flex, of_batch = torch.compile(flex_attention), to_flex_block_mask(batch)
        ways["FlexAttention"] = partial(_by_heads, flex, block_mask=of_batch, enable_gqa=True)
    return ways


def _by_heads(function: Any, q: Any, k: Any, v: Any, *_: Any, **options: Any) -> Any:
    rows = (x.transpose(0, 1)[None] for x in (q, k, v))
    return function(*rows, **options)[0].transpose(0, 1)


def many_documents(loader: PackedLoader) -> PackedBatch:
    """Of the first 16 batches the one that has the fourth most segments."""
    batches = sorted(islice(loader, 16), key=lambda batch: batch.num_segments)
    return batches[-4:][0].torch()


def calls(batch: PackedBatch, options: Options) -> Iterator[tuple[str, Call, str]]:
    """Name, forward and backward, and difference to the reference; then what makes the masks."""
    q, k, v = options.qkv(len(batch))
    ends = batch.cu_seqlens, batch.max_seqlen
    causal = partial(_by_heads, scaled_dot_product_attention, is_causal=True, enable_gqa=True)
    ways = attentions(batch, options.dtype) | {"one causal document": causal}
    expected = ways["reference"](q, k, v, *ends).detach()
    for name, way in ways.items():
        run = partial(lambda way: way(q, k, v, *ends).sum().backward(), way)
        yield name, run, f"{float((way(q, k, v, *ends).detach() - expected).abs().max()):.0e}"
    yield "to make to_flex_block_mask", partial(to_flex_block_mask, batch), ""
    mask = partial(to_hf_4d, batch, SimpleNamespace(), dtype=options.dtype)
    yield "to make the mask of to_hf_4d", mask, ""


def milliseconds(run: Call, options: Options) -> float:
    """Median of `repeats`, after two to warm up."""
    times = []
    for _ in range(options.repeats + 2):
        if options.device == "cuda":
            cuda: Any = torch.cuda
            first, last = (cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            run()
            last.record()
            torch.cuda.synchronize()
            times.append(first.elapsed_time(last))
        else:
            start = time.process_time()
            run()
            times.append(1e3 * (time.process_time() - start))
    return float(statistics.median(times[2:]))


def peak(call: Call, device: str) -> str:
    """MiB of the GPU that the call takes at most."""
    if device != "cuda":
        return ""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return f"{(torch.cuda.max_memory_allocated() - before) / 2**20:,.0f}"


def of_batch(batch: PackedBatch, options: Options) -> Iterator[tuple[str, ...]]:
    """A row for each attention."""
    for name, call, difference in calls(batch, options):
        took = f"{milliseconds(call, options):.2f}"
        yield name, took, peak(call, options.device), difference


def of_mixes(only: str | None, options: Options) -> Iterator[tuple[str, ...]]:
    """A row for each mix of lengths."""
    for name, lengths in mixes().items():
        if only in (None, name):
            ratio = len(lengths) * max(lengths) / sum(lengths)
            ours, padded = (milliseconds(run, options) for run in blocks(lengths, options))
            figures = (ratio, ours, padded, padded / ours)
            yield name, f"{sum(lengths):,}", *(f"{figure:.2f}" for figure in figures)


@click.command(help=__doc__)
@click.argument("packed", required=False, type=click.Path(exists=True, path_type=Path))
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda")
@click.option("--width", default=2048, show_default=True)
@click.option("--heads", default=16, show_default=True)
@click.option("--kv-heads", default=4, show_default=True)
@click.option("--repeats", default=10, show_default=True)
@click.option("--packs", default=8, show_default=True, help="Packs of the batch of PACKED.")
@click.option("--only", help="The name of one mix.")
@click.option("--markdown", is_flag=True, help="Print a Markdown table.")
def main(packed: Path | None, packs: int, only: str | None, markdown: bool, **values: Any) -> None:
    options = Options(**values)
    torch.manual_seed(0)
    if options.device != "cuda":
        torch.set_num_threads(1)
    head = torch.zeros(1, 1, options.width // options.heads, dtype=options.dtype)
    click.echo(
        f"width {options.width}, {options.heads} heads over {options.kv_heads}, {options.device}, "
        f"{options.dtype}, attention of packs: {attention_backend(head.to(options.device))}"
    )
    if packed is not None:
        batch = many_documents(PackedLoader(packed, packs)).to(options.device)
        sizes = f"{batch.num_segments} documents, longest {batch.max_seqlen}"
        click.echo(f"{len(batch):,} tokens, {sizes}")
        show(("attention", "ms", "peak MiB", "differs by"), of_batch(batch, options), markdown)
        return
    titles = ("mix", "tokens", "padding ratio", "packed, ms", "padded, ms", "faster by")
    show(titles, of_mixes(only, options), markdown)


if __name__ == "__main__":
    main()
