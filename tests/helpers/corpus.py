"""Small inputs for tests: a byte-level BPE trained on a few lines, rows of every kind."""

import json
import random
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).parents[2]
CHAT_TEMPLATE = (
    "{%- set ns = namespace(last=-1) %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}{%- for m in messages %}"
    "<s>{{ m.role }}\n{% if m.role == 'assistant' and m.reasoning_content "
    "and loop.index0 > ns.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}</s>\n{% endfor %}{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
"""Keeps only the thought of the last turn, as the templates of reasoning models do."""

_LINES = [
    "The cat sat on the mat, and the dog sat on the log.",
    "Packing puts short documents together so that no token of a sequence is padding.",
    "Größe, naïveté, 東京 and emoji 🙂 are bytes like any other.",
    "def pack(lengths, max_length): return sorted(lengths, reverse=True)",
]


@cache
def tiny_tokenizer() -> Tokenizer:
    """Byte-level BPE of 320 tokens with <s> and </s>."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken("<s>", special=True), AddedToken("</s>", special=True)]
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_LINES * 3, trainer)
    return tokenizer


def save_tokenizer(folder: Path, *, config: dict[str, Any] | None = None) -> Path:
    """Save the tiny tokenizer as a directory.

    config: content of tokenizer_config.json; by default it names <s> and </s>.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    side = {"bos_token": "<s>", "eos_token": "</s>"} if config is None else config
    (folder / "tokenizer_config.json").write_text(json.dumps(side))
    return folder


def write_jsonl(path: Path, rows: Iterable[Any]) -> Path:
    """Write one JSON value per line; a text becomes a row with this `text`."""
    lines = [json.dumps({"text": row} if isinstance(row, str) else row) for row in rows]
    path.write_text("".join(line + "\n" for line in lines))
    return path


def texts(count: int, seed: int = 0) -> list[str]:
    """Documents of 0 to about 300 words, the same for the same seed."""
    words = " ".join(_LINES).split()
    sizes = [
        (seed * 7919 + 31 * number * number + 17 * number) % (300 if number % 7 == 0 else 40)
        for number in range(count)
    ]
    return [
        " ".join(words[(number + place) % len(words)] for place in range(size))
        for number, size in enumerate(sizes)
    ]


def chat_rows(count: int) -> list[dict[str, Any]]:
    """Conversations of 1 to 3 turns; each answer has a thought."""
    words, rows = texts(count * 3 + 1, seed=5), []
    for row in range(count):
        messages = [{"role": "system", "content": "Be short."}] if row % 5 == 0 else []
        for turn in range(1 + row % 3):
            answer = {"role": "assistant", "content": words[row * 3 + turn][:120] or "yes"}
            answer["reasoning_content"] = f"thought {row} {turn}"
            messages += [{"role": "user", "content": f"question {row} of {turn}"}, answer]
        rows.append({"messages": messages})
    return rows


def pair_rows(count: int) -> list[dict[str, Any]]:
    """Prompts with a better and a worse answer."""
    draw, words = random.Random(3), " ".join(texts(20)).split()

    def some(most: int) -> str:
        return " ".join(draw.choices(words, k=draw.randrange(1, most)))

    return [{"prompt": some(6), "chosen": some(8), "rejected": some(8)} for _ in range(count)]
