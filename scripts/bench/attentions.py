"""Time and memory of each attention that keeps the documents of a packed batch apart.

\b
python scripts/bench/attentions.py packed --device cuda
python scripts/bench/attentions.py packed --packs 1 --repeats 1

Forward and backward over one batch of PACKED, an output of packprep build: a batch that has more
documents than three quarters of the first 16. For comparison one causal document of all tokens,
which a batch without boundaries would be, and the documents padded to the longest. A mask is made
once a batch, so its time is on a line of its own.
"""

from collections.abc import Callable
from functools import cache, partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import click
import tables
import torch
from attention import Options, attention_runs, new, seconds
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from packprep.loaders import (
    PackedBatch,
    PackedLoader,
    to_flex_block_mask,
    to_hf_4d,
    varlen_attention,
)
from packprep.loaders.attention import Backend

Attention = Callable[..., Any]  # of q, k, v, cu_seqlens, max_seqlen, as varlen_attention
_HEAD_DIM = 128
_MOST_PADDED = 1 << 19


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

    ways["SDPA, 4-D mask"] = masked
    if device.type == "cuda":  # on a CPU it has no gradients
        blocks = to_flex_block_mask(batch)
        ways["FlexAttention"] = partial(_by_heads, _flex(), block_mask=blocks, enable_gqa=True)
    return ways


def one_document(q: Any, k: Any, v: Any, *_: Any) -> Any:
    """Causal attention over all tokens, without boundaries."""
    return _by_heads(scaled_dot_product_attention, q, k, v, is_causal=True, enable_gqa=True)


def _by_heads(function: Any, q: Any, k: Any, v: Any, *_: Any, **options: Any) -> Any:
    rows = (x.transpose(0, 1)[None] for x in (q, k, v))
    return function(*rows, **options)[0].transpose(0, 1)


@cache
def _flex() -> Any:
    return torch.compile(flex_attention)


def many_documents(loader: PackedLoader) -> PackedBatch:
    """Of the first 16 batches the one that has the fourth most segments."""
    batches = sorted(islice(loader, 16), key=lambda batch: batch.num_segments)
    return batches[-4:][0].torch()


def calls(batch: PackedBatch, options: Options) -> dict[str, Callable[[], Any]]:
    heads = (options.heads, options.kv_heads, options.kv_heads)
    q, k, v = (new(options, len(batch), count, _HEAD_DIM) for count in heads)

    def run(way: Attention) -> None:
        way(q, k, v, batch.cu_seqlens, batch.max_seqlen).sum().backward()

    ways = attentions(batch, options.dtype) | {"one causal document": one_document}
    found: dict[str, Callable[[], Any]] = {name: partial(run, way) for name, way in ways.items()}
    count, longest = batch.num_segments, batch.max_seqlen
    if count * longest <= _MOST_PADDED:
        found["padded, causal"] = attention_runs([longest] * count, options)[1]
    found["make to_flex_block_mask"] = partial(to_flex_block_mask, batch)
    found["make mask of to_hf_4d"] = partial(
        to_hf_4d, batch, SimpleNamespace(), dtype=options.dtype
    )
    return found


def peak(call: Callable[[], Any], device: str) -> str:
    """MiB of the GPU that the call takes at most."""
    if device != "cuda":
        return "not measured"
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return f"{(torch.cuda.max_memory_allocated() - before) / 2**20:,.0f}"


@click.command(help=__doc__)
@click.argument("packed", type=click.Path(exists=True, path_type=Path))
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda")
@click.option("--packs", default=8, show_default=True, help="Packs of the batch.")
@click.option("--heads", default=16, show_default=True)
@click.option("--kv-heads", default=4, show_default=True)
@click.option("--repeats", default=10, show_default=True)
@click.option("--markdown", is_flag=True, help="Print a Markdown table.")
def main(packed: Path, packs: int, markdown: bool, **values: Any) -> None:
    if values["device"] != "cuda":
        torch.set_num_threads(1)
    options = Options(width=values["heads"] * _HEAD_DIM, only=None, **values)
    batch = many_documents(PackedLoader(packed, packs)).to(options.device)
    click.echo(f"{len(batch):,} tokens, {batch.num_segments} documents, longest {batch.max_seqlen}")
    rows = (_row(name, call, options) for name, call in calls(batch, options).items())
    tables.show(("attention", "ms", "peak MiB"), rows, markdown)


def _row(name: str, call: Callable[[], Any], options: Options) -> tuple[str, str, str]:
    try:
        return name, f"{seconds(call, options) * 1e3:.2f}", peak(call, options.device)
    except RuntimeError as error:  # such as too little memory; the others still run
        return name, str(error).splitlines()[0][:90], ""


if __name__ == "__main__":
    main()
