"""Real text and real tokenizers, end to end, or those of tests/helpers/stand_ins.py."""

import gzip
import itertools
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from packprep import build
from packprep.engines.guard import Guard
from packprep.engines.known_guards import known_guards
from packprep.loaders import PackedShards
from packprep.packing.strategies import STRATEGIES

from .helpers import stand_ins
from .helpers.corpus import REAL_TOKENIZERS, SHARED, expected_ids, write_jsonl
from .helpers.files import config

FOLDERS = {name: SHARED / "tokenizers" / name for name in REAL_TOKENIZERS} | {
    f"{name}, made here": stand_ins.data() / "tokenizers" / name for name in stand_ins.TOKENIZERS
}
GUARDED = {  # texts that engines get wrong without their guards
    place.replace("X", chr(point))
    for entry in known_guards()
    for guard in entry["guards"].values()
    for point in itertools.chain(*Guard.from_text(guard).ranges)
    for place in ("aX", "I'X's", "1X1", ".X.", " X\n")
}
SHORT = ("llama3_2, ", "t5_small, ")
SPLIT_ALIKE = ("gpt2", "llama3_2", "qwen3", "mistral_nemo", "o200k", "deepseek")  # to known ones
CORPORA = ("tldr", "udhr", "eips")


def rows(name: str, every: int = 1) -> Iterator[dict[str, Any]]:
    with gzip.open(SHARED / "text" / f"{name}.jsonl.gz", "rt") as file:
        for number, line in enumerate(file):
            if number % every == 0:
                yield json.loads(line)


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


WAYS = list(itertools.product(["split", "drop", "truncate"], sorted({*STRATEGIES, "wrapped"})))


@pytest.mark.parametrize(
    ("name", "overflow", "strategy"),
    [
        pytest.param(name, *way, marks=[] if name.startswith(SHORT) else [pytest.mark.long])
        for name, way in zip(itertools.cycle(FOLDERS), WAYS, strict=False)
    ],
)
def test_packs_of_every_kind_of_tokenizer_decode_to_its_ids_document_by_document(
    name: str, overflow: str, strategy: str, tmp_path: Path
) -> None:
    """Every strategy and overflow mode, each with the next tokenizer."""
    texts = [row["text"] for corpus in CORPORA for row in rows(corpus, every=60)]
    texts += sorted(GUARDED)
    source = write_jsonl(tmp_path / "sample.jsonl", ["", *texts, ""])
    folder, out = FOLDERS[name], tmp_path / "out"
    stride = 100 if overflow == "split" and strategy != "wrapped" else 0
    options: Any = {"strategy": strategy, "overflow": overflow, "max_length": 256}
    options |= {"stride": stride} if stride else {}
    if name.endswith("here") and name.startswith(SPLIT_ALIKE) and find_spec("gigatoken"):
        options["engine"] = "gigatoken"  # which has the longest guards
    build(config(sources=source, output=out, tokenizer=folder, **options))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    names = REAL_TOKENIZERS.get(folder.name) or stand_ins.ENDS[folder.name]
    ends = [None if token is None else tokenizer.token_to_id(token) for token in names]
    expected = dict(enumerate(expected_ids(["", *texts, ""], tokenizer, *ends)))
    assert max(map(len, expected.values())) > 256
    if overflow == "truncate":
        expected = {document: ids[:256] for document, ids in expected.items()}
    elif overflow == "drop":
        expected = {document: ids for document, ids in expected.items() if len(ids) <= 256}
    expected = {document: ids for document, ids in expected.items() if ids}
    found = flat_documents(out, stride)
    assert found.keys() == expected.keys()
    assert [n for n, ids in expected.items() if found[n] != ids] == []  # all ids: a diff of minutes
