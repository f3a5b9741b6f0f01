"""Programs that a build is compared with, each a process of its own.

\b
raw-hf, raw-fastokens   the engine alone: texts in, ids out, nothing kept; reading the file is not
                        counted
trl                     datasets.map with a transformers tokenizer, TRL's bfd_split packing,
                        save_to_disk
lists                   datasets.map that returns packed Python lists, as block-tokenizing functions
                        do, save_to_disk

Prints the seconds that count as JSON; the caller takes memory and CPU from the operating system.
"""

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import click

MAX_LENGTH = 4096
BATCH = 1000


def texts(path: str) -> list[str]:
    with open(path) as file:  # noqa: PTH123
        return [json.loads(line)["text"] for line in file]


def batches(rows: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(rows), BATCH):
        yield rows[start : start + BATCH]


def raw_hf(tokenizer: str, path: str, out: str) -> float:
    from tokenizers import Tokenizer

    engine = Tokenizer.from_file(f"{tokenizer}/tokenizer.json")
    engine.encode_special_tokens = True
    rows = texts(path)
    start = time.perf_counter()
    for batch in batches(rows):
        engine.encode_batch_fast(batch, add_special_tokens=False)
    return time.perf_counter() - start


def raw_fastokens(tokenizer: str, path: str, out: str) -> float:
    import fastokens

    engine = fastokens.Tokenizer.from_file(f"{tokenizer}/tokenizer.json")
    rows = texts(path)
    start = time.perf_counter()
    for batch in batches(rows):
        engine.encode_batch_flat(batch, add_special_tokens=False, split_special_tokens=True)
    return time.perf_counter() - start


def trl(tokenizer: str, path: str, out: str) -> float:
    import datasets
    import transformers
    from trl.data_utils import pack_dataset

    engine = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{tokenizer}/tokenizer.json")
    rows = datasets.load_dataset("json", data_files=path, split="train", cache_dir=f"{out}/cache")
    start = time.perf_counter()

    def tokenize(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {"input_ids": engine(batch["text"], add_special_tokens=False)["input_ids"]}

    cores = os.cpu_count() if len(rows) > BATCH else None
    tokens = rows.map(tokenize, batched=True, num_proc=cores, remove_columns=rows.column_names)
    pack_dataset(
        tokens, MAX_LENGTH, strategy="bfd_split", map_kwargs={"num_proc": cores}
    ).save_to_disk(f"{out}/saved")
    return time.perf_counter() - start


def lists(tokenizer: str, path: str, out: str) -> float:
    import datasets
    from tokenizers import Tokenizer

    engine = Tokenizer.from_file(f"{tokenizer}/tokenizer.json")
    rows = datasets.load_dataset("json", data_files=path, split="train", cache_dir=f"{out}/cache")
    start = time.perf_counter()

    def blocks(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        ids = [token for encoding in engine.encode_batch(batch["text"]) for token in encoding.ids]
        return {"input_ids": [ids[at : at + MAX_LENGTH] for at in range(0, len(ids), MAX_LENGTH)]}

    cores = os.cpu_count() if len(rows) > BATCH else None
    packed = rows.map(blocks, batched=True, num_proc=cores, remove_columns=rows.column_names)
    packed.save_to_disk(f"{out}/saved")
    return time.perf_counter() - start


PEERS = {"raw-hf": raw_hf, "raw-fastokens": raw_fastokens, "trl": trl, "lists": lists}


@click.command(help=__doc__)
@click.argument("what", type=click.Choice([*PEERS]))
@click.argument("tokenizer", type=click.Path(exists=True))
@click.argument("file", type=click.Path(exists=True))
@click.argument("out")
def main(what: str, tokenizer: str, file: str, out: str) -> None:
    print(json.dumps({"seconds": PEERS[what](tokenizer, file, out)}))


if __name__ == "__main__":
    main()
