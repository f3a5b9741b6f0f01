"""Curves of docs/train/from-unpacked.md: runs with and without packing, and with equal steps.

A small model learns sequences of 8 to 24 tokens whose next token follows from the last two. Each
run takes the same sequences once, with AdamW at one learning rate: unpacked, in packs with the
settings of the unpacked run, and in packs with `sequences_per_step`. Seeds decide weights and
order.

\b
$ python scripts/docs/equal_curves.py
...
docs/images/equal-curves.svg
"""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from drawings import IMAGES, LINE, svg, text
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from packprep import BuildConfig, build
from packprep.loaders import PackedBatch, PackedLoader

VOCABULARY, WIDTH, MAX_LENGTH = 12, 32, 64
SEQUENCES, MICRO_BATCH, ACCUMULATION, RATE = 6400, 16, 2, 3e-3
STEP = MICRO_BATCH * ACCUMULATION
RUNS = {  # colour, and dashes of the line
    "unpacked": ("#0969da", "none"),
    "packs, equal step": ("#1a7f37", "6 4"),
    "packs, same settings": ("#bc4c00", "none"),
}
Curve = list[tuple[int, float]]  # sequences trained, and the loss of sequences that never are


class Model(nn.Module):
    """One layer of causal attention, in which a token sees its own segment only."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(64, WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        wide = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        self.wide = nn.Sequential(*wide)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Any, positions: Any, segments: Any) -> Any:
        """Logits, [..., T, vocabulary]. All arguments: int64 [..., T]."""
        hidden = self.tokens(tokens) + self.positions(positions)
        places = torch.arange(tokens.shape[-1])
        mask = (segments[..., :, None] == segments[..., None, :]) & (places[:, None] >= places)
        query, key, value = self.qkv(hidden).chunk(3, -1)
        seen = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        hidden = hidden + self.out(seen)
        return self.head(hidden + self.wide(hidden))


def sequences(count: int, seed: int) -> list[list[int]]:
    """Sequences in which a token is a function of the two before it, nine times out of ten."""
    random, rule = np.random.default_rng(seed), np.random.default_rng(0)
    table = rule.integers(0, VOCABULARY, (VOCABULARY, VOCABULARY))
    made = []
    for length in random.integers(8, 25, count):
        tokens = random.integers(0, VOCABULARY, length)
        keeps = random.random(length) < 0.9
        for place in range(2, length):
            if keeps[place]:
                tokens[place] = table[tokens[place - 2], tokens[place - 1]]
        made.append(tokens.tolist())
    return made


def padded(rows: Sequence[Sequence[int]]) -> tuple[Any, ...]:
    """Tokens, positions, segments and labels of the next tokens, of rows padded to the longest."""
    longest = max(map(len, rows))
    tokens = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
    labels = torch.tensor([[*row[1:], *[-100] * (longest - len(row) + 1)] for row in rows])
    places = torch.arange(longest).expand_as(tokens)
    return tokens, places, torch.zeros_like(tokens), labels


def flat(batch: PackedBatch) -> tuple[Any, ...]:
    """The same of a batch of packs."""
    batch = batch.torch()
    lengths = batch.cu_seqlens.long().diff()
    segments = torch.arange(len(lengths)).repeat_interleave(lengths)
    return batch.tokens, batch.position_ids, segments, batch.labels_as("shifted")


def loss_of(model: Model, fields: tuple[Any, ...]) -> Any:
    """Sum of the losses of all labels."""
    logits = model(*fields[:3])
    return cross_entropy(logits.flatten(0, -2), fields[3].flatten(), reduction="sum")


Step = tuple[int, list[tuple[Any, ...]]]  # sequences, and the fields of each micro-batch


def unpacked_steps(rows: Sequence[list[int]], seed: int) -> Iterator[Step]:
    order = np.random.default_rng(seed).permutation(len(rows))
    for first, end in pairwise(range(0, len(rows) + 1, STEP)):
        chosen = [rows[number] for number in order[first:end]]
        parts = range(0, STEP, MICRO_BATCH)
        yield STEP, [padded(chosen[at : at + MICRO_BATCH]) for at in parts]


def packed_steps(loader: Iterable[PackedBatch]) -> Iterator[Step]:
    for batch in loader:
        yield batch.num_segments, [flat(part) for part in batch.micro_batches(4)]


def curve(steps: Iterable[Step], seed: int, held_out: tuple[Any, ...], points: int) -> Curve:
    """Train on the steps with the mean over the trained tokens of a step; measure between them."""
    torch.manual_seed(seed)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    labels, done, measured = int((held_out[3] != -100).sum()), 0, []
    goals = iter(np.linspace(0, SEQUENCES, points + 1)[1:])
    goal = next(goals)
    for count, parts in steps:
        trained = sum(int((fields[3] != -100).sum()) for fields in parts)
        optimizer.zero_grad()
        for fields in parts:
            (loss_of(model, fields) / trained).backward()
        optimizer.step()
        done += count
        if done >= goal - STEP / 2:
            with torch.no_grad():
                measured.append((done, float(loss_of(model, held_out)) / labels))
            goal = next((each for each in goals if each > done), np.inf)
    return measured


def curves(seeds: int, points: int) -> dict[str, list[Curve]]:
    """A curve of each run and seed."""
    torch.set_num_threads(1)
    rows, held_out = sequences(SEQUENCES, 1), padded(sequences(200, 2))
    found: dict[str, list[Curve]] = {name: [] for name in RUNS}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "rows.jsonl"
        source.write_text("".join(f'{{"input_ids": {row}}}\n' for row in rows))
        packed = str(Path(folder) / "packed")
        config = BuildConfig(
            sources=(str(source),),
            output=packed,
            input_ids_column="input_ids",
            vocab_size=VOCABULARY,
            max_length=MAX_LENGTH,
        )
        build(config)
        for seed in range(seeds):
            runs: list[Iterable[Step]] = [
                unpacked_steps(rows, seed),
                packed_steps(PackedLoader(packed, sequences_per_step=STEP, seed=seed)),
                packed_steps(PackedLoader(packed, STEP, seed=seed)),
            ]
            for name, steps in zip(RUNS, runs, strict=True):
                found[name].append(curve(steps, seed, held_out, points))
    return found


def at_goals(found: dict[str, list[Curve]], points: int) -> tuple[Any, dict[str, Any]]:
    """Sequences trained, [points], and the losses of each run there, [seeds, points]."""
    goals = np.linspace(0, SEQUENCES, points + 1)[1:]
    losses = {
        name: np.array([np.interp(goals, *np.array(one).T) for one in of_seeds])
        for name, of_seeds in found.items()
    }
    return goals, losses


def distances(losses: dict[str, Any]) -> dict[str, Any]:
    """Distance of each packed run's mean from the unpacked one, in ranges of its seeds."""
    unpacked, *packed = losses
    spread = np.ptp(losses[unpacked], 0)
    middle = losses[unpacked].mean(0)
    return {name: np.abs(losses[name].mean(0) - middle) / spread for name in packed}


