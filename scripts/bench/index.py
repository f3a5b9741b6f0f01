"""Index outputs: the cost of a plan over a token store, and their speed in the loader.

\b
python scripts/bench/index.py [--tokens 1G] [--length 500] [--repeats 5] [--markdown]

Writes documents of random tokens (log-normal lengths, `--length` on average) to a token store of a
tenth of `tokens`, at least 1 million. Then it measures, in a process of its own, `packprep.build`
of an index that draws every document ten times (packs of 4096), until a pack of it is read: CPU
seconds of all threads, without the import of libraries. The loader reads an index of the store once
and its materialized shards, in turn, as in loader.py; also each time from the opening of the
output, as the first epoch does.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import loader
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tables

from packprep import BuildConfig, build
from packprep.derive.merge import merge
from packprep.schemas import read_manifest
from packprep.schemas.names import list_array
from packprep.schemas.views import ListView

VOCABULARY = 50_000
EPOCHS = 10
_PLAN = """
import sys, time
from packprep import BuildConfig, build
from packprep.execute import pipeline  # loads the libraries that every build loads
from packprep.loaders import PackedShards
start = time.process_time(), time.perf_counter()
build(BuildConfig(**eval(sys.argv[1])))
shards = PackedShards(eval(sys.argv[1])["output"])
assert len(shards[len(shards) // 2].tokens)
print(time.process_time() - start[0], time.perf_counter() - start[1])
"""


def write_documents(path: Path, tokens: int, length: int, seed: int = 0) -> None:
    """Documents of about `tokens` tokens, `length` each on average, as rows of ids."""
    random = np.random.default_rng(seed)
    logs = random.normal(np.log(length) - 0.5, 1.0, tokens // length * 5 // 4)
    lengths = np.exp(logs).astype(np.int64) + 1
    lengths = lengths[np.cumsum(lengths) <= tokens]
    rows = 20_000
    with pq.ParquetWriter(path, pa.schema([("ids", pa.list_(pa.int32()))])) as writer:
        for first in range(0, len(lengths), rows):
            part = lengths[first : first + rows]
            offsets = np.append(0, np.cumsum(part)).astype(np.int32)
            ids = random.integers(0, VOCABULARY, int(part.sum()), dtype=np.int32)
            lists = list_array(ListView(offsets, ids))
            writer.write_table(pa.table({"ids": lists}), row_group_size=rows)


def first_time(path: Path, packs_per_batch: int, *, shuffle: bool) -> Callable[[], int]:
    """Read all batches of an output that is opened for it."""
    return lambda: loader.mine(path, packs_per_batch, shuffle=shuffle)()


@click.command(help=__doc__)
@click.option("--tokens", default="1G", show_default=True, help="Tokens that are planned.")
@click.option("--length", default=500, show_default=True, help="Tokens of a document.")
@click.option("--repeats", default=5, show_default=True)
@click.option("--markdown", is_flag=True, help="Print Markdown tables.")
def main(tokens: str, length: int, repeats: int, markdown: bool) -> None:
    count = max(loader.size_of(tokens) // EPOCHS, 1_000_000)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_documents(folder / "documents.parquet", count, length)
        options: dict[str, Any] = {
            "sources": (str(folder / "documents.parquet"),),
            "input_ids_column": "ids",
            "vocab_size": VOCABULARY,
            "keep_tokens": str(folder / "store"),
            "materialize": "index",
        }
        build(BuildConfig(**options, output=str(folder / "index")))
        _plan(folder, options, markdown)
        merge([folder / "index"], folder / "shards", materialize="shards")
        paths = {
            f"{kind}, {how}": read(folder / path, packs, shuffle=shuffle)
            for how, read, packs, shuffle in (
                ("a pack a batch", loader.mine, 1, False),
                ("a pack, shuffled", loader.mine, 1, True),
                ("8 packs, shuffled", loader.mine, 8, True),
                ("a pack, shuffled, first time", first_time, 1, True),
                ("8 packs, shuffled, first time", first_time, 8, True),
            )
            for kind, path in (("shards", "shards"), ("index", "index"))
        }
        rates = loader.measure(paths, repeats)
        names = list(rates)
        rows = [
            (
                one.removeprefix("shards, "),
                f"{rates[one]:.1f}",
                f"{rates[two]:.1f}",
                f"{rates[two] / rates[one]:.2f}",
            )
            for one, two in zip(names[::2], names[1::2], strict=True)
        ]
        columns = ("way to read", "shards, M tokens per CPU-s", "index", "index to shards")
        tables.show(columns, rows, markdown)


def _plan(folder: Path, options: dict[str, Any], markdown: bool) -> None:
    output = folder / "planned"
    plan = options | {"output": str(output), "weights": (1.0,), "max_epochs": float(EPOCHS)}
    done = subprocess.run(
        [sys.executable, "-c", _PLAN, repr(plan)], capture_output=True, text=True, check=True
    )
    cpu, wall = map(float, done.stdout.split())
    manifest = read_manifest(output)
    size = sum(entry.bytes for entry in manifest.files if entry.is_shard)
    segments = sum(counts.segments for counts in manifest.splits.values())
    store = sum(file.bytes for file in manifest.index_table.files)
    columns = ("tokens planned", "token store, MB", "CPU s", "wall s", "bytes a segment")
    row = (
        f"{manifest.num_tokens:,}",
        f"{store / 1e6:,.0f}",
        f"{cpu:.2f}",
        f"{wall:.2f}",
        f"{size / segments:.2f}",
    )
    tables.show(columns, [row], markdown)


if __name__ == "__main__":
    main()
