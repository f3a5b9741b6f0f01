"""Rollouts in memory to packs and to a loss: CPU seconds of one thread.

\b
python scripts/bench/rl.py [--samples 1000] [--million 1000000] [--repeats 5]

First samples of 200 to 8,000 tokens with six columns, packed into 32,768 tokens, against the loop
that appends to Python lists and makes tensors of them. Its lists and its tensors are what a rollout
loop has; `pack_sequences` gets arrays, tensors, or the same lists. Then many short samples in a
process of its own, with the memory above its input. Last what a step costs: a small Llama on one
pack, and its log-probabilities with and without the entropy.
"""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import tables
from common import measure, median_seconds

from packprep.loaders import log_probs_and_entropy, pack_sequences, selective_log_probs, to_hf

BUDGET = 32_768
VOCABULARY = 32_000
COLUMNS = ("tokens", "loss_masks", "advantages", "returns", "rollout_log_probs", "ref_log_probs")


def rollouts(lengths: Any, seed: int = 0) -> dict[str, Any]:
    """Samples with six columns per token and their rewards, a list of arrays for each column."""
    random = np.random.default_rng(seed)
    ends = np.cumsum(lengths)[:-1]
    total = int(sum(lengths))
    flat = {
        "tokens": random.integers(0, VOCABULARY, total),
        "loss_masks": random.integers(0, 2, total, np.int32),
    }
    flat |= {name: random.random(total, np.float32) for name in COLUMNS[2:]}
    columns: dict[str, Any] = {name: np.split(values, ends) for name, values in flat.items()}
    return columns | {"rewards": random.random(len(lengths)).astype(np.float32)}


def list_loop(columns: dict[str, Any], budget: int) -> list[dict[str, Any]]:
    """Packs as a loop over samples makes them: extends lists, then makes a tensor of each.

    Samples are dealt to ceil(tokens / budget) packs, the longest first.
    """
    import torch

    lengths = [len(tokens) for tokens in columns["tokens"]]
    packs = math.ceil(sum(lengths) / budget)
    members: list[list[int]] = [[] for _ in range(packs)]
    for number, sample in enumerate(sorted(range(len(lengths)), key=lambda each: -lengths[each])):
        members[number % packs].append(sample)
    made = []
    for of_pack in members:
        boundaries, positions = [0], list[int]()
        flat: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        for sample in of_pack:
            for name, values in flat.items():
                values.extend(columns[name][sample])
            positions.extend(range(lengths[sample]))
            boundaries.append(boundaries[-1] + lengths[sample])
        pack = {
            name: torch.tensor(values, dtype=_dtype(torch, name)) for name, values in flat.items()
        }
        pack["position_ids"] = torch.tensor(positions, dtype=torch.int)
        pack["cu_seqlens"] = torch.tensor(boundaries, dtype=torch.int32)
        pack["rewards"] = torch.tensor([columns["rewards"][sample] for sample in of_pack])
        made.append(pack)
    return made


def _dtype(torch: Any, name: str) -> Any:
    return {"tokens": torch.long, "loss_masks": torch.int}.get(name, torch.float32)


