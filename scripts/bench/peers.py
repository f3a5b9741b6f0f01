"""Programs that a build is compared with, each in a separate process.

\b
raw-hf, raw-fastokens   the engine alone: texts in, ids out, nothing kept; reading the file is not
                        counted
gigatoken-bin           gigatoken's whole-file call from JSON lines to ids, which Megatron-LM's
                        preprocess_data_fast.py uses, then one flat file of ids and one of offsets
datatrove-bin           datatrove's JsonlReader and DocumentTokenizer to flat files of ids, as its
                        examples do, documents in their order
dolma-bin               dolma's tokenize_in_parallel to flat files of ids
trl                     datasets.map with a transformers tokenizer, TRL's bfd_split packing,
                        save_to_disk
lists                   datasets.map that returns packed Python lists, as block-tokenizing functions
                        do, save_to_disk

datatrove and dolma read a file per core, into which the text is split before. They are no
dependencies of packprep: install them where this runs, or they are missing from the table.

Prints as JSON the wall and CPU seconds of the work alone, without imports, loading of the tokenizer
and reading where it is "not counted". CPU seconds include processes that the work started.
"""

import contextlib
import importlib
import importlib.metadata
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

Work = Callable[[], None]
MAX_LENGTH = 4096
BATCH = 1000


def texts(path: str) -> list[str]:
    with open(path) as file:  # noqa: PTH123
        return [json.loads(line)["text"] for line in file]


def batches(rows: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(rows), BATCH):
        yield rows[start : start + BATCH]


def raw_hf(tokenizer: str, path: str, out: str) -> Work:
    from tokenizers import Tokenizer

    engine = Tokenizer.from_file(f"{tokenizer}/tokenizer.json")
    engine.encode_special_tokens = True
    rows = texts(path)

    def work() -> None:
        for batch in batches(rows):
            engine.encode_batch_fast(batch, add_special_tokens=False)

    return work


def raw_fastokens(tokenizer: str, path: str, out: str) -> Work:
    import fastokens

    engine = fastokens.Tokenizer.from_file(f"{tokenizer}/tokenizer.json")
    rows = texts(path)

    def work() -> None:
        for batch in batches(rows):
            engine.encode_batch_flat(batch, add_special_tokens=False, split_special_tokens=True)

    return work


def gigatoken_bin(tokenizer: str, path: str, out: str) -> Work:
    import awkward
    import gigatoken

    Path(out).mkdir(parents=True)
    engine = gigatoken.Tokenizer.from_json(Path(f"{tokenizer}/tokenizer.json").read_text())
    dtype = np.uint16 if engine.vocab_size <= 1 << 16 else np.int32  # as Megatron-LM chooses

    def work() -> None:
        encoded = engine.encode_files(gigatoken.JsonlFileSource([path], "text"))
        awkward.to_numpy(awkward.flatten(encoded)).astype(dtype).tofile(f"{out}/ids.bin")
        np.cumsum(awkward.to_numpy(awkward.num(encoded)), dtype=np.int64).tofile(f"{out}/ends.idx")

    return work


def split(path: str, folder: Path) -> list[str]:
    """Deal the lines of a file to a file for each core."""
    folder.mkdir(parents=True)
    parts = [folder / f"part-{number}.jsonl" for number in range(os.cpu_count() or 1)]
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(part.open("w")) for part in parts]
        with open(path) as whole:  # noqa: PTH123
            for number, line in enumerate(whole):
                row = {"id": str(number), "text": json.loads(line)["text"]}
                files[number % len(files)].write(json.dumps(row) + "\n")
    return [str(part) for part in parts if part.stat().st_size]


def datatrove_bin(tokenizer: str, path: str, out: str) -> Work:
    executor = importlib.import_module("datatrove.executor").LocalPipelineExecutor
    reader = importlib.import_module("datatrove.pipeline.readers").JsonlReader
    writer = importlib.import_module("datatrove.pipeline.tokens").DocumentTokenizer
    parts = split(path, Path(out) / "parts")

    def work() -> None:
        steps = [
            reader(f"{out}/parts", compression=None),
            writer(f"{out}/ids", f"{tokenizer}/tokenizer.json", shuffle_documents=False),
        ]
        executor(
            steps,
            tasks=len(parts),
            workers=len(parts),
            logging_dir=f"{out}/logs",
            start_method="fork",  # children of this process, so that their CPU seconds count
        ).run()

    return work


