"""Metrics while training: what counting a batch costs, and its share of a step of 20 ms.

\b
python scripts/bench/metrics.py [--tokens 65536] [--repeats 5]

Batches of random documents of about 400 tokens: as the loader's arrays, as tensors, and as the
arguments that adapters make. CPU microseconds of one thread, medians of `repeats` runs of 200
updates and one read.
"""

import statistics
import time
from typing import Any

import click
import numpy as np
import tables

from packprep.loaders import PackedBatch, PackMetrics, batch_from_rows, to_hf

UPDATES = 200
STEP = 0.02  # seconds


def batch_of(tokens: int) -> PackedBatch:
    """A batch with labels for all tokens."""
    random = np.random.default_rng(0)
    ends = np.cumsum(np.exp(random.normal(5.5, 1.0, tokens // 16)).astype(int) + 16)
    ends = np.append(ends[ends < tokens], tokens)
    lengths = np.diff(ends, prepend=0)
    ids = random.integers(0, 50_000, tokens)
    return batch_from_rows([{"tokens": ids, "labels": ids, "seq_lengths": lengths}])


def seconds_of(batch: Any, repeats: int) -> float:
    """CPU seconds of one update, with its share of a read."""
    metrics = PackMetrics(capacity=1 << 20)
    metrics.update(batch)
    metrics.read()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        for _ in range(UPDATES):
            metrics.update(batch)
        metrics.read()
        times.append((time.process_time() - start) / UPDATES)
    return statistics.median(times)


@click.command(help=__doc__)
@click.option("--tokens", default=65_536, show_default=True, help="Tokens of a batch.")
@click.option("--repeats", default=5, show_default=True)
@click.option("--markdown", is_flag=True, help="Print Markdown tables.")
def main(tokens: int, repeats: int, markdown: bool) -> None:
    import torch

    torch.set_num_threads(1)
    batch = batch_of(tokens)
    call = to_hf(batch)
    forms = {
        "PackedBatch of arrays": batch,
        "PackedBatch of tensors": batch.torch(),
        "`to_hf`": call,
        "`position_ids` alone": {
            name: call[name] for name in ("input_ids", "position_ids", "labels")
        },
    }
    rows = []
    for name, form in forms.items():
        seconds = seconds_of(form, repeats)
        rows.append((name, f"{seconds * 1e6:.0f}", f"{seconds / STEP:.2%}"))
    columns = (f"batch of {tokens:,} tokens", "CPU us a batch", "of a step of 20 ms")
    tables.show(columns, rows, markdown)


if __name__ == "__main__":
    main()