def packing(samples: int, repeats: int) -> tuple[list[tuple[str, str, str]], float]:
    """Rows of the first table, and CPU seconds of a token in arrays."""
    import torch

    lengths = np.random.default_rng(1).integers(200, 8001, samples)
    arrays = rollouts(lengths)
    lists = {name: [each.tolist() for each in values] for name, values in arrays.items()}
    tensors: dict[str, Any] = {
        name: [torch.as_tensor(each) for each in values] for name, values in arrays.items()
    }
    tensors["rewards"] = torch.as_tensor(arrays["rewards"])
    prompts = {**arrays, "group": np.arange(samples) // 8}
    least = np.minimum.reduceat(lengths, np.arange(0, samples, 8)) // 2
    half = np.repeat(least, 8)[:samples]
    prompts["tokens"] = [
        np.append(prompts["tokens"][number // 8 * 8][:start], tokens[start:])
        for number, (tokens, start) in enumerate(zip(arrays["tokens"], half, strict=True))
    ]
    for name in COLUMNS[1:]:
        prompts[name] = [
            np.append(0 * each[:start], each[start:]).astype(each.dtype)
            for each, start in zip(arrays[name], half, strict=True)
        ]
    runs: dict[str, Callable[[], Any]] = {
        "lists, a loop that extends lists": lambda: list_loop(lists, BUDGET),
        "pack_sequences, arrays": lambda: pack_sequences(arrays, max_tokens=BUDGET),
        "pack_sequences, tensors": lambda: pack_sequences(tensors, max_tokens=BUDGET),
        "pack_sequences, lists": lambda: pack_sequences(lists, max_tokens=BUDGET),
        "pack_sequences, trees of eight": lambda: pack_sequences(
            prompts, max_tokens=BUDGET, share_prefixes="group"
        ),
    }
    times = {name: median_seconds(run, repeats) for name, run in runs.items()}
    base = next(iter(times.values()))
    rows = [(name, f"{took * 1000:.0f}", f"{base / took:.1f}") for name, took in times.items()]
    return rows, times["pack_sequences, arrays"] / int(lengths.sum())


def many(samples: int) -> dict[str, float]:
    """CPU seconds and memory of packing short samples in arrow columns, each once."""
    columns = rollouts(np.random.default_rng(1).integers(20, 101, samples))
    bounds = np.append(0, np.cumsum([len(each) for each in columns["tokens"]]))
    arrow: dict[str, Any] = {
        name: pa.LargeListArray.from_arrays(pa.array(bounds), pa.array(np.concatenate(values)))
        for name, values in columns.items()
        if name in COLUMNS
    }
    arrow["rewards"] = pa.array(columns["rewards"])
    size = sum(each.nbytes for each in arrow.values())
    del columns
    pack_sequences({name: each[:5000] for name, each in arrow.items()}, max_tokens=BUDGET)
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak to what is held now
    before = _memory("VmRSS")
    start = time.process_time()
    packs = pack_sequences(arrow, max_tokens=BUDGET)
    took = time.process_time() - start
    peak = _memory("VmHWM")
    return {
        "seconds": took,
        "packs": len(packs),
        "columns": size,
        "above": peak - before,
    }


def _memory(name: str) -> float:
    """Bytes of a line of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith(name)).split()[1]) * 1024


def step(repeats: int) -> tuple[float, float, float, int]:
    """CPU seconds of a token in a step and in both losses, and the parameters of the model."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=256,
            intermediate_size=768,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            attn_implementation="sdpa",
        )
    )
    (pack,) = pack_sequences(rollouts([300, 500, 700, 548]), num_packs=1)
    batch = pack.torch()
    fields = to_hf(batch)
    fields.pop("labels")
    weight = model.lm_head.weight

    def train() -> None:
        model.zero_grad()
        hidden = model.model(**fields).last_hidden_state
        log_probs, entropy = log_probs_and_entropy(hidden, weight, batch)
        (log_probs * batch.extra["advantages"] - 0.01 * entropy).sum().backward()

    hidden = torch.randn(len(batch), 256, requires_grad=True)
    shifted = batch.labels_as("shifted")

    def both_losses() -> None:
        log_probs, entropy = log_probs_and_entropy(hidden, weight, batch)
        (log_probs + entropy).sum().backward()

    both = median_seconds(both_losses, repeats)
    alone = median_seconds(
        lambda: selective_log_probs(hidden, weight, shifted).sum().backward(), repeats
    )
    size = sum(each.numel() for each in model.parameters())
    return median_seconds(train, repeats) / len(batch), alone / len(batch), both / len(batch), size


@click.command(help=__doc__)
@click.option("--samples", default=1000, show_default=True, help="Of 200 to 8,000 tokens.")
@click.option("--million", default=1_000_000, show_default=True, help="Of 20 to 100 tokens.")
@click.option("--repeats", default=5, show_default=True)
@click.option("--markdown", is_flag=True, help="Print Markdown tables.")
@click.option("--only-million", is_flag=True, hidden=True)
def main(samples: int, million: int, repeats: int, markdown: bool, only_million: bool) -> None:
    if only_million:
        click.echo(json.dumps(many(million)))
        return
    rows, per_token = packing(samples, repeats)
    tables.show((f"{samples:,} samples, six columns", "CPU ms", "faster by"), rows, markdown)
    _, printed = measure([__file__, "--only-million", "--million", str(million)])
    found = json.loads(printed)
    click.echo()
    tables.show(
        ("short samples", "packs", "CPU s", "columns MB", "above them MB", "of them"),
        [
            (
                f"{million:,}",
                f"{found['packs']:,.0f}",
                f"{found['seconds']:.2f}",
                f"{found['columns'] / 1e6:,.0f}",
                f"{found['above'] / 1e6:,.0f}",
                f"{found['above'] / found['columns']:.2f}",
            )
        ],
        markdown,
    )
    of_step, alone, both, size = step(repeats)
    large = 6 * 0.5e9 / 4e14  # seconds of a token
    click.echo()
    tables.show(
        ("step", "CPU us a token", "packing is"),
        [
            (
                f"Llama of {size / 1e6:.0f}M, here",
                f"{of_step * 1e6:.0f}",
                f"{per_token / of_step:.3%}",
            ),
            (
                "0.5B at 6 operations a parameter and 400 T a second",
                f"{large * 1e6:.1f} (computed)",
                f"{per_token / large:.2%}",
            ),
            ("  its log-probabilities alone", f"{alone * 1e6:.0f}", ""),
            ("  log-probabilities and entropy", f"{both * 1e6:.0f}", ""),
        ],
        markdown,
    )


if __name__ == "__main__":
    main()
