"""Files of token ids as other tools write them, from their published formats."""

import gzip
import struct
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

Documents = Sequence[Sequence[int]]
CODES = {"u1": 1, "i4": 4, "u2": 8}
"""Megatron's codes of types."""


def ends_of(documents: Documents) -> list[int]:
    """Tokens before the end of each document, from 0: [[5, 6], [7]] -> [0, 2, 3]."""
    return [0, *np.cumsum([len(document) for document in documents], dtype=np.int64).tolist()]


def flat(documents: Documents, dtype: str) -> bytes:
    """All ids, one after another."""
    return np.array([id_ for document in documents for id_ in document], dtype).tobytes()


def write_megatron(folder: Path, documents: Documents, dtype: str = "u2") -> None:
    """A .bin and its .idx with a sequence for each document."""
    folder.mkdir()
    index = [*range(len(documents) + 1)]
    width = np.dtype(dtype).itemsize
    lengths = np.array([len(document) for document in documents], "<i4")
    pointers = np.array(ends_of(documents)[:-1], "<i8") * width
    header = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, CODES[dtype], len(documents), len(index))
    parts = (lengths, pointers, np.array(index, "<i8"))
    (folder / "x.idx").write_bytes(header + b"".join(part.tobytes() for part in parts))
    (folder / "x.bin").write_bytes(flat(documents, f"<{dtype}"))


def write_dolma(folder: Path, documents: Documents) -> None:
    """A raw .npy, and the lines start,end,id,source,line of its documents."""
    folder.mkdir()
    lines = [
        f"{first},{last},id-{row},part.jsonl.gz,{row + 1}\n"
        for row, (first, last) in enumerate(pairwise(ends_of(documents)))
    ]
    (folder / "x.csv.gz").write_bytes(gzip.compress("".join(lines).encode()))
    (folder / "x.npy").write_bytes(flat(documents, "<u2"))


def write_npy(folder: Path, documents: Documents, *, header: bool = True) -> None:
    """A .npy, with a header or raw, and its .offsets.npy."""
    folder.mkdir()
    np.save(folder / "x.offsets.npy", np.array(ends_of(documents), np.int64))
    if header:
        np.save(folder / "x.npy", np.frombuffer(flat(documents, "<u2"), "<u2"))
    else:
        (folder / "x.npy").write_bytes(flat(documents, "<u2"))


def write_datatrove(folder: Path, documents: Documents) -> None:
    """A .ds with its index and metadata."""
    folder.mkdir()
    ends = ends_of(documents)
    (folder / "x.ds").write_bytes(flat(documents, "<u2"))
    (folder / "x.ds.index").write_bytes(np.array(ends[1:], "<u8").tobytes())
    (folder / "x.ds.metadata").write_text(f"gpt2|2\n{ends[-1]}\n{ends[-1]} T")
