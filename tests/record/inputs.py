"""Inputs of the record: small, and the same on every machine and in every version of Python.

`make` writes all of them into one folder, which set-ups only read, as `in/NAME`. The tokenizers are
stand-ins that are trained on the lines of this module.
"""

import base64
import contextlib
import gzip
import io
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import zstandard

from tests.helpers import stand_ins, token_files
from tests.helpers.corpus import (
    CHAT_TEMPLATE,
    chat_rows,
    pair_rows,
    save_tokenizer,
    texts,
    tiny_tokenizer,
    write_jsonl,
)

Row = dict[str, Any]
EOS: int = tiny_tokenizer().get_vocab()["</s>"]
SPECIAL = ("<s>", "</s>")
PATTERN = r"'s| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # of the file of tiktoken
KEEPS = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}</s>{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
    "{% endfor %}"
)
"""A template that says itself which text it trains."""
RENDERER = '''"""Pieces of a conversation: the text of the assistant is trained."""


def render(messages, tools, **variables):
    pieces = []
    for message in messages:
        trained = message["role"] == "assistant"
        pieces.append({"text": f"<s>{message['role']}\\n", "train": False})
        pieces.append({"text": f"{message['content']}</s>", "train": trained})
    return pieces
'''
_SCRIPTS = [
    "Größe, naïveté and façade: accents of several languages, and 12,345.67 numbers.",
    "東京は日本の首都です。人口は約1400万人。 中文没有空格，也没有大写字母。",
    "Привет, мир! Это короткий текст. Ελληνικά και μαθηματικά: ∑ ∫ √ ≈.",
    "مرحبا بالعالم. שלום עולם. नमस्ते दुनिया. สวัสดีชาวโลก 🙂🚀👩‍👩‍👧",
    "def pack(lengths, max_length):\n    return sorted(lengths, reverse=True)\n\n\n# the end\n",
]


def sentences(count: int, seed: int) -> list[str]:
    """Documents of words of several scripts, the same for the same seed."""
    draw, words = random.Random(seed), " ".join(_SCRIPTS).split(" ")
    return [" ".join(draw.choices(words, k=draw.randrange(1, 60))) for _ in range(count)]


def rows_of_text() -> list[Row]:
    """Rows with text, another text, a group, and numbers of each type."""
    return [
        {
            "id": number,
            "text": text,
            "title": f"Title {number}",
            "body": text[:200],
            "group": f"g{number % 5}",
            "quality": number / 7,
            "stars": number % 6,
            "good": number % 3 == 0,
        }
        for number, text in enumerate(texts(100, seed=4))
    ]


def ids_of(text: str) -> list[int]:
    """Ids by the tiny tokenizer."""
    ids: list[int] = tiny_tokenizer().encode(text, add_special_tokens=False).ids
    return ids


def rows_of_ids(kind: str = "") -> list[Row]:
    """Rows of token ids with a weight for each and a number; kind: with labels or a mask."""
    rows = []
    for number, text in enumerate(texts(90, seed=6)):
        ids = ids_of(text) or [5]
        cut = len(ids) * (number % 4) // 4
        mask = [0] * cut + [1] * (len(ids) - cut)
        labels = [token if keep else -100 for token, keep in zip(ids, mask, strict=True)]
        row: Row = {"ids": ids, "weights": [place / 8 for place in range(len(ids))]}
        row |= {"labels": {"labels": labels}, "mask": {"mask": mask}}.get(kind, {})
        rows.append(row | {"reward": number / 3})
    return rows


def packed_rows() -> list[Row]:
    """Rows of token ids that hold several documents; each of them ends with EOS."""
    lines = texts(80, seed=7)
    return [
        {"ids": [token for text in lines[at : at + 4] for token in [*ids_of(text), EOS]]}
        for at in range(0, len(lines), 4)
    ]


def conversations() -> list[Row]:
    """Conversations in the form of OpenAI, with ids and a score, which are not rendered."""
    return [
        {"id": number, "messages": _without_thoughts(row["messages"]), "score": number / 4}
        for number, row in enumerate(chat_rows(40))
    ]


def _without_thoughts(messages: list[Row]) -> list[Row]:
    return [{"role": each["role"], "content": each["content"]} for each in messages]


def sharegpt() -> list[Row]:
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    return [
        {
            "conversations": [
                {"from": names[each["role"]], "value": each["content"]} for each in row["messages"]
            ]
        }
        for row in conversations()
    ]


def untrained() -> list[Row]:
    """Conversations in which every second answer is not trained."""
    rows = conversations()
    for row in rows:
        answers = [each for each in row["messages"] if each["role"] == "assistant"]
        for number, each in enumerate(answers):
            each["train"] = number % 2 == 0 and row["id"] % 3 > 0
    return rows


def with_parts() -> list[Row]:
    """Conversations with content in parts, and with `weight` for what is trained."""
    rows = conversations()
    for row in rows:
        for each in row["messages"]:
            half = len(each["content"]) // 2
            parts = each["content"][:half], each["content"][half:]
            each["content"] = [{"type": "text", "text": part} for part in parts]
            if each["role"] == "assistant":
                each["weight"] = row["id"] % 2
    return rows


