"""Speed from shards to batches, against the other ways to read packed data.

CPU seconds of one thread, warm, medians.

\b
python scripts/bench/loader.py [--tokens 64M] [--repeats 5] [--without-peers]

Writes shards of random tokens (log-normal documents of about 400 tokens, packs of 4096 and 8192) to
a temporary directory, reads them all once, then times every path over the same packs in turn,
`repeats` times. A path is timed by the process's CPU time, so a prefetch thread counts too. Prints
M tokens/s, and how much faster the first path is, which reads a pack a batch in stored order, as
the peers do.
"""

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tables

from packprep.loaders import PackedLoader, PackedShards
from packprep.schemas import Column, digest_of, shard_schema
from packprep.schemas.canonical import file_digest
from packprep.schemas.columns import TokenType, columns_of_type
from packprep.schemas.files import shard_name
from packprep.schemas.storage.writing import write_dataset_files, write_manifest

COLUMNS = ("tokens", "position_ids", "cu_seqlens", "document_ids", "document_starts")
BATCH_TOKENS = 1 << 19
SHARD_TOKENS = 1 << 26
VOCABULARY = 50_000


def write_shards(
    directory: Path,
    tokens: int,
    max_length: int,
    seed: int = 0,
    token_type: TokenType = "int32",
    shard_tokens: int = SHARD_TOKENS,
) -> None:
    """About `tokens` tokens in packs of exactly max_length, in the format of packprep build."""
    directory.mkdir()
    types = columns_of_type(token_type, max_length)
    columns = [types[name] for name in COLUMNS]
    random = np.random.default_rng(seed)
    packs = max(tokens // max_length, 1)
    per_shard = shard_tokens // max_length
    shards = [min(per_shard, packs - first) for first in range(0, packs, per_shard)]
    files: list[dict[str, Any]] = []
    segments = 0
    for number, count in enumerate(shards):
        path = directory / shard_name(number, len(shards))
        with pa.ipc.new_stream(str(path), shard_schema(columns)) as writer:
            for first in range(0, count, BATCH_TOKENS // max_length):
                packs_of_batch = min(BATCH_TOKENS // max_length, count - first)
                batch = _batch(random, packs_of_batch, max_length, columns)
                segments += pc.sum(pc.list_value_length(batch.column(3))).as_py()
                writer.write_batch(batch)
        entry = {"path": path.name, "bytes": path.stat().st_size, "sha256": file_digest(path)}
        files.append(entry | {"packs": count, "tokens": count * max_length, "split": "train"})
    write_dataset_files(
        directory,
        [file["path"] for file in files],
        fingerprint=digest_of(files)[:16],
        split="train",
    )
    for name in ("dataset_info.json", "state.json"):
        path = directory / name
        files.append({"path": name, "bytes": path.stat().st_size, "sha256": file_digest(path)})
    ledger = dict.fromkeys(("overlap", "continuation_bos", "filler", "truncated"), 0)
    stored = packs * max_length
    inputs = {
        "options": {"max_length": max_length},
        "sources": [],
        "tokenizer": {"sha256": "0" * 64},
    }
    data = {
        "format_version": 1,
        "inputs": inputs,
        "identity": digest_of(inputs),
        "columns": [
            {"name": column.name, "kind": column.kind, "dtype": column.dtype} for column in columns
        ],
        "max_length": max_length,
        "vocab_size": VOCABULARY,
        "sources": [],
        "splits": {"train": {"packs": packs, "segments": segments, "tokens": stored}},
        "files": files,
        "ledger": ledger | {"tokens_in": stored, "tokens_packed": stored, "dropped": {}},
    }
    write_manifest(directory, data, {})


def _batch(
    random: np.random.Generator, packs: int, max_length: int, types: Sequence[Column]
) -> pa.RecordBatch:
    cuts = []
    for _ in range(packs):
        ends = np.cumsum(np.exp(random.normal(5.5, 1.0, max_length // 16)).astype(np.int32) + 16)
        cuts.append(np.concatenate([[0], ends[ends < max_length], [max_length]]).astype(np.int32))
    segments = np.array([len(cut) - 1 for cut in cuts])
    tokens = random.integers(0, VOCABULARY, packs * max_length, dtype=np.int32)
    starts = np.concatenate([np.repeat(cut[:-1], np.diff(cut)) for cut in cuts])
    positions = np.tile(np.arange(max_length, dtype=np.int32), packs) - starts
    per_pack = np.arange(packs + 1) * max_length
    per_segment = np.concatenate([[0], np.cumsum(segments)])
    total = int(segments.sum())
    columns = [
        (per_pack, tokens),
        (per_pack, positions),
        (per_segment + np.arange(packs + 1), np.concatenate(cuts)),
        (per_segment, np.arange(total, dtype=np.int64)),
        (per_segment, np.zeros(total, np.int32)),
    ]
    arrays = [
        pa.ListArray.from_arrays(
            pa.array(offsets.astype(np.int32)), pa.array(values.astype(column.numpy_dtype))
        )
        for column, (offsets, values) in zip(types, columns, strict=True)
    ]
    return pa.record_batch(arrays, schema=shard_schema(types))


def compact(path: Path) -> Path:
    """The same packs with tokens and positions as uint16."""
    return path.with_name("uint16")


def mine(
    path: Path, packs_per_batch: int, *, shuffle: bool = True, prefetch: int = 0
) -> Callable[[], int]:
    loader = PackedLoader(PackedShards(path), packs_per_batch, shuffle=shuffle, prefetch=prefetch)

    def run() -> int:
        return sum(len(batch) for batch in loader)

    return run


def views(path: Path) -> Callable[[], int]:
    shards = PackedShards(path)
    return lambda: sum(len(pack.tokens) for pack in shards)


def memmap(path: Path) -> Callable[[], int]:
    """Megatron's way: a slice of a flat file of ids, as int64.

    No boundaries, no positions, no labels.
    """
    tokens = np.concatenate([pack.tokens for pack in PackedShards(path)])
    flat = path.parent / f"{path.name}.bin"
    tokens.tofile(flat)
    mapped = np.memmap(flat, np.int32, "r")
    length = len(PackedShards(path)[0].tokens)

    def run() -> int:
        return sum(
            len(mapped[first : first + length].astype(np.int64))
            for first in range(0, len(mapped), length)
        )

    return run


def flattening(path: Path, limit: int) -> Callable[[], int]:
    """Documents as rows of a dataset, DataCollatorWithFlattening in torch's DataLoader.

    A pack's documents a batch.
    """
    import datasets
    from torch.utils.data import DataLoader
    from transformers import DataCollatorWithFlattening

    packs = [*_some(PackedShards(path), limit)]
    offsets = np.cumsum([0, *(length for pack in packs for length in np.diff(pack.cu_seqlens))])
    ids = pa.array(np.concatenate([pack.tokens for pack in packs]))
    documents = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), ids)
    ends = np.cumsum([0, *(len(pack.cu_seqlens) - 1 for pack in packs)]).tolist()
    loader = DataLoader(
        datasets.Dataset(pa.table({"input_ids": documents})),
        batch_sampler=[[*range(first, last)] for first, last in pairwise(ends)],
        collate_fn=DataCollatorWithFlattening(return_flash_attn_kwargs=True),
    )
    return lambda: sum(batch["input_ids"].shape[1] for batch in loader)


def flattening_alone(path: Path) -> Callable[[], int]:
    """DataCollatorWithFlattening on documents that are Python lists in memory already."""
    from transformers import DataCollatorWithFlattening

    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    packs = [
        [{"input_ids": segment.tokens.tolist()} for segment in pack.segments()]
        for pack in _some(PackedShards(path), 512)
    ]
    return lambda: sum(collate(documents)["input_ids"].shape[1] for documents in packs)


def huggingface(path: Path, limit: int) -> Callable[[], int]:
    """load_from_disk, torch format, torch's DataLoader without workers, a pack a batch."""
    import datasets
    from torch.utils.data import DataLoader

    rows = datasets.load_from_disk(path).with_format("torch")
    rows = rows.select(range(min(limit, len(rows))))
    loader = DataLoader(rows, batch_size=None)
    return lambda: sum(len(row["tokens"]) for row in loader)


def huggingface_arrays(path: Path, limit: int) -> Callable[[], int]:
    """load_from_disk, numpy format, row by row."""
    import datasets

    rows = datasets.load_from_disk(path).with_format("numpy")
    count = min(limit, len(rows))
    return lambda: sum(len(rows[number]["tokens"]) for number in range(count))


def _some(shards: PackedShards, count: int) -> Iterator[Any]:
    return (shards[number] for number in range(min(count, len(shards))))


def measure(paths: dict[str, Callable[[], int]], repeats: int) -> dict[str, float]:
    """Median M tokens per CPU second of each path, after one run to warm it, taking turns."""
    for run in paths.values():
        run()
    rates: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(repeats):
        for name, run in paths.items():
            gc.collect()
            start = time.process_time()
            tokens = run()
            rates[name].append(tokens / (time.process_time() - start) / 1e6)
    return {name: statistics.median(values) for name, values in rates.items()}


def report_opening(path: Path, repeats: int) -> None:
    """Seconds and bytes of PackedShards(path), per GB of shards."""
    size = sum(file.stat().st_size for file in path.iterdir())
    seconds = []
    for _ in range(repeats):
        before, start = pa.total_allocated_bytes(), time.perf_counter()
        shards = PackedShards(path)
        tokens = len(shards[len(shards) // 2].tokens)
        seconds.append(time.perf_counter() - start)
        allocated = pa.total_allocated_bytes() - before
        del shards
    click.echo(
        f"open {size / 1e9:.2f} GB and read a pack of {tokens}: "
        f"{statistics.median(seconds) * 1e3:.1f} ms wall, "
        f"{allocated} bytes allocated by Arrow, {_python_bytes(path):,} by Python and numpy"
    )


def _python_bytes(path: Path) -> int:
    import tracemalloc

    tracemalloc.start()
    shards = PackedShards(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del shards
    return peak


def size_of(text: str) -> int:
    """Number that a size spells: 64M -> 64 * 10^6."""
    units = {"K": 10**3, "M": 10**6, "G": 10**9}
    return int(float(text[:-1]) * units[text[-1]]) if text[-1] in units else int(text)


@click.command(help=__doc__)
@click.option("--tokens", default="128M", show_default=True, help="Tokens of each data set.")
@click.option("--repeats", default=5, show_default=True)
@click.option(
    "--lengths",
    multiple=True,
    default=[4096, 8192],
    show_default=True,
    help="Tokens of a pack; may be repeated.",
)
@click.option("--without-peers", is_flag=True, help="Only PackedLoader.")
@click.option("--markdown", is_flag=True, help="Print Markdown tables.")
def main(
    tokens: str, repeats: int, lengths: tuple[int, ...], without_peers: bool, markdown: bool
) -> None:
    count = size_of(tokens)
    for max_length in lengths:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "shards"
            write_shards(path, count, max_length)
            write_shards(compact(path), count, max_length, token_type="uint16")
            click.echo(f"\npacks of {max_length}, {count / 1e6:.0f}M tokens")
            report_opening(path, repeats)
            _show(measure(_paths(path, max_length, without_peers), repeats), markdown)


def _paths(path: Path, max_length: int, alone: bool) -> dict[str, Callable[[], int]]:
    paths: dict[str, Callable[[], int]] = {
        "PackedLoader, a pack a batch": mine(path, 1, shuffle=False),
        "PackedLoader, a pack, shuffled": mine(path, 1),
        "PackedLoader, a pack, prefetched": mine(path, 1, prefetch=2),
        "PackedLoader, 8 packs, shuffled": mine(path, 8),
        "PackedLoader, 8 packs, prefetched": mine(path, 8, prefetch=2),
        "PackedShards, views only": views(path),
        "PackedLoader, a pack, uint16": mine(compact(path), 1, shuffle=False),
        "PackedLoader, 8 packs, shuffled, uint16": mine(compact(path), 8),
    }
    if not alone:
        few = (1 << 22) // max_length  # a fair sample: the peers take minutes over everything
        paths |= {
            "memmap slice as int64": memmap(path),
            "load_from_disk, numpy rows": huggingface_arrays(path, few),
            "load_from_disk, torch, DataLoader": huggingface(path, few),
            "documents, DataCollatorWithFlattening": flattening(path, few),
            "  its collator alone, lists at hand": flattening_alone(path),
        }
    return paths


def _show(rates: dict[str, float], markdown: bool) -> None:
    base = next(iter(rates.values()))
    rows = [(name, f"{rate:.1f}", f"{base / rate:.2f}") for name, rate in rates.items()]
    tables.show(("way to read", "M tokens per CPU-s", "first row is faster by"), rows, markdown)


if __name__ == "__main__":
    main()
