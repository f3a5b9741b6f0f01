"""Tokenized documents in memory.

Every token has a different id, so a test can see where each one is.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from packprep.engines.tokenizer import Special, Tokenizer
from packprep.schemas import STANDARD_COLUMNS, Column
from packprep.schemas.index.runs import Pointers
from packprep.windows.documents import Documents

BOS, EOS, PAD = 1, 2, 3
FIRST_ID = 10  # ids of text tokens start here
CARRIED = (
    Column(name="mask", kind="token", dtype="int8"),
    Column(name="wide", kind="token", dtype="int64"),
    Column(name="advantages", kind="token", dtype="float32"),
    Column(name="reward", kind="segment", dtype="float64"),
    Column(name="row", kind="segment", dtype="int64"),
)


def tokenizer(*, bos: bool = True, eos: bool = True, tokens: int = 1 << 20) -> Tokenizer:
    """A tokenizer for the stages after tokenizing; it cannot encode."""
    return Tokenizer(
        json=b"{}",
        sha256="0" * 64,
        vocab_size=FIRST_ID + tokens,
        bos=Special("<s>", BOS) if bos else None,
        eos=Special("</s>", EOS) if eos else None,
        pad_id=PAD,
    )


def make_documents(
    texts: Sequence[int], policy: Tokenizer, *, groups: Sequence[int] | None = None
) -> Documents:
    """Documents of `texts` text tokens each, with BOS and EOS of the policy, from one source."""
    parts, first = [], FIRST_ID
    for length in texts:
        text = list(range(first, first + length))
        first += length
        before = [policy.bos.id] if policy.bos and text else []
        after = [policy.eos.id] if policy.eos and text else []
        parts.append(np.array(before + text + after, np.int32))
    lengths = np.array([len(part) for part in parts], np.int32)
    tokens = np.concatenate([*parts, np.empty(0, np.int32)])
    return Documents(
        id=np.arange(len(texts)),
        tokens=Pointers.into(tokens, np.cumsum(lengths, dtype=np.int64) - lengths),
        length=lengths,
        source=np.zeros(len(texts), np.int32),
        group=None if groups is None else np.array(groups, np.int32),
    )


def with_columns(
    documents: Documents, trained: Sequence[Sequence[bool]], *, as_mask: bool
) -> Documents:
    """The documents with labels, as a mask or as ids, and the columns CARRIED of `value_of`."""
    tokens = tokens_of(documents)
    flat = np.array([token for document in tokens for token in document], np.int32)
    chosen = np.array([keep for document in trained for keep in document], np.bool_)
    labels = chosen.astype(np.int8) if as_mask else np.where(chosen, flat, -100).astype(np.int32)
    columns = {"labels": labels}
    for column in CARRIED:
        if column.kind == "token":
            columns[column.name] = np.array(
                [value_of(column.name, token) for token in flat.tolist()], column.numpy_dtype
            )
    first = np.cumsum(documents.length, dtype=np.int64) - documents.length
    return dataclasses.replace(
        documents,
        aligned={name: Pointers.into(values, first) for name, values in columns.items()},
        values={
            column.name: np.array(
                [value_of(column.name, row) for row in documents.id.tolist()], column.numpy_dtype
            )
            for column in CARRIED
            if column.kind == "segment"
        },
    )


def value_of(column: str, number: int) -> Any:
    """Value of a CARRIED column for a token with this id, or a document with this number."""
    values = {
        "mask": number % 127,
        "wide": number << 33,
        "advantages": number / 8,
        "reward": number / 3,
        "row": -number,
    }
    return values[column]


def labelled_columns() -> tuple[Column, ...]:
    """The columns of documents made by `with_columns`."""
    return (STANDARD_COLUMNS["labels"], *CARRIED)


def tokens_of(documents: Documents) -> list[list[int]]:
    """The tokens of each document, with BOS and EOS."""
    (tokens,) = documents.tokens.memory
    starts = (documents.tokens.address - tokens.ctypes.data) // 4
    return [
        tokens[start : start + length].tolist()
        for start, length in zip(starts, documents.length.tolist(), strict=True)
    ]
