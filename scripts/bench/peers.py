"""Programs that a build is compared with, each in a process of its own.

\b
hf        tokenizers alone: texts in, ids out, nothing kept; reading is not counted
gigatoken its whole-file call from JSON lines to ids, which Megatron-LM's preprocess_data_fast.py
          uses, then one flat file of ids and one of offsets
trl       datasets.map with a transformers tokenizer, TRL's bfd_split packing, save_to_disk
lists     datasets.map that returns packed Python lists, as block-tokenizing functions do
trl-chats chats as TRL's SFTTrainer prepares them: ids and masks of answers, packs of its `bfd`

Prints as JSON the wall and CPU seconds of the work alone, without imports and loading of the
tokenizer. CPU seconds include processes that the work started.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np

Work = Callable[[], object]
MAX_LENGTH = 4096
BATCH = 1000
# By a special token. TRL itself chooses by the text of the template, of which there are versions.
TEMPLATES = {
    "<|start_header_id|>": "llama3_training_chat_template",
    "<|im_start|>": "qwen3_training_chat_template",
}


def _batches(path: str) -> list[list[str]]:
    with open(path) as file:  # noqa: PTH123
        rows = [json.loads(line)["text"] for line in file]
    return [rows[first : first + BATCH] for first in range(0, len(rows), BATCH)]


def hf(tokenizer: str, path: str, out: str) -> Work:
    from tokenizers import Tokenizer

    encode: Any = Tokenizer.from_file(f"{tokenizer}/tokenizer.json").encode_batch_fast
    batches = _batches(path)
    return lambda: [len(encode(batch, add_special_tokens=False)) for batch in batches]


def gigatoken(tokenizer: str, path: str, out: str) -> Work:
    import awkward
    import gigatoken as package

    Path(out).mkdir(parents=True)
    engine = package.Tokenizer.from_json(Path(f"{tokenizer}/tokenizer.json").read_text())
    dtype = np.uint16 if engine.vocab_size <= 1 << 16 else np.int32  # as Megatron-LM chooses

    def work() -> None:
        encoded = engine.encode_files(package.JsonlFileSource([path], "text"))
        awkward.to_numpy(awkward.flatten(encoded)).astype(dtype).tofile(f"{out}/ids.bin")
        np.cumsum(awkward.to_numpy(awkward.num(encoded)), dtype=np.int64).tofile(f"{out}/ends.idx")

    return work


def _mapped(path: str, out: str, call: Any) -> Any:
    """The rows of a file, and a function that maps them with all cores."""
    import datasets

    datasets.disable_progress_bars()
    rows = datasets.load_dataset("json", data_files=path, split="train", cache_dir=f"{out}/cache")
    cores = os.cpu_count() if len(rows) > BATCH else None
    return cores, lambda: rows.map(
        call, batched=True, num_proc=cores, remove_columns=rows.column_names
    )


def trl(tokenizer: str, path: str, out: str) -> Work:
    import transformers
    from trl.data_utils import pack_dataset

    engine = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{tokenizer}/tokenizer.json")

    def tokenize(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {"input_ids": engine(batch["text"], add_special_tokens=False)["input_ids"]}

    cores, mapped = _mapped(path, out, tokenize)
    options: Any = {"strategy": "bfd_split", "map_kwargs": {"num_proc": cores}}
    return lambda: pack_dataset(mapped(), MAX_LENGTH, **options).save_to_disk(f"{out}/saved")


def lists(tokenizer: str, path: str, out: str) -> Work:
    from tokenizers import Tokenizer

    engine = Tokenizer.from_file(f"{tokenizer}/tokenizer.json")

    def blocks(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        ids = [token for encoding in engine.encode_batch(batch["text"]) for token in encoding.ids]
        return {"input_ids": [ids[at : at + MAX_LENGTH] for at in range(0, len(ids), MAX_LENGTH)]}

    _, mapped = _mapped(path, out, blocks)
    return lambda: mapped().save_to_disk(f"{out}/saved")


def trl_chats(folder: str, path: str, out: str) -> Work:
    import datasets
    from transformers import AutoTokenizer
    from trl import chat_template_utils
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    datasets.disable_progress_bars()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    vocabulary = tokenizer.get_vocab()
    name = next((name for token, name in TEMPLATES.items() if token in vocabulary), None)
    if name is None:
        raise click.ClickException(f"TRL has no training template for {folder}")
    template = getattr(chat_template_utils, name)
    trainer: Any = SimpleNamespace(
        _tokenizer=tokenizer, chat_template=template, completion_only_loss=False
    )
    settings = SFTConfig(
        output_dir=out, packing=True, assistant_only_loss=True, max_length=MAX_LENGTH, use_cpu=True
    )
    prepare: Any = SFTTrainer._prepare_dataset  # the trainer's own, called without a model

    def work() -> None:
        rows = datasets.load_dataset("json", data_files=path, split="train", cache_dir=out)
        packed = prepare(trainer, rows, tokenizer, settings, True, None, "train")
        packed.save_to_disk(f"{out}/packed")

    return work


PEERS: dict[str, tuple[Callable[[str, str, str], Work], tuple[str, ...]]] = {
    "hf": (hf, ("tokenizers",)),
    "gigatoken": (gigatoken, ("gigatoken", "awkward")),
    "trl": (trl, ("trl", "transformers", "datasets")),
    "lists": (lists, ("datasets", "tokenizers")),
    "trl-chats": (trl_chats, ("trl", "transformers", "datasets")),
}
"""By name: the program, and the packages that it needs."""


@click.command(help=__doc__)
@click.argument("what", type=click.Choice([*PEERS]))
@click.argument("tokenizer", type=click.Path(exists=True))
@click.argument("file", type=click.Path(exists=True))
@click.argument("out")
def main(what: str, tokenizer: str, file: str, out: str) -> None:
    work = PEERS[what][0](tokenizer, file, out)
    wall, before = time.perf_counter(), os.times()
    work()
    after = os.times()
    cpu = sum(after[:4]) - sum(before[:4])
    print(json.dumps({"wall": time.perf_counter() - wall, "cpu": cpu}))


if __name__ == "__main__":
    main()