def dolma_bin(tokenizer: str, path: str, out: str) -> Work:
    tokenize = importlib.import_module("dolma.tokenizer").tokenize_in_parallel
    vocabulary = importlib.import_module("dolma.tokenizer").Tokenizer.from_file
    parts = split(path, Path(out) / "parts")
    file = f"{tokenizer}/tokenizer.json"
    engine = vocabulary(file, eos_token_id=0, pad_token_id=0)
    options = {"eos_token_id": 0, "pad_token_id": 0, "dtype": str(engine.dtype)}

    def work() -> None:
        tokenize(
            parts,
            f"{out}/ids",
            num_readers=1,
            num_writers=len(parts),
            tokenizer_name_or_path=file,
            metadata_dir=f"{out}/metadata",
            **options,
        )

    return work


def trl(tokenizer: str, path: str, out: str) -> Work:
    import datasets
    import transformers
    from trl.data_utils import pack_dataset

    engine = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{tokenizer}/tokenizer.json")
    rows = datasets.load_dataset("json", data_files=path, split="train", cache_dir=f"{out}/cache")

    def tokenize(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {"input_ids": engine(batch["text"], add_special_tokens=False)["input_ids"]}

    cores = os.cpu_count() if len(rows) > BATCH else None

    def work() -> None:
        tokens = rows.map(tokenize, batched=True, num_proc=cores, remove_columns=rows.column_names)
        pack_dataset(
            tokens, MAX_LENGTH, strategy="bfd_split", map_kwargs={"num_proc": cores}
        ).save_to_disk(f"{out}/saved")

    return work


def lists(tokenizer: str, path: str, out: str) -> Work:
    import datasets
    from tokenizers import Tokenizer

    engine = Tokenizer.from_file(f"{tokenizer}/tokenizer.json")
    rows = datasets.load_dataset("json", data_files=path, split="train", cache_dir=f"{out}/cache")

    def blocks(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        ids = [token for encoding in engine.encode_batch(batch["text"]) for token in encoding.ids]
        return {"input_ids": [ids[at : at + MAX_LENGTH] for at in range(0, len(ids), MAX_LENGTH)]}

    cores = os.cpu_count() if len(rows) > BATCH else None

    def work() -> None:
        packed = rows.map(blocks, batched=True, num_proc=cores, remove_columns=rows.column_names)
        packed.save_to_disk(f"{out}/saved")

    return work


PEERS = {
    "raw-hf": raw_hf,
    "raw-fastokens": raw_fastokens,
    "gigatoken-bin": gigatoken_bin,
    "datatrove-bin": datatrove_bin,
    "dolma-bin": dolma_bin,
    "trl": trl,
    "lists": lists,
}


PACKAGES = {
    "raw-hf": ("tokenizers",),
    "raw-fastokens": ("fastokens",),
    "gigatoken-bin": ("gigatoken",),
    "datatrove-bin": ("datatrove", "tokenizers"),
    "dolma-bin": ("dolma", "tokenizers"),
    "trl": ("trl", "transformers", "datasets"),
    "lists": ("datasets", "tokenizers"),
}


def versions(peer: str) -> str | None:
    """Versions of a peer's packages, as "gigatoken 0.10.0"; None if one is not installed."""
    try:
        return ", ".join(
            f"{package} {importlib.metadata.version(package)}" for package in PACKAGES[peer]
        )
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_seconds() -> float:
    """CPU seconds of this process and of its children that ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@click.command(help=__doc__)
@click.argument("what", type=click.Choice([*PEERS]))
@click.argument("tokenizer", type=click.Path(exists=True))
@click.argument("file", type=click.Path(exists=True))
@click.argument("out")
def main(what: str, tokenizer: str, file: str, out: str) -> None:
    work = PEERS[what](tokenizer, file, out)
    wall, cpu = time.perf_counter(), cpu_seconds()
    work()
    print(json.dumps({"wall": time.perf_counter() - wall, "cpu": cpu_seconds() - cpu}))


if __name__ == "__main__":
    main()
