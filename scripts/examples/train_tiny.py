"""Train a small transformer on packed shards, with varlen_attention and exact resume.

\b
packprep build docs/*.jsonl.gz -o packed --tokenizer tokenizer.json --max-length 4096
python scripts/examples/train_tiny.py packed --steps 20 --checkpoint tiny.pt
torchrun --nproc-per-node 2 scripts/examples/train_tiny.py packed --packs 2 --steps 20

Prints the loss of every step, and at the end tokens per second and the loader's share of a step.
The loss is the mean over all labels of the global batch, so it does not depend on the number of
processes. A killed run with --checkpoint can be started again and has the same losses as a run
without a kill.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import torch
from torch import nn
from torch.nn import functional

from packprep.loaders import PackedBatch, PackedLoader, PackedShards, varlen_attention

_WARM_UP = 2  # steps that do not count for the speed


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions (Su et al., 2021): x [T, heads, dim], cos and sin [T, dim / 2]."""
    even, odd = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([even * cos - odd * sin, odd * cos + even * sin], dim=-1)


class Block(nn.Module):  # type: ignore[misc, unused-ignore]
    """Attention over grouped queries, then a gated layer; both with a norm and a residual."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, width // heads
        self.before_attention, self.before_mlp = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.dim, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        cu_seqlens: torch.Tensor,
        max_seqlen: int,
    ) -> torch.Tensor:
        heads = self.qkv(self.before_attention(x)).view(len(x), -1, self.dim)
        q, k, v = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        x = x + self.out(varlen_attention(q, k, v, cu_seqlens, max_seqlen).reshape(len(x), -1))
        gate, value = self.up(self.before_mlp(x)).chunk(2, dim=-1)
        out: torch.Tensor = x + self.down(functional.silu(gate) * value)
        return out


class Tiny(nn.Module):  # type: ignore[misc, unused-ignore]
    """A causal language model over one packed sequence."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, kv_heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        places = torch.arange(0, width // heads, 2) / (width // heads)
        self.register_buffer("frequencies", 10000.0**-places, persistent=False)

    def forward(self, batch: PackedBatch) -> torch.Tensor:
        """Sum of the losses of the batch's labels."""
        angles = batch.position_ids[:, None] * self.frequencies
        x = self.embedding(batch.tokens)
        for block in self.blocks:
            x = block(x, angles.cos(), angles.sin(), batch.cu_seqlens, batch.max_seqlen)
        logits = self.head(self.norm(x)).float()
        return functional.cross_entropy(logits, batch.labels, ignore_index=-100, reduction="sum")


def summed(value: torch.Tensor) -> torch.Tensor:
    """Sum of a tensor over all ranks, in place."""
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(value)
    return value


def train_step(
    model: Tiny, optimizer: torch.optim.Optimizer, batch: PackedBatch, items: torch.Tensor
) -> torch.Tensor:
    """One step on the global batch. items: labels of this rank's batch.

    Returns the mean loss over all labels.
    """
    items = summed(items)
    with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=batch.tokens.is_cuda):
        loss = model(batch) / items
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():  # sums: every rank has divided by the labels of all ranks
        if parameter.grad is not None:
            summed(parameter.grad)
    optimizer.step()
    return summed(loss.detach().clone())


def batches(loader: PackedLoader) -> Iterator[PackedBatch]:
    """Batches of this epoch and of all that follow."""
    while True:
        yield from loader
        loader.set_epoch(loader.epoch + 1)


@click.command(help=__doc__)
@click.argument("shards", type=click.Path(exists=True, path_type=Path))
@click.option("--split", help="Split to train on, if there are several.")
@click.option("--steps", default=20, show_default=True, help="Those before a resume included.")
@click.option("--packs", default=1, show_default=True, help="Packs per batch of one rank.")
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Written after every step.")
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda")
@click.option("--seed", default=0, show_default=True)
@click.option("--lr", default=1e-3, show_default=True)
@click.option("--width", default=256, show_default=True)
@click.option("--layers", default=4, show_default=True)
@click.option("--heads", default=8, show_default=True)
@click.option("--kv-heads", default=2, show_default=True)
def main(
    shards: Path,
    split: str | None,
    steps: int,
    packs: int,
    checkpoint: Path | None,
    device: str,
    seed: int,
    lr: float,
    **sizes: int,
) -> None:
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
        device += f":{os.environ['LOCAL_RANK']}" if device == "cuda" else ""
    torch.manual_seed(seed)
    opened = PackedShards(shards, split=split)
    loader = PackedLoader(
        opened,
        packs,
        seed=seed,
        rank=rank,
        world_size=world,
        labels="shifted",
        pin_memory=device != "cpu",
    )
    model = Tiny(opened.vocab_size, **sizes).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    done = 0
    if checkpoint and checkpoint.exists():
        state: dict[str, Any] = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        done = state["step"]
    given, tokens, waited, began = batches(loader), 0, 0.0, time.perf_counter()
    for step in range(done + 1, steps + 1):
        if step == done + 1 + _WARM_UP:
            tokens, waited, began = 0, 0.0, time.perf_counter()
        asked = time.perf_counter()
        batch = next(given)
        # Counted before the batch moves, so that nothing waits for the GPU.
        items = torch.tensor(batch.num_items, device=device)
        tokens += batch.num_real_tokens
        moved = batch.to(device, non_blocking=True)
        waited += time.perf_counter() - asked
        loss = train_step(model, optimizer, moved, items)
        if rank == 0:
            print(json.dumps({"step": step, "loss": round(loss.item(), 7)}), flush=True)
        if rank == 0 and checkpoint:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            temporary = checkpoint.with_suffix(".tmp")  # whole or not at all: a kill keeps the last
            torch.save({**state, "loader": loader.state_dict(), "step": step}, temporary)
            temporary.replace(checkpoint)
    if rank == 0 and steps > done + _WARM_UP:
        took = time.perf_counter() - began
        share = f"the loader takes {waited / took:.2%} of a step"
        print(
            f"{tokens * world / took:,.0f} tokens/s over {steps - done - _WARM_UP} steps, {share}"
        )
    if world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
