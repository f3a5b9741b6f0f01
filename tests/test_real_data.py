"""Real text and real tokenizers, end to end, or those of tests/helpers/stand_ins.py."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from packprep import BuildConfig, build
from packprep.loaders import PackedShards
from packprep.packing.strategies import STRATEGIES
from packprep.support.errors import InputError

from .helpers import stand_ins
from .helpers.corpus import SHARED, expected_ids

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
    path = tmp_path_factory.mktemp("sample") / "sample.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return path, documents


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
    config: dict[str, Any] = {"strategy": strategy, "overflow": overflow, "max_length": 2048}
    if overflow == "split" and strategy != "wrapped":
        config["stride"] = 100
    if overflow == "error":
        config["max_length"] = 1 << 20
    build(
        BuildConfig(
            sources=(str(sample[0]),),
            output=str(tmp_path / "out"),
            tokenizer=str(SHARED / "tokenizers" / "gpt2"),
            keep_tokens=str(store),
            **config,
        )
    )
    expected = gpt2_ids
    if overflow == "truncate":
        expected = {document: ids[:2048] for document, ids in gpt2_ids.items()}
    elif overflow == "drop":
        expected = {document: ids for document, ids in gpt2_ids.items() if len(ids) <= 2048}
    assert flat_documents(tmp_path / "out", config.get("stride", 0)) == expected


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
    source = tmp_path / "sample.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    folder = FOLDERS[name]
    build(BuildConfig(sources=(str(source),), output=str(tmp_path / "out"), tokenizer=str(folder)))
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


@pytest.mark.long
def test_every_corpus_of_text_builds_in_one_command(tmp_path: Path) -> None:
    files = sorted(
        path for path in (SHARED / "text").glob("*.jsonl.gz") if "sgd_chat" not in path.name
    )
    config = BuildConfig(
        sources=tuple(map(str, files)),
        output=str(tmp_path / "out"),
        tokenizer=str(SHARED / "tokenizers" / "gpt2"),
    )
    manifest = build(config)
    assert manifest.num_tokens == manifest.ledger["tokens_in"]
    documents = sum(source["documents"] for source in manifest.data["sources"])
    assert documents == sum(1 for file in files for _ in rows(file.name.removesuffix(".jsonl.gz")))
    assert manifest.num_tokens / (manifest.num_packs * 4096) > 0.999


def test_chat_rows_are_refused_with_the_columns_they_have(tmp_path: Path) -> None:
    source = str(SHARED / "text" / "sgd_chat.jsonl.gz")
    with pytest.raises(
        InputError, match=r"sgd_chat\.jsonl\.gz has no column 'text'; it has id, messages"
    ):
        build(
            BuildConfig(
                sources=(source,),
                output=str(tmp_path / "out"),
                tokenizer=str(SHARED / "tokenizers" / "gpt2"),
            )
        )
    assert not (tmp_path / "out").exists()
