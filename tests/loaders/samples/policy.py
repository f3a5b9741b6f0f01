"""A tiny policy in float64, its loss on packs and on one sample at a time, also over ranks.

`python -m tests.loaders.samples.policy FILE RANK` is one of four ranks, see `gradients_of_ranks`.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.nn.functional import scaled_dot_product_attention

from packprep.loaders import (
    PackedBatch,
    context_indices,
    context_slice,
    log_probs_and_entropy,
    pack_sequences,
    segment_means,
    tree_mask,
    unpack,
)

VOCABULARY, WIDTH = 16, 8
ROOT = Path(__file__).parents[3]
Gradients = list[torch.Tensor]


class Policy(nn.Module):
    """Embedding of tokens and positions, one layer of causal attention of two heads, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(64, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.double()

    def forward(
        self, tokens: Any, positions: Any, mask: Any, gather: Callable[[Any], Any] = lambda own: own
    ) -> Any:
        """Last hidden states, [T, width]. gather: keys or values of the tokens of all ranks."""
        hidden = self.tokens(tokens) + self.positions(positions)
        q, k, v = self.qkv(hidden).chunk(3, -1)
        q, k, v = (
            each.reshape(len(each), 2, -1).transpose(0, 1) for each in (q, gather(k), gather(v))
        )
        seen = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return hidden + self.out(seen.transpose(0, 1).reshape(len(tokens), WIDTH)).tanh()


def samples(seed: int, lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Rollouts: the first half of each is its prompt; some tokens of the response are masked."""
    random = np.random.default_rng(seed)
    return [
        {
            "tokens": random.integers(0, VOCABULARY, length),
            "loss_mask": (np.arange(length) >= length // 2) & (random.random(length) < 0.8),
            "advantages": random.normal(size=length),
            "rollout_log_probs": -random.random(length) * 4,
        }
        for length in lengths
    ]


def losses_of(log_probs: Any, entropy: Any, columns: Any) -> Any:
    """PPO's clipped loss of each token, less a bonus for entropy."""
    old, advantages = (
        torch.as_tensor(columns[name]) for name in ("rollout_log_probs", "advantages")
    )
    ratio = (log_probs - old).exp()
    clipped = ratio.clamp(0.8, 1.2)
    return -torch.minimum(ratio * advantages, clipped * advantages) - 0.01 * entropy


def gradients(loss: Any, model: Policy) -> Gradients:
    return [*torch.autograd.grad(loss, [*model.parameters()])]


def one_by_one(rollouts: Sequence[dict[str, Any]], mean: str) -> Gradients:
    """Gradients of one sample at a time through the model, with log-probabilities spelled out."""
    model = Policy()
    losses, masks = [], []
    for sample in rollouts:
        tokens = torch.as_tensor(sample["tokens"])
        if len(tokens) < 2:
            continue
        places = torch.arange(len(tokens))
        hidden = model(tokens, places, places[:, None] >= places)
        every = model.head(hidden[:-1]).log_softmax(-1)
        chosen = every.gather(1, tokens[1:, None])[:, 0]
        entropy = -(every.exp() * every).sum(-1)
        columns = {name: values[1:] for name, values in sample.items() if name != "prompt"}
        losses.append(losses_of(chosen, entropy, columns))
        masks.append(torch.as_tensor(columns["loss_mask"]))
    sums = [(loss * mask).sum() for loss, mask in zip(losses, masks, strict=True)]
    counts = [int(mask.sum()) for mask in masks]
    if mean == "token":
        return gradients(torch.stack(sums).sum() / sum(counts), model)
    means = [one / max(count, 1) for one, count in zip(sums, counts, strict=True)]
    return gradients(torch.stack(means).sum() / len(rollouts), model)


def mean_of(packs: Sequence[PackedBatch], losses: Sequence[Any], mean: str) -> Any:
    """Mean over the trained tokens, or over the samples, of the losses of all packs."""
    masks = [pack.labels_as("hf") != -100 for pack in packs]
    if mean == "token":
        trained = sum(int(mask.sum()) for mask in masks)
        return sum((loss * mask).sum() for loss, mask in zip(losses, masks, strict=True)) / trained
    means = [
        segment_means(loss, mask, pack.cu_seqlens).sum()
        for pack, loss, mask in zip(packs, losses, masks, strict=True)
    ]
    return sum(means) / sum(int((pack.document_ids >= 0).sum()) for pack in packs)


def segment_mask(pack: PackedBatch) -> Any:
    """bool [T, T], True where a token (row) sees another: before it, in its segment."""
    segments = torch.repeat_interleave(
        torch.arange(pack.num_segments), pack.cu_seqlens.long().diff()
    )
    places = torch.arange(len(segments))
    return (segments[:, None] == segments) & (places[:, None] >= places)


def on_packs(rollouts: Sequence[dict[str, Any]], mean: str, **settings: Any) -> Gradients:
    """Gradients of the samples in packs."""
    model = Policy()
    packs = [pack.torch() for pack in pack_sequences(rollouts, **settings)]
    losses = []
    for pack in packs:
        hidden = model(pack.tokens, pack.position_ids, segment_mask(pack))
        both = log_probs_and_entropy(hidden, model.head.weight, pack, chunk=5)
        losses.append(losses_of(*both, pack.extra))
    return gradients(mean_of(packs, losses, mean), model)


def of_prompts(seed: int, prompts: int, each: int) -> list[dict[str, Any]]:
    """Rollouts of several samples of each prompt, with columns of their responses."""
    random = np.random.default_rng(seed)
    rollouts = []
    for prompt in range(prompts):
        start = random.integers(0, VOCABULARY, 6)
        for sample in range(each):
            response = random.integers(0, 2, 2 + sample % 3)
            advantage = random.normal() if sample else 0.5
            rollouts.append(
                {
                    "tokens": np.append(start, response),
                    "loss_mask": np.append(0 * start, np.ones_like(response)),
                    "advantages": np.append(0.0 * start, np.full(len(response), advantage)),
                    "rollout_log_probs": np.append(0.0 * start, -np.ones(len(response))),
                    "prompt": prompt,
                }
            )
        rollouts.append(rollouts[-each])  # shares its response, too
    return rollouts


def on_trees(
    rollouts: Sequence[dict[str, Any]], mean: str, max_tokens: int
) -> tuple[Gradients, int]:
    """Gradients of the samples in packs of trees, and the tokens of these."""
    model = Policy()
    packs = [
        pack.torch()
        for pack in pack_sequences(rollouts, max_tokens=max_tokens, share_prefixes="prompt")
    ]
    sums, trained = [], 0
    for pack in packs:
        hidden = model(pack.tokens, pack.position_ids, tree_mask(pack))
        both = log_probs_and_entropy(hidden, model.head.weight, pack, chunk=5)
        losses = losses_of(*both, pack.extra)
        if mean == "token":
            sums.append((pack.label_weights * losses).sum())
            trained += int(pack.label_weights.sum())
        else:
            rows = zip(unpack(losses, pack), unpack(pack.labels != -100, pack), strict=True)
            sums += [(values * mask).sum() / mask.sum() for values, mask in rows]
            trained += len(pack.rows["row_ids"])
    return gradients(sum(sums) / trained, model), sum(map(len, packs))


class _OfAllRanks(torch.autograd.Function):
    """Keys or values of all ranks; their gradients are sums over the ranks, which all read them."""

    @staticmethod
    def forward(ctx: Any, own: Any, group: Any, rank: int) -> Any:
        ctx.group, ctx.place = group, slice(rank * len(own), (rank + 1) * len(own))
        parts = [torch.empty_like(own) for _ in range(distributed.get_world_size(group))]
        distributed.all_gather(parts, own.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        whole = gradients[0].clone()
        distributed.all_reduce(whole, group=ctx.group)
        return whole[ctx.place], None, None


every_rank: Any = _OfAllRanks.apply


def on_slices(
    rollouts: Sequence[dict[str, Any]], mean: str, layout: Any, rank: int, size: int, group: Any
) -> Gradients:
    """Gradients of the samples in packs of which each rank of the group has a slice."""
    model = Policy()
    packs = [
        pack.torch()
        for pack in pack_sequences(
            rollouts, max_tokens=24, labels="shifted", cp_size=size, cp_layout=layout
        )
    ]
    losses = []
    for pack in packs:
        part = context_slice(pack, rank, size, layout)
        boundaries = pack.cu_seqlens.numpy()
        orders = [context_indices(boundaries, each, size, layout) for each in range(size)]
        place = torch.from_numpy(np.argsort(np.concatenate(orders)))

        def gather(own: Any, place: Any = place) -> Any:
            return every_rank(own, group, rank)[place]

        mask = segment_mask(pack)[torch.from_numpy(orders[rank])]
        hidden = model(part.tokens, part.position_ids, mask, gather)
        both = log_probs_and_entropy(
            hidden, model.head.weight, part, chunk=5, cp_layout=layout, cp_group=group
        )
        losses.append(losses_of(*both, pack.extra))
    sums = gradients(mean_of(packs, losses, mean), model)
    for gradient in sums:
        distributed.all_reduce(gradient, group=group)
    return sums


CASES = [
    (size, layout, mean)
    for size in (2, 4)
    for layout in ("contiguous", "zigzag")
    for mean in ("token", "sample")
]


def gradients_of_ranks(folder: Path) -> list[list[Gradients]]:
    """Gradients of each of `CASES` on each of four processes with gloo."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.loaders.samples.policy", str(folder), str(rank)], cwd=ROOT
        )
        for rank in range(4)
    ]
    assert [process.wait(120) for process in processes] == [0] * 4
    return [torch.load(folder / f"{rank}.pt") for rank in range(4)]


ROLLOUTS = samples(1, [9, 1, 0, 12, 5, 16, 7, 2])


def run_rank(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=4
    )
    pairs = [distributed.new_group([first, first + 1]) for first in (0, 2)]
    groups = {2: pairs[rank // 2], 4: distributed.group.WORLD}
    found = [
        on_slices(ROLLOUTS, mean, layout, rank % size, size, groups[size])
        for size, layout, mean in CASES
    ]
    torch.save(found, folder / f"{rank}.pt")
    packs = pack_sequences(ROLLOUTS[rank:], max_tokens=16, world_size=4)
    assert len(packs) == len(pack_sequences(ROLLOUTS, max_tokens=16)), "all ranks as the longest"
    distributed.destroy_process_group()


if __name__ == "__main__":
    run_rank(Path(sys.argv[1]), int(sys.argv[2]))
