"""Chats as TRL's SFTTrainer prepares them: ids and masks of answers, then packs of its `bfd`.

    python scripts/bench/prepared_by_trl.py TOKENIZER CHATS.jsonl OUT

Calls the trainer's own method without a model. Prints the number of packs.
"""

import sys
from types import SimpleNamespace
from typing import Any

import datasets
from transformers import AutoTokenizer
from trl import chat_template_utils
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

# By a special token. TRL itself chooses by the text of the template, of which there are versions.
TEMPLATES = {
    "<|start_header_id|>": "llama3_training_chat_template",
    "<|im_start|>": "qwen3_training_chat_template",
}


def main(folder: str, chats: str, out: str) -> None:
    datasets.disable_progress_bars()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    vocabulary = tokenizer.get_vocab()
    name = next(name for token, name in TEMPLATES.items() if token in vocabulary)
    template = getattr(chat_template_utils, name)
    trainer: Any = SimpleNamespace(
        _tokenizer=tokenizer, chat_template=template, completion_only_loss=False
    )
    settings = SFTConfig(
        output_dir=out, packing=True, assistant_only_loss=True, max_length=4096, use_cpu=True
    )
    rows = datasets.load_dataset("json", data_files=chats, split="train", cache_dir=out)
    prepare: Any = SFTTrainer._prepare_dataset
    packed = prepare(trainer, rows, tokenizer, settings, True, None, "train")
    packed.save_to_disk(f"{out}/packed")
    print(len(packed))


if __name__ == "__main__":
    main(*sys.argv[1:])