def with_tools() -> list[Row]:
    """Conversations in which a tool is called; arguments are objects."""
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    rows = []
    for number, text in enumerate(texts(25, seed=9)):
        call = {"name": "weather", "arguments": {"city": f"City {number}"}}
        messages = [
            {"role": "user", "content": f"Weather in city {number}?"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"type": "function", "function": call}],
            },
            {"role": "tool", "content": f"{number} degrees"},
            {"role": "assistant", "content": text[:80] or "Warm."},
        ]
        rows.append({"messages": messages, "tools": [tool]})
    return rows


def prompts() -> list[Row]:
    """Prompts with a response as text, and the same as messages."""
    return [
        {
            "question": row["prompt"],
            "answer": row["chosen"],
            "prompt": [{"role": "user", "content": row["prompt"]}],
            "completion": [{"role": "assistant", "content": row["chosen"]}],
        }
        for row in pair_rows(40)
    ]


def pairs_of_chats() -> list[Row]:
    def chat(row: Row, side: str) -> list[Row]:
        asked = {"role": "user", "content": row["prompt"]}
        return [asked, {"role": "assistant", "content": row[side]}]

    return [{side: chat(row, side) for side in ("chosen", "rejected")} for row in pair_rows(40)]


def pairs_of_ids() -> list[Row]:
    rows = []
    for row in pair_rows(40):
        prompt = ids_of(row["prompt"])
        made: Row = {}
        for side in ("chosen", "rejected"):
            answer = ids_of(" " + row[side])
            made[side] = prompt + answer
            made[f"{side}_mask"] = [0] * len(prompt) + [1] * len(answer)
        rows.append(made)
    return rows


def pieces() -> list[Row]:
    """Pieces of text and of ids, some of which are trained."""
    rows = []
    for number, text in enumerate(texts(40, seed=11)):
        row: list[Row] = [
            {"text": f"<s>user\nquestion {number}</s>", "train": False},
            {"text": text[:150] or "yes", "train": True},
        ]
        if number % 3 == 0:
            row.append({"token_ids": [*ids_of(text[:20]), EOS], "train": number % 2 == 0})
        rows.append({"pieces": row, "reward": number / 5})
    return rows


def make(folder: Path) -> None:
    """Write every input into the folder, which exists and is empty."""
    _texts(folder)
    _rows(folder)
    _chats(folder)
    _token_files(folder)
    _tokenizers(folder)


def _texts(folder: Path) -> None:
    for seed, name in enumerate("abc"):
        write_jsonl(folder / f"{name}.jsonl", texts(120 - 30 * seed, seed=seed))
    write_jsonl(folder / "scripts.jsonl", sentences(120, seed=1))
    write_jsonl(folder / "long.jsonl", [" ".join(texts(40, seed=number)) for number in range(4)])
    write_jsonl(folder / "short.jsonl", [text[:60] for text in texts(150, seed=3)])
    footers = (f"{text}\n\n# Notes {number}\nfooter" for number, text in enumerate(texts(50)))
    write_jsonl(folder / "footers.jsonl", footers)
    marked = (f"<s>{text}</s> and </s> again" for text in texts(30))
    write_jsonl(folder / "marked.jsonl", marked)
    (folder / "book.txt").write_text("\n\n".join(filter(None, texts(60, seed=5))))
    lines = (folder / "a.jsonl").read_text().splitlines()
    lines[7:7] = ['{"text": 7}', "garbage", '{"body": "a"}']
    lines[40:40] = ['{"text": null}', '{"text": "a", "text": "b"}']
    (folder / "some_bad.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "parts").mkdir()
    for number in range(4):
        text = "".join(json.dumps({"text": each}) + "\n" for each in texts(25, seed=20 + number))
        path = folder / "parts" / f"part-{number:05}.jsonl.gz"
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
    (folder / "mixed" / "deeper").mkdir(parents=True)
    write_jsonl(folder / "mixed" / "a.jsonl", texts(20, seed=30))
    pq.write_table(pa.table({"text": texts(20, seed=31)}), folder / "mixed" / "b.parquet")
    write_jsonl(folder / "mixed" / "deeper" / "c.jsonl", texts(20, seed=32))


def _rows(folder: Path) -> None:
    """The same rows in every format."""
    rows = rows_of_text()
    lines = write_jsonl(folder / "rows.jsonl", rows).read_bytes()
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress(lines, mtime=0))
    (folder / "rows.jsonl.zst").write_bytes(zstandard.compress(lines))
    (folder / "rows.json").write_text(json.dumps(rows, indent=1))
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, folder / "rows.parquet", row_group_size=30)
    with pa.ipc.new_stream(str(folder / "rows.arrow"), table.schema) as stream:
        stream.write_table(table, max_chunksize=40)
    for name, sign in (("rows.csv", ","), ("rows.tsv", "\t")):
        options = pa.csv.WriteOptions(delimiter=sign)
        pa.csv.write_csv(table.select(["id", "title", "text"]), folder / name, options)
    data = (folder / "rows.csv").read_bytes()
    (folder / "rows.csv.gz").write_bytes(gzip.compress(data, mtime=0))
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bar
        datasets.Dataset(table).save_to_disk(folder / "saved", num_shards=2)


