"""Tokenized documents in memory, every token with a number of its own, so that a test can tell where each one went."""

from collections.abc import Sequence

import numpy as np

from packprep.tokenizer import Special, Tokenizer
from packprep.windows import Documents

BOS, EOS, PAD = 1, 2, 3
FIRST_ID = 10  # ids of text tokens start here


def tokenizer(*, bos: bool = True, eos: bool = True, tokens: int = 1 << 20) -> Tokenizer:
    """A tokenizer as the stages after tokenizing see it; it cannot encode."""
    return Tokenizer(
        json=b"{}",
        sha256="0" * 64,
        vocab_size=FIRST_ID + tokens,
        bos=Special("<s>", BOS) if bos else None,
        eos=Special("</s>", EOS) if eos else None,
        pad_id=PAD,
    )


def make_documents(texts: Sequence[int], policy: Tokenizer, *, groups: Sequence[int] | None = None) -> Documents:
    """Documents of `texts` text tokens each, with the ends of the policy, numbered from 0, one source."""
    parts, at = [], FIRST_ID
    for length in texts:
        text = list(range(at, at + length))
        at += length
        before = [policy.bos.id] if policy.bos and text else []
        after = [policy.eos.id] if policy.eos and text else []
        parts.append(np.array(before + text + after, np.int32))
    lengths = np.array([len(part) for part in parts], np.int32)
    tokens = np.concatenate([*parts, np.empty(0, np.int32)])
    return Documents(
        id=np.arange(len(texts)),
        address=tokens.ctypes.data + 4 * (np.cumsum(lengths, dtype=np.int64) - lengths),
        length=lengths,
        source=np.zeros(len(texts), np.int32),
        group=None if groups is None else np.array(groups, np.int32),
        keep=tokens,
    )


def tokens_of(documents: Documents) -> list[list[int]]:
    """The tokens of each document, with BOS and EOS."""
    starts = (documents.address - documents.keep.ctypes.data) // 4
    return [
        documents.keep[start : start + length].tolist()
        for start, length in zip(starts, documents.length.tolist(), strict=True)
    ]
