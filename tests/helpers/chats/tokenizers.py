"""Tokenizers with templates, and conversations for them."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from packprep.chat.types import Message
from tests.helpers.corpus import chat_rows

DATE = "26 Jul 2024"  # what llama3_2's template writes where there is no clock
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Tell the <weather> "now", é',
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "default": None}},
        },
    },
}
CALL = {
    "type": "function",
    "id": "abcdefghi",
    "function": {"name": "weather", "arguments": {"city": 'Pa"ris\n'}},
}
SYSTEM: Message = {"role": "system", "content": " Be kind.\n"}
USER: Message = {"role": "user", "content": "  Hello 你好 \n"}
ANSWER: Message = {"role": "assistant", "content": "\n\nHi there  "}
BYE: Message = {"role": "user", "content": "Bye"}
CALLING: Message = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT: Message = {"role": "tool", "content": "{}", "tool_call_id": "abcdefghi", "name": "weather"}
THINKING: Message = {"role": "assistant", "content": "Sunny.", "reasoning_content": "hm\n"}
INLINE: Message = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSunny."}
CHATS: dict[str, list[Message]] = {
    "one turn": [USER, ANSWER],
    "system": [SYSTEM, USER, ANSWER],
    "turns": [SYSTEM, USER, ANSWER, USER, ANSWER, BYE, ANSWER],
    "thinking": [USER, THINKING, USER, THINKING],
    "thinking in the text": [USER, INLINE, USER, INLINE],
    "a call": [SYSTEM, USER, CALLING, RESULT, THINKING],
    "calls": [USER, CALLING, RESULT, ANSWER, BYE, CALLING, RESULT, ANSWER],
    "a question": [USER],
    "the question last": [USER, ANSWER, USER],
}


@lru_cache
def transformers_tokenizer(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    return transformers.AutoTokenizer.from_pretrained(str(folder))


# Tokenizers with a template of their own: what opens an assistant's turn and closes it, for the
# oracle that knows the formats by heart.
FORMATS = {
    "llama3_2": ("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
    "qwen3": ("<|im_start|>assistant\n", "<|im_end|>"),
    "mistral_nemo": ("[/INST]", "</s>"),
}


def chats(count: int) -> list[list[Message]]:
    """Questions and answers, without system and thoughts."""
    return [
        [
            {"role": each["role"], "content": each["content"]}
            for each in row["messages"]
            if each["role"] != "system"
        ]
        for row in chat_rows(count)
    ]


# Tokenizers of other kinds, with a template given by hand whose special tokens they have.
OTHERS = {
    "gemma2": ("<start_of_turn>", "<end_of_turn>"),
    "t5_small": ("<pad>", "</s>"),
    "bert_base_uncased": ("[CLS]", "[SEP]"),
}


def metaspace(folder: Path, scheme: str) -> Path:
    """A small SentencePiece-like BPE whose first word alone, or every piece, gets a space."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(
        prepend_scheme=scheme, split=False
    )
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=200,
        show_progress=False,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=sorted("abcdefghijklmnopqrstuvwxyz<>/\n▁:"),
    )
    tokenizer.train_from_iterator(["hello you and me assistant user hello hi you"] * 9, trainer)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    sides = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(sides))
    return folder


CHATML = (
    "{{ bos_token }}{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
