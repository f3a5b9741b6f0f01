"""Train a small transformer on packed shards.

It has rotary positions, grouped queries, varlen_attention and exact resume.

\b
packprep build docs/*.jsonl.gz -o packed --tokenizer tokenizer.json --max-length 4096
python scripts/examples/train_tiny.py packed --steps 20 --checkpoint tiny.pt
torchrun --nproc-per-node 2 scripts/examples/train_tiny.py packed --packs 2 --steps 20

Prints the loss of every step, and at the end tokens per second, the loader's share of a step, and
utilization. The loss is the mean over all labels of the global batch, so it does not depend on the
number of processes. A killed run with --checkpoint can be started again and has the same losses as
a run without a kill.
"""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from torch import nn
from torch.nn import functional

from packprep.loaders import (
    PackedBatch,
    PackedLoader,
    PackedShards,
    attention_backend,
    varlen_attention,
)


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
        dim = width // heads
        self.register_buffer(
            "frequencies", 10000.0 ** (-torch.arange(0, dim, 2) / dim), persistent=False
        )

    def forward(self, batch: PackedBatch) -> torch.Tensor:
        """Sum of the losses of the batch's labels."""
        angles = batch.position_ids[:, None] * self.frequencies
        x = self.embedding(batch.tokens)
        for block in self.blocks:
            x = block(x, angles.cos(), angles.sin(), batch.cu_seqlens, batch.max_seqlen)
        logits = self.head(self.norm(x)).float()
        return functional.cross_entropy(logits, batch.labels, ignore_index=-100, reduction="sum")


def total_over_ranks(value: torch.Tensor) -> torch.Tensor:
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
    items = total_over_ranks(items)
    with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=batch.tokens.is_cuda):
        loss = model(batch) / items
    optimizer.zero_grad()
    loss.backward()
    if torch.distributed.is_initialized():
        # Sums, not means: every rank has divided by the labels of all ranks.
        gradients = [
            parameter.grad for parameter in model.parameters() if parameter.grad is not None
        ]
        sizes = [gradient.numel() for gradient in gradients]
        flat = total_over_ranks(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, piece in zip(gradients, torch.split(flat, sizes), strict=True):
            gradient.copy_(piece.view_as(gradient))
    optimizer.step()
    return total_over_ranks(loss.detach().clone())


def save(
    path: Path, model: Tiny, optimizer: torch.optim.Optimizer, loader: PackedLoader, step: int
) -> None:
    """Write a checkpoint whole or not at all: after a kill the previous one is still there."""
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loader": loader.state_dict(),
        "step": step,
    }
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    temporary.replace(path)


@dataclass(frozen=True)
class Options:
    """Values of the command line."""

    shards: Path
    split: str | None
    steps: int
    packs: int
    checkpoint: Path | None
    device: str
    seed: int
    lr: float
    width: int
    layers: int
    heads: int
    kv_heads: int


def train(options: Options) -> None:
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device(options.device)
    if world > 1:
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
    torch.manual_seed(options.seed)
    shards = PackedShards(options.shards, split=options.split)
    on_gpu = device.type == "cuda"
    loader = PackedLoader(
        shards,
        options.packs,
        seed=options.seed,
        rank=rank,
        world_size=world,
        labels="shifted",
        pin_memory=on_gpu,
    )
    model = Tiny(
        shards.manifest.vocab_size, options.width, options.layers, options.heads, options.kv_heads
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    step = 0
    if options.checkpoint and options.checkpoint.exists():
        state = torch.load(options.checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        step = state["step"]
    meter = Meter(device, shards.max_length * options.packs)
    while step < options.steps:
        batches = iter(loader)
        while step < options.steps:
            meter.start()
            batch = next(batches, None)
            if batch is None:
                loader.set_epoch(loader.epoch + 1)
                break
            # Counted before the batch moves, so that nothing waits for the GPU.
            items = torch.tensor(batch.num_items, device=device)
            moved = batch.to(device, non_blocking=True)
            meter.loaded(batch)
            loss = train_step(model, optimizer, moved, items)
            step += 1
            meter.stepped()
            if rank == 0:
                print(json.dumps({"step": step, "loss": round(loss.item(), 7)}), flush=True)
                if options.checkpoint:
                    save(options.checkpoint, model, optimizer, loader, step)
    if rank == 0 and meter.steps:
        head = torch.zeros(
            1,
            1,
            options.width // options.heads,
            device=device,
            dtype=torch.bfloat16 if on_gpu else None,
        )
        print(f"attention {attention_backend(head)}, {world} ranks; {meter.summary(world)}")
    if world > 1:
        torch.distributed.destroy_process_group()


class Meter:
    """Counter of tokens, seconds of waiting for batches, and seconds of steps.

    The first two steps are warm-up and do not count.
    """

    def __init__(self, device: torch.device, capacity: int) -> None:
        self._device, self._capacity = device, capacity
        self.steps = self._tokens = self._real = self._all_real = 0
        self._waiting = self._total = self._started = self._waited = 0.0

    def start(self) -> None:
        self._started = time.perf_counter()

    def loaded(self, batch: PackedBatch) -> None:
        self._waited = time.perf_counter() - self._started
        self._tokens, self._real = len(batch), batch.num_real_tokens

    def stepped(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.steps += 1
        if self.steps > 2:
            self._waiting += self._waited
            self._total += time.perf_counter() - self._started
            self._all_real += self._real

    def summary(self, world: int) -> str:
        steps = self.steps - 2
        if steps < 1:
            return "too few steps to measure: the first two are warm-up"
        rate, share = self._all_real * world / self._total, self._waiting / self._total
        return (
            f"{rate:,.0f} tokens/s over {steps} steps, loader {share:.2%} of the step, "
            f"utilization {self._all_real / steps / self._capacity:.2%}"
        )


@click.command(help=__doc__)
@click.argument("shards", type=click.Path(exists=True, path_type=Path))
@click.option("--split", help="Split to train on, if there are several.")
@click.option(
    "--steps",
    default=20,
    show_default=True,
    help="Total number of steps, including those before a resume.",
)
@click.option("--packs", default=1, show_default=True, help="Packs per batch of one rank.")
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    help="File to write after every step, and to resume from if it exists.",
)
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda")
@click.option("--seed", default=0, show_default=True)
@click.option("--lr", default=1e-3, show_default=True)
@click.option("--width", default=256, show_default=True)
@click.option("--layers", default=4, show_default=True)
@click.option("--heads", default=8, show_default=True)
@click.option("--kv-heads", default=2, show_default=True)
def main(**options: Any) -> None:
    train(Options(**options))


if __name__ == "__main__":
    main()
