"""The flight recorder while training: what logging a batch costs, and its share of a step of 20 ms.

\b
python scripts/bench/loss_log.py [--packs 8] [--repeats 5]

Batches of packs of 8,192 tokens, of random documents of about 400 tokens. CPU microseconds of a
call with a new record each, on a local disk: medians of `repeats` runs of 500 calls.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import tables

from packprep import BuildConfig, build
from packprep.loaders import LossLog, PackedLoader

CALLS = 500
STEP = 0.02  # seconds


def built(folder: Path, documents: int = 4000) -> Path:
    """An output of random documents."""
    random = np.random.default_rng(0)
    lengths = np.exp(random.normal(5.5, 1.0, documents)).astype(int) + 16
    lines = (f'{{"ids": {[7] * min(length, 8192)}}}\n' for length in lengths.tolist())
    (folder / "a.jsonl").write_text("".join(lines))
    options: dict[str, Any] = {"input_ids_column": "ids", "vocab_size": 8, "max_length": 8192}
    build(BuildConfig(sources=(str(folder / "a.jsonl"),), output=str(folder / "out"), **options))
    return folder / "out"


def seconds_of(loader: PackedLoader, folder: Path, as_tensors: bool, repeats: int) -> float:
    """CPU seconds of a call."""
    batch = loader[0].torch() if as_tensors else loader[0]
    losses: Any = np.random.default_rng(0).normal(2, 0.1, batch.num_segments).astype(np.float32)
    if as_tensors:
        import torch

        losses = torch.from_numpy(losses)
    times = []
    for repeat in range(repeats):
        with LossLog(folder / f"log-{as_tensors}-{repeat}", loader) as log:
            log.add(0, batch, losses)
            start = time.process_time()
            for step in range(1, CALLS + 1):
                log.add(step, batch, losses)
            times.append((time.process_time() - start) / CALLS)
    return statistics.median(times)


@click.command(help=__doc__)
@click.option("--packs", default=8, show_default=True, help="Packs of a batch.")
@click.option("--repeats", default=5, show_default=True)
@click.option("--markdown", is_flag=True, help="Print Markdown tables.")
def main(packs: int, repeats: int, markdown: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="packprep-") as place:
        folder = Path(place)
        loader = PackedLoader(built(folder), packs)
        rows = []
        for as_tensors, name in ((False, "arrays"), (True, "tensors")):
            seconds = seconds_of(loader, folder, as_tensors, repeats)
            (file,) = (folder / f"log-{as_tensors}-0").iterdir()
            segments = (CALLS + 1) * loader[0].num_segments
            rows.append(
                (
                    name,
                    f"{loader[0].num_segments}",
                    f"{seconds * 1e6:.0f}",
                    f"{seconds / STEP:.2%}",
                    f"{file.stat().st_size / segments:.1f}",
                )
            )
    columns = (f"batch of {packs} packs", "segments", "CPU us a call", "of a step of 20 ms")
    tables.show((*columns, "bytes a segment"), rows, markdown)


if __name__ == "__main__":
    main()