def picture(goals: Any, losses: dict[str, Any]) -> str:
    """The mean of each run over its seeds, in a band from the lowest to the highest."""
    left, top, width, height = 44, 30, 302, 190
    every = np.concatenate(list(losses.values()))
    low, high = np.floor(every.min() * 2) / 2, np.ceil(every.max() * 2) / 2

    def path(values: Any) -> str:
        x = left + goals / SEQUENCES * width
        y = top + (high - values) / (high - low) * height
        return "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))

    parts = text(left, height + top + 34, "sequences trained", size=12, anchor="start")
    parts += text(4, 16, "loss of held-out sequences", size=12, anchor="start")
    for mark in np.arange(low, high + 0.1, 0.5):
        y = top + (high - mark) / (high - low) * height
        parts.append(f"<path d='M{left} {y:.1f}h{width}' stroke='{LINE}' stroke-opacity='.2'/>")
        parts += text(left - 6, y + 4, f"{mark:.1f}", size=12, anchor="end")
    for mark in (0, SEQUENCES // 2, SEQUENCES):
        place = left + mark / SEQUENCES * width
        parts += text(place, top + height + 16, f"{mark:,}", size=12)
    for number, (name, (colour, dashes)) in enumerate(RUNS.items()):
        values, line = losses[name], f"stroke='{colour}' stroke-dasharray='{dashes}'"
        band = f"M{path(values.min(0))}L{'L'.join(path(values.max(0)).split('L')[::-1])}Z"
        parts.append(f"<path d='{band}' fill='{colour}' fill-opacity='.2'/>")
        parts.append(f"<path d='M{path(values.mean(0))}' fill='none' {line} stroke-width='2'/>")
        y = top + height + 54 + 18 * number
        parts.append(f"<path d='M{left} {y - 4}h24' {line} stroke-width='3'/>")
        parts += text(left + 32, y, name, size=12, anchor="start")
    return svg(366, top + height + 100, parts)


@click.command(help=__doc__)
@click.option("--seeds", default=5, show_default=True, help="Runs of each kind.")
@click.option("--points", default=16, show_default=True, help="Measurements of a run.")
@click.option(
    "--images", type=click.Path(path_type=Path), default=IMAGES, show_default="docs/images"
)
def main(seeds: int, points: int, images: Path) -> None:
    goals, losses = at_goals(curves(seeds, points), points)
    print("sequences", *RUNS, sep="  ")
    for point, goal in enumerate(goals):
        cells = [values[:, point] for values in losses.values()]
        shown = [f"{each.mean():.3f} ({each.min():.3f} to {each.max():.3f})" for each in cells]
        print(f"{goal:9,.0f}", *shown, sep="  ")
    for name, distance in distances(losses).items():
        far = f"{distance.min():.2f} to {distance.max():.2f}"
        print(f"{name}: means {far} times the range of the unpacked seeds away")
    path = images / "equal-curves.svg"
    path.write_text(picture(goals, losses))
    print(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


if __name__ == "__main__":
    main()
