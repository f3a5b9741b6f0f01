"""Set-ups over real text and real tokenizers, which a checkout may have beside it.

Each has the first rows of a corpus; every corpus has two tokenizers or more.
"""

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from .running import Case

DATA = Path(__file__).parents[3] / "shared" / "data"
CORPORA = {
    "books": 3,
    "eips": 40,
    "gsm8k": 300,
    "peps": 20,
    "pydocs_fr": 30,
    "pydocs_zh": 30,
    "pystdlib": 25,
    "rust_rfcs": 25,
    "shakespeare": 1,
    "tldr": 500,
    "udhr": 50,
    "wikitext2": 15,
}
"""Rows of each that are read; `sgd_chat` has conversations."""
TOKENIZERS = (
    "gpt2",
    "llama3_2",
    "qwen3",
    "mistral_nemo",
    "gemma2",
    "t5_small",
    "bert_base_uncased",
)
WITH_TEMPLATE = ("llama3_2", "qwen3", "mistral_nemo")
ENDS: dict[str, dict[str, str]] = {"bert_base_uncased": {"bos": "[CLS]", "eos": "[SEP]"}}
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"strategy": "knapsack", "holdout": 0.1},
    {"strategy": "wrapped"},
    {"overflow": "truncate", "order": "length"},
    {"stride": 64, "seed": 3},
    {"strategy": "stream", "order": "input"},
    {"strategy": "optimal", "packs_multiple_of": "4:fill"},
    {"names": "hf"},
    {"min_document_tokens": 20, "max_segments_per_pack": 3},
)
"""Options that the set-ups have in turn."""
BASE: dict[str, Any] = {"max_length": 2048, "num_proc": 1, "output": "out", "quiet": True}


def cases() -> list[Case]:
    """Two tokenizers for each corpus, and the chats by each template."""
    return [*_texts(), *_chats()]


def _case(name: str, corpus: str, tokenizer: str, **options: Any) -> Case:
    named = f"in/data/tokenizers/{tokenizer}"
    given = {"sources": [f"in/data/text/{corpus}.jsonl.gz"], "tokenizer": named, **BASE} | options
    return Case(name, (("build", given | ENDS.get(tokenizer, {})),))


def _texts() -> Iterator[Case]:
    tokenizers, variants = cycle(TOKENIZERS), cycle(VARIANTS)
    for corpus, rows in CORPORA.items():
        for _ in range(2):
            tokenizer, variant = next(tokenizers), next(variants)
            name = f"{corpus}, {tokenizer}"
            yield _case(name, corpus, tokenizer, limit=rows, **variant)


def _chats() -> Iterator[Case]:
    for tokenizer in WITH_TEMPLATE:
        options: dict[str, Any] = {"messages_column": "messages", "limit": 150}
        if tokenizer == "llama3_2":
            options["template_variables"] = '{"date_string": "01 Jan 2026"}'
        for more in ({}, {"train_on": "last-turn", "overflow": "truncate:left", "max_length": 256}):
            name = f"sgd_chat, {tokenizer}" + (", last turn" if more else "")
            yield _case(name, "sgd_chat", tokenizer, **options | more)
