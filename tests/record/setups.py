"""The set-ups of the record: 40 builds, which together use every option that decides bytes.

Each is the arguments of `packprep build`, or several commands. What they have to make is in
setups.json: digests of all columns and the numbers of the report.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import running

RECORDED = Path(__file__).with_name("setups.json")


@dataclass(frozen=True)
class Setup:
    """Commands, the last of which writes `out`.

    yaml: options of the build's YAML file. stdin: a file of the inputs. needs: a library that has
    to be installed.
    """

    commands: str | tuple[str, ...]
    yaml: Mapping[str, Any] = field(default_factory=dict)
    stdin: str = ""
    needs: str = ""

    def run(self, inputs: Path, folder: Path) -> running.Result:
        """What the commands make in a new folder. inputs: see inputs.py."""
        listed = (self.commands,) if isinstance(self.commands, str) else self.commands
        with contextlib.chdir(running.started(folder, inputs, {})):
            for each in listed:
                code, kind, said = running.command(each, self.yaml, self.stdin, quiet=False)
                assert code == 0, f"{each}: {kind}: {said}"
            return running.result_of(Path("out"), said)


SETUPS = {
    "gzip, first_fit, truncate": Setup(
        "in/rows.jsonl.gz --tokenizer in/gpt2 --strategy first_fit --overflow truncate "
        "--order length:2"),
    "zstd, knapsack, truncate:left": Setup(
        "in/rows.jsonl.zst --tokenizer in/llama3_2 --strategy knapsack "
        "--overflow truncate:left --order balanced:4"),
    "a JSON array, optimal, drop": Setup(
        "in/rows.json --tokenizer in/qwen3 --max-length 48 --strategy optimal --overflow drop "
        "--order balanced:3:10,1 --multiple 7 --text body"),
    "parquet, stream, carried numbers": Setup(
        "in/rows.parquet --tokenizer in/gemma2 --strategy stream --order input --limit 45 "
        "--carry quality:float32 --carry stars:int8 --carry good"),
    "arrow, greedy, shuffled": Setup(
        "in/rows.arrow --tokenizer in/t5_small --strategy greedy --max-segments 2",
        {"shuffle_documents": True}),
    "csv, first_fit_input": Setup(
        "in/rows.csv --tokenizer in/bert_base_uncased --strategy first_fit_input "
        "--min-pack-tokens 40 --bos '[CLS]' --eos '[SEP]'"),
    "tsv, wrapped, no ends": Setup(
        "in/rows.tsv --tokenizer in/mistral_nemo --strategy wrapped --bos none --eos none"),
    "csv in gzip, balanced": Setup(
        "in/rows.csv.gz --tokenizer in/deepseek --max-length 256 --strategy balanced:90"),
    "saved dataset, stride": Setup(
        "in/saved --tokenizer in/o200k --stride 16 --seed 2147483648 "
        "--text '# {title}\\n\\n{body}\n'"),
    "glob, tiktoken, limit": Setup(
        "'in/parts/part-*.jsonl.gz' --tokenizer in/tiktoken --limit 60",
        needs="tiktoken"),
    "folders and sources of their own": Setup(
        "--pad-to-multiple 16",
        {"sources": [
            {"path": "in/rows.jsonl", "text": "{title} {body}", "limit": 30},
            {"path": "in/book.txt", "sample_by": "paragraph"},
            {"path": "in/mixed"}, {"path": "in/c.jsonl"},
            {"path": "in/rows.csv", "text": "title"}]}),
    "standard input, truncate_at": Setup(
        "- --min-document-tokens 12 --max-document-tokens 100",
        {"truncate_at": "\\n\\n# Notes \\d+"}, stdin="in/footers.jsonl"),
    "skip bad rows": Setup(
        "in/some_bad.jsonl --on-error skip --min-document-tokens 0 --order balanced"),
    "plan of long documents": Setup(
        "in/long.jsonl in/short.jsonl --stride 9 --store store --columns plan --holdout 0.2",
        {"continuation_bos": True}),
    "groups held out together": Setup(
        "in/rows.jsonl --group group --strategy best_fit --seed 7 --holdout 0.3:7"),
    "special tokens in text, int32": Setup(
        "in/marked.jsonl --bos '</s>' --eos none",
        {"token_type": "int32"}),
    "tokenizer file, fastest engine, little memory": Setup(
        "in/scripts.jsonl in/a.jsonl --tokenizer in/gpt2/tokenizer.json --num-proc 2 "
        "--eos '<|endoftext|>' --executor local",
        {"engine": "auto", "max_memory": "2GB"}),
    "nothing too long, no columns": Setup(
        "in/short.jsonl --max-length 512 --overflow error --multiple 4:fill --columns ''",
        {"shard_size": 20000}),
    "included file, variable": Setup(
        "in/a.jsonl --order length --columns position_ids",
        {"include": "in/base.yaml", "seed": "${RECORD_SEED:9}", "max_length": None}),
    "epoch 1": Setup("in/a.jsonl --strategy first_fit --epoch 1"),
    "windows": Setup("in/a.jsonl in/b.jsonl --holdout 0.2", {"window": 12000}),
    "mix of sources of their own": Setup(
        "--max-tokens 30000",
        {"sources": [
            {"path": "in/a.jsonl", "weight": 2, "max_epochs": 2},
            {"path": "in/b.jsonl", "weight": 1, "max_epochs": 2}]}),
    "chats, truncate:balanced": Setup(
        "in/openai.jsonl --tokenizer in/chat --max-length 80 --overflow truncate:balanced "
        "--order balanced:2 --seed 3 --messages messages"),
    "ShareGPT, last turn, hf": Setup(
        "in/sharegpt.jsonl --tokenizer in/chat --max-length 256 --train-on last-turn "
        "--messages auto --columns hf"),
    "a turn each": Setup(
        "in/thoughts.jsonl --tokenizer in/chat --max-length 96 --turns each "
        "--messages messages --holdout 0.2"),
    "turns of qwen3": Setup(
        "in/thoughts.jsonl --tokenizer in/qwen3 --max-length 512 --turns auto "
        "--messages messages"),
    "generation blocks, train false": Setup(
        "in/untrained.jsonl --tokenizer in/chat --max-length 256 --chat-template "
        "in/keeps.jinja --messages messages"),
    "a template in Python, parquet": Setup(
        "in/openai.parquet --tokenizer in/chat --chat-template in/renderer.py:render "
        "--stride 8 --messages messages --carry score --carry id"),
    "plan of tools": Setup(
        "in/tools.jsonl --tokenizer in/llama3_2 --max-length 512 --store store "
        "--messages messages --columns plan",
        {"template_variables": {"date_string": "01 Jan 2026"}}),
    "content in parts, with weights": Setup(
        "in/parts.jsonl --tokenizer in/mistral_nemo --max-length 256 "
        "--max-document-tokens 120 --messages messages"),
    "prompts, all trained": Setup(
        "in/prompts.jsonl --train-on all --pad-to-multiple 8 --messages question,answer"),
    "labels and weights of tokens": Setup(
        "in/labels.parquet --stride 8 --pad-to-multiple 8 --ids ids,labels:labels "
        "--carry weights:float64 --carry reward:float32"),
    "packed ids, split": Setup("in/packed_ids.jsonl --ids ids --holdout 0.3", {"split_at": "eos"}),
    "ids of two columns, no tokenizer": Setup(
        "--tokenizer 400 --ids ids",
        {"sources": [{"path": "in/ids.jsonl"}, {"path": "in/pairs_ids.jsonl", "ids": "chosen"}]}),
    "pieces": Setup(
        "in/pieces.jsonl --max-length 24 --pieces pieces --stride 4 --carry reward "
        "--holdout 0.2"),
    "pairs, truncate:left": Setup(
        "in/pairs.jsonl --tokenizer in/chat --max-length 24 --overflow truncate:left "
        "--max-segments 2 --pairs prompt,chosen,rejected"),
    "plan of pairs of chats": Setup(
        "in/pairs_chats.jsonl --tokenizer in/chat --max-length 256 --store store "
        "--pairs chosen,rejected --messages auto --columns plan"),
    "pairs of ids with masks": Setup(
        "in/pairs_ids.jsonl --max-length 40 --overflow drop --pairs chosen,rejected "
        "--ids auto,chosen_mask,rejected_mask:mask"),
    "token files": Setup(
        "pack --tokenizer in/tiny --max-length 64 -o out in/megatron/x.bin in/megatron32/x.bin "
        "in/megatron8/x.bin in/npy/x.npy in/raw_npy/x.npy in/dolma/x.npy in/datatrove/x.ds"),
    "parts of tokenize and pack": Setup((
        "tokenize in/a.jsonl in/b.jsonl -o store --part 0/2",
        "tokenize in/a.jsonl in/b.jsonl -o store --part 1/2",
        "tokenize in/long.jsonl in/short.jsonl -o st2 --limit 90",
        "pack store st2 -o out --max-length 64 --part 0/2 --strategy knapsack --overflow truncate",
        "pack store st2 -o out --max-length 64 --part 1/2 --strategy knapsack --overflow truncate",
    )),
}  # fmt: skip
