"""Real text and real tokenizers, end to end, or those of tests/helpers/stand_ins.py."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from packprep import build
from packprep.loaders import PackedShards
from packprep.packing.strategies import STRATEGIES

from .helpers import stand_ins
from .helpers.corpus import SHARED, expected_ids, write_jsonl
from .helpers.files import config

TOKENIZERS = {
    "gpt2": ("<|endoftext|>", "<|endoftext|>"),
    "llama3_2": ("<|begin_of_text|>", "<|eot_id|>"),
    "qwen3": (None, "<|im_end|>"),
    "mistral_nemo": ("<s>", "</s>"),
    "gemma2": ("<bos>", "<eos>"),
    "t5_small": (None, "</s>"),
    "bert_base_uncased": ("[CLS]", "[SEP]"),
}
FOLDERS = {name: SHARED / "tokenizers" / name for name in TOKENIZERS} | {
    f"{name}, made here": stand_ins.data() / "tokenizers" / name for name in stand_ins.TOKENIZERS
}
SHORT = ("llama3_2, ", "t5_small, ")


def rows(name: str, every: int = 1) -> Iterator[dict[str, Any]]:
    with gzip.open(SHARED / "text" / f"{name}.jsonl.gz", "rt") as file:
        for number, line in enumerate(file):
            if number % every == 0:
                yield json.loads(line)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Every 160th document of each corpus, a long book and empty documents: some MB of text."""
    names = sorted(path.name.split(".")[0] for path in (SHARED / "text").glob("*.jsonl.gz"))
    documents = [
        row["text"] for name in names if name != "sgd_chat" for row in rows(name, every=160)
    ]
    documents += ["", max((row["text"] for row in rows("books")), key=len), ""]
    return write_jsonl(tmp_path_factory.mktemp("sample") / "sample.jsonl", documents), documents


def flat_documents(output: Path, stride: int = 0) -> dict[int, list[int]]:
    """Ids of each document in the order of document_starts, without tokens repeated by stride."""
    pieces: dict[int, list[tuple[int, np.ndarray]]] = {}
    for pack in PackedShards(output):
        for segment in pack.segments():
            assert segment.document_id is not None
            assert segment.start is not None
            pieces.setdefault(segment.document_id, []).append((segment.start, segment.tokens))
    documents = {}
    for document, parts in pieces.items():
        parts.sort(key=lambda part: part[0])
        tokens_of_parts = [tokens if start == 0 else tokens[stride:] for start, tokens in parts]
        documents[document] = np.concatenate(tokens_of_parts).tolist()
    return documents


@pytest.fixture(scope="module")
def gpt2_ids(sample: tuple[Path, list[str]]) -> dict[int, list[int]]:
    tokenizer = Tokenizer.from_file(str(SHARED / "tokenizers" / "gpt2" / "tokenizer.json"))
    end = tokenizer.token_to_id("<|endoftext|>")
    return {
        number: ids
        for number, ids in enumerate(expected_ids(sample[1], tokenizer, end, end))
        if ids
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.mark.parametrize(
    ("strategy", "overflow"),
    [
        ("best_fit", "split"),
        ("wrapped", "drop"),
        *(
            pytest.param(strategy, overflow, marks=pytest.mark.long)
            for strategy in sorted({*STRATEGIES, "wrapped"})
            for overflow in ("split", "truncate", "drop", "error")
            if (strategy, overflow) not in (("best_fit", "split"), ("wrapped", "drop"))
        ),
    ],
)
def test_packs_decode_to_the_ids_of_tokenizers_document_by_document(
    sample: tuple[Path, list[str]],
    gpt2_ids: dict[int, list[int]],
    store: Path,
    tmp_path: Path,
    strategy: str,
    overflow: str,
) -> None:
    length = 1 << 20 if overflow == "error" else 2048
    stride = 100 if overflow == "split" and strategy != "wrapped" else 0
    settings: Any = {"strategy": strategy, "overflow": overflow, "max_length": length}
    settings |= {"stride": stride} if stride else {}
    gpt2 = SHARED / "tokenizers" / "gpt2"
    places = {"sources": sample[0], "output": tmp_path / "out", "tokenizer": gpt2}
    build(config(keep_tokens=store, **places, **settings))
    expected = gpt2_ids
    if overflow == "truncate":
        expected = {document: ids[:2048] for document, ids in gpt2_ids.items()}
    elif overflow == "drop":
        expected = {document: ids for document, ids in gpt2_ids.items() if len(ids) <= 2048}
    assert flat_documents(tmp_path / "out", stride) == expected


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name.startswith(SHORT) else [pytest.mark.long])
        for name in FOLDERS
    ],
)
def test_every_kind_of_tokenizer_builds_with_the_ids_of_the_tokenizer_alone(
    name: str, tmp_path: Path
) -> None:
    documents = [
        row["text"] for corpus in ("tldr", "udhr", "eips") for row in rows(corpus, every=60)
    ]
    source = write_jsonl(tmp_path / "sample.jsonl", documents)
    folder = FOLDERS[name]
    build(config(sources=source, output=tmp_path / "out", tokenizer=folder))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    kind = folder.name
    ends = [
        None if token is None else tokenizer.token_to_id(token)
        for token in TOKENIZERS.get(kind) or stand_ins.ENDS[kind]
    ]
    expected = expected_ids(documents, tokenizer, *ends)
    assert flat_documents(tmp_path / "out") == {
        number: ids for number, ids in enumerate(expected) if ids
    }