def _chats(folder: Path) -> None:
    made: dict[str, Callable[[], list[Row]]] = {
        "openai": conversations,
        "sharegpt": sharegpt,
        "thoughts": lambda: chat_rows(40),
        "untrained": untrained,
        "parts": with_parts,
        "tools": with_tools,
        "prompts": prompts,
        "pairs": lambda: pair_rows(60),
        "pairs_chats": pairs_of_chats,
        "pairs_ids": pairs_of_ids,
        "pieces": pieces,
        "ids": rows_of_ids,
        "labels": lambda: rows_of_ids("labels"),
        "mask": lambda: rows_of_ids("mask"),
        "packed_ids": packed_rows,
    }
    for name, listed in made.items():
        write_jsonl(folder / f"{name}.jsonl", listed())
    for name, table in (("labels", rows_of_ids("labels")), ("openai", conversations())):
        pq.write_table(pa.Table.from_pylist(table), folder / f"{name}.parquet", row_group_size=16)
    (folder / "keeps.jinja").write_text(KEEPS)
    (folder / "renderer.py").write_text(RENDERER)
    (folder / "base.yaml").write_text("max_length: 48\nseed: 3\n")
    recipe = "micro_batch_size: 2\nlearning_rate: 2e-5\nnum_epochs: 3\nwarmup_ratio: 0.1\n"
    (folder / "recipe.yaml").write_text(recipe)


def _token_files(folder: Path) -> None:
    documents = [ids_of(text) for text in (*texts(60, seed=13), "", "a")]
    ended = [[*document, EOS] for document in documents]
    token_files.write_megatron(folder / "megatron", documents)
    token_files.write_megatron(folder / "megatron32", documents, "i4")
    token_files.write_megatron(
        folder / "megatron8", [[each % 256 for each in d] for d in documents], "u1"
    )
    token_files.write_npy(folder / "npy", documents)
    token_files.write_npy(folder / "raw_npy", documents, header=False)
    token_files.write_dolma(folder / "dolma", documents)
    token_files.write_datatrove(folder / "datatrove", ended)


def _tokenizers(folder: Path) -> None:
    save_tokenizer(folder / "tiny")
    side = {"bos_token": "<s>", "eos_token": "</s>"}
    save_tokenizer(folder / "chat", config={**side, "chat_template": CHAT_TEMPLATE})
    save_tokenizer(folder / "bare", config={})
    lines = [*texts(200, seed=1), *sentences(400, seed=2), "user assistant system hello\n\n\n"]
    for name, train in stand_ins.TOKENIZERS.items():
        stand_ins.save(train(lines), name, folder / name)
    words = Counter(word for line in lines for word in re.findall(r"\w+", line))
    common = [word for word, _ in sorted(words.items(), key=lambda entry: (-entry[1], entry[0]))]
    letters = sorted({letter for line in lines for letter in line if not letter.isspace()})
    # Their trainers give another vocabulary in each run.
    _with_pieces(folder / "t5_small", ["▁", *letters, *(f"▁{word}" for word in common[:300])])
    lower = [letter for letter in letters if letter == letter.lower()]
    pieces = [*lower, *(f"##{letter}" for letter in lower), *map(str.lower, common[:300])]
    _with_pieces(folder / "bert_base_uncased", pieces)
    _tiktoken(folder / "tiktoken")


def _with_pieces(folder: Path, pieces: list[str]) -> None:
    """Replace the vocabulary of a tokenizer, but for its special tokens, which come first."""
    path = folder / "tokenizer.json"
    fields = json.loads(path.read_bytes())
    special = [token["content"] for token in fields["added_tokens"]]
    tokens = [*special, *dict.fromkeys(pieces)]
    fields["model"]["vocab"] = (
        {token: number for number, token in enumerate(tokens)}
        if fields["model"]["type"] == "WordPiece"
        else [[token, -number / 16] for number, token in enumerate(tokens)]
    )
    path.write_text(json.dumps(fields))


def _tiktoken(folder: Path) -> None:
    """The tokens of the tiny tokenizer as a file of tiktoken."""
    folder.mkdir()
    byte = {name: number for number, name in enumerate(_byte_names())}
    vocabulary = sorted(tiny_tokenizer().get_vocab().items(), key=lambda entry: entry[1])
    longer = [bytes(byte[c] for c in token) for token, _ in vocabulary if token not in SPECIAL]
    tokens = [*(bytes([number]) for number in range(256)), *(t for t in longer if len(t) > 1)]
    ranks = (f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens))
    (folder / "tiktoken.model").write_text("".join(ranks))
    added = {len(tokens) + number: token for number, token in enumerate(SPECIAL)}
    config = {"pat_str": PATTERN, "added_tokens_decoder": added}
    config |= {"bos_token": SPECIAL[0], "eos_token": SPECIAL[1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _byte_names() -> Iterator[str]:
    """The character that byte-level BPE writes for each byte."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return (chr(byte) if byte in plain else chr(next(others)) for byte in range(256))
