"""Speed and parity of the tokenizer engines, on the same text in the same run.

    .venv/bin/python scripts/bench/engines.py
    python scripts/bench/engines.py --text books.jsonl.gz --tokenizer gpt2/tokenizer.json

Without --text: the sources of the installed standard library. Without --tokenizer: those in
../shared/data, or else a byte-level BPE of 32,000 tokens trained on that text. Each engine is
loaded again for each repeat, so that no cache is warm, and called with batches of --batch-mb by a
thread for each core. Numbers are medians. `hf` encodes only the first --reference-mb,
and the others are compared with it there, id by id. Columns: seconds to load; text MB per second of
wall and of CPU; million tokens per second of wall; differing documents.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
import sysconfig
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import tables

from packprep.engines.backends import Engine, Ids, Offsets, load_engine, text_starts
from packprep.engines.compare import unequal
from packprep.engines.parity import choose_engine
from packprep.support.errors import PackprepError

ENGINES: tuple[Any, ...] = ("hf", "fastokens", "gigatoken")
SHARED = Path(__file__).parents[3] / "shared" / "data" / "tokenizers"


def read_texts(files: tuple[Path, ...]) -> list[str]:
    """The `text` of JSON Lines files, plain or .gz.

    Without files, the sources of the standard library.
    """
    if not files:
        library = Path(sysconfig.get_path("stdlib"))
        sources = (
            path for path in sorted(library.rglob("*.py")) if "site-packages" not in path.parts
        )
        return [path.read_text(encoding="utf-8", errors="replace") for path in sources]
    texts = []
    for file in files:
        with (
            gzip.open(file, "rt", encoding="utf-8")
            if file.suffix == ".gz"
            else file.open(encoding="utf-8") as lines
        ):
            texts += [json.loads(line)["text"] for line in lines]
    return texts


def trained(texts: list[str]) -> bytes:
    """A byte-level BPE of 32,000 tokens learnt from the first 8 MB or so."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=32_000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(
        texts[: max(1, len(texts) * 8_000_000 // sum(map(len, texts)))], trainer
    )
    return str(tokenizer.to_str()).encode()


def batches(texts: pa.Array[Any], size: float) -> Iterator[pa.Array[Any]]:
    """Slices of about `size` bytes of text."""
    starts = text_starts(texts)
    first = 0
    while first < len(texts):
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + size)))
        yield texts.slice(first, last - first)
        first = last


def timed(engine: Engine, parts: list[pa.Array[Any]]) -> tuple[float, float, Ids, Offsets]:
    """Wall and CPU seconds of encoding, and what came out."""
    wall, cpu = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(engine.encode, parts))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    lengths = np.concatenate([np.diff(offsets) for _, offsets in results])
    return (
        wall,
        cpu,
        np.concatenate([ids for ids, _ in results]),
        np.concatenate([[0], np.cumsum(lengths)]),
    )


@click.command(help=(__doc__ or "").split("\n")[0])
@click.option(
    "--text",
    "files",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="JSONL, plain or .gz",
)
@click.option("--tokenizer", "paths", multiple=True, type=click.Path(exists=True, path_type=Path))
@click.option("--engine", "names", multiple=True, type=click.Choice(ENGINES), default=ENGINES)
@click.option("--max-mb", default=60.0, help="use this much of the text")
@click.option("--reference-mb", default=6.0, help="how much of it hf encodes")
@click.option("--batch-mb", default=1.0)
@click.option("--repeat", default=3)
@click.option("--markdown", is_flag=True, help="Print a Markdown table.")
def main(
    files: tuple[Path, ...],
    paths: tuple[Path, ...],
    names: tuple[Any, ...],
    max_mb: float,
    reference_mb: float,
    batch_mb: float,
    repeat: int,
    markdown: bool,
) -> None:
    texts: pa.Array[Any] = pa.array(read_texts(files), pa.large_string())
    if not paths and SHARED.exists():
        paths = tuple(sorted(SHARED.glob("*/tokenizer.json")))
    tokenizers = {path.parent.name or path.name: path.read_bytes() for path in paths}
    if not tokenizers:
        tokenizers = {"trained here": trained(read_texts(files))}

    starts = text_starts(texts)
    texts = texts.slice(0, int(np.searchsorted(starts, max_mb * 1e6)))
    some = texts.slice(0, int(np.searchsorted(starts, reference_mb * 1e6)))
    click.echo(
        f"{starts[len(texts)] / 1e6:.1f} MB, {len(texts):,} documents; hf "
        f"{starts[len(some)] / 1e6:.1f} MB"
    )

    columns = ("tokenizer", "engine", "load s", "MB/s", "MB/cpu-s", "Mtok/s", "differing", "gate")
    rows: list[tuple[str, ...]] = []
    for tokenizer, tokenizer_json in tokenizers.items():
        expected, expected_offsets = load_engine("hf", tokenizer_json).encode(some)
        for name in names:
            chosen = some if name == "hf" else texts
            size = float(text_starts(chosen)[-1]) / 1e6
            parts = list(batches(chosen, batch_mb * 1e6))
            runs = []
            try:
                for _ in range(repeat):
                    load = time.perf_counter()
                    engine = load_engine(name, tokenizer_json)
                    load = time.perf_counter() - load
                    wall, cpu, ids, offsets = timed(engine, parts)
                    runs.append((load, size / wall, size / cpu, len(ids) / wall / 1e6))
            except PackprepError as error:
                rows.append((tokenizer, name, *[""] * 4, "", str(error)[:60]))
                continue
            compared = offsets[: len(some) + 1]
            bad = len(unequal(ids[: compared[-1]], compared, expected, expected_offsets))
            try:
                gate = choose_engine(name, tokenizer_json).gate
                said = str(gate["verdict"])
                said += f" {gate['seconds']:.2f} s" if "seconds" in gate else ""
            except PackprepError as error:
                said = str(error).split(": ", 1)[1].split(" it gives")[0]
            medians = [statistics.median(column) for column in zip(*runs, strict=True)]
            numbers = (f"{medians[0]:.2f}", *(f"{value:.1f}" for value in medians[1:]))
            rows.append(
                (tokenizer, f"{name} {engine.version}", *numbers, f"{bad} of {len(some):,}", said)
            )
    tables.show(columns, rows, markdown)


if __name__ == "__main__":
    main()
