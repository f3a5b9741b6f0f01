"""A source whose texts spell special tokens is named once, with what to do about it."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.helpers.command import done
from tests.helpers.corpus import save_tokenizer, tiny_tokenizer, write_jsonl

CHAT = "<|im_start|>user\nHi {0}<|im_end|>\n<|im_start|>assistant\nAhoy<|im_end|>\n"
OPTION = "--parse-special-tokens"


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """The tiny tokenizer with the special tokens of ChatML."""
    made = Tokenizer.from_str(tiny_tokenizer().to_str())
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    folder = save_tokenizer(tmp_path / "tokenizer", config=config)
    made.save(str(folder / "tokenizer.json"))
    return folder


def chats(count: int, others: int = 0) -> list[dict[str, Any]]:
    """Rows of rendered chats, then of other texts."""
    texts = [CHAT.format(number) for number in range(count)]
    return [{"text": text} for text in [*texts, *["some other text"] * others]]


def said(tokenizer: Path, output: Path, *arguments: object) -> list[str]:
    """Lines of a build that name the option."""
    line = ["--tokenizer", tokenizer, "--max-length", "128", "--engine", "hf"]
    result = done("build", *arguments, "-o", output, *line)
    return [line for line in result.err.splitlines() if OPTION in line]


@pytest.mark.parametrize(
    ("rows", "is_named"),
    [
        (chats(5), True),
        (chats(3, 2), True),
        (chats(2, 2), False),
        (chats(1, 9), False),
        (chats(0, 3), False),
        ([{"text": "plain <|end|> of nothing"}] * 3, False),
        ([{"text": ""}, {"text": CHAT}], False),
        ([{"text": "first</s>second</s>third"}] * 2, True),
    ],
)
def test_a_source_is_named_if_most_of_its_texts_spell_special_tokens(
    tmp_path: Path, tokenizer: Path, rows: list[Any], is_named: bool
) -> None:
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    lines = said(tokenizer, tmp_path / "out", source)
    assert len(lines) == is_named
    if is_named:
        assert f"{source}: most texts spell special tokens, such as <" in lines[0]


def test_it_is_said_once_for_all_sources_wherever_they_are(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "web").mkdir()
    web = [write_jsonl(tmp_path / f"web/{n:02d}.jsonl", chats(0, 2)) for n in range(12)]
    (tmp_path / "chats").mkdir()
    packed = tmp_path / "chats/a.jsonl.gz"
    packed.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in chats(4)).encode()))
    (tmp_path / "more").mkdir()
    more = write_jsonl(tmp_path / "more/b.jsonl", chats(4))
    [line] = said(tokenizer, tmp_path / "out", *web, packed, more)
    assert f"{packed}: most texts spell special tokens, such as <|im_end|>" in line
    assert "as in 1 other source;" in line


def test_nothing_is_said_where_the_advice_is_taken_or_nothing_could_be_a_token(
    tmp_path: Path, tokenizer: Path
) -> None:
    source = write_jsonl(tmp_path / "rows.jsonl", chats(4))
    assert said(tokenizer, tmp_path / "parsed", source, OPTION) == []
    template = tmp_path / "chat.jinja"
    template.write_text("{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}")
    messages = [{"role": "user", "content": CHAT}, {"role": "assistant", "content": CHAT}]
    rows = write_jsonl(tmp_path / "chats.jsonl", [{"messages": messages}])
    line = ["--messages-column", "messages", "--chat-template", template, "--train-on", "all"]
    assert said(tokenizer, tmp_path / "chat", rows, *line) == []
    ids = write_jsonl(tmp_path / "ids.jsonl", [{"input_ids": [300, 5, 301]}])
    assert said(tokenizer, tmp_path / "ids", ids, "--input-ids-column", "input_ids") == []


def test_pairs_and_other_columns_are_texts_too(tmp_path: Path, tokenizer: Path) -> None:
    rows = [{"good": CHAT, "bad": "no"}] * 3
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    assert len(said(tokenizer, tmp_path / "pairs", source, "--pair-columns", "good,bad")) == 1
    assert len(said(tokenizer, tmp_path / "good", source, "--text-column", "good")) == 1
    assert said(tokenizer, tmp_path / "bad", source, "--text-column", "bad") == []
