"""Files of token ids as other tools write them, from their published formats.

The tools themselves write them where they are installed, see `WRITERS`.
"""

import gzip
import importlib
import struct
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

Documents = Sequence[Sequence[int]]
CODES = {"u1": 1, "i1": 2, "i2": 3, "i4": 4, "i8": 5, "f8": 6, "f4": 7, "u2": 8}
"""Megatron's codes of types."""


def ends_of(documents: Documents) -> list[int]:
    """Tokens before the end of each document, from 0: [[5, 6], [7]] -> [0, 2, 3]."""
    return [0, *np.cumsum([len(document) for document in documents], dtype=np.int64).tolist()]


def flat(documents: Documents, dtype: str) -> bytes:
    """All ids, one after another."""
    return np.array([id_ for document in documents for id_ in document], dtype).tobytes()


def write_megatron(
    folder: Path,
    documents: Documents,
    dtype: str = "u2",
    *,
    name: str = "x",
    index: Sequence[int] | None = None,
    modes: Sequence[int] | None = None,
) -> Path:
    """A .bin and its .idx with a sequence for each document.

    index: sequences before each document; default: one sequence each.
    """
    folder.mkdir(parents=True, exist_ok=True)
    index = [*range(len(documents) + 1)] if index is None else index
    width = np.dtype(dtype).itemsize
    lengths = np.array([len(document) for document in documents], "<i4")
    pointers = np.array(ends_of(documents)[:-1], "<i8") * width
    header = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, CODES[dtype], len(documents), len(index))
    (folder / f"{name}.idx").write_bytes(
        header
        + lengths.tobytes()
        + pointers.tobytes()
        + np.array(index, "<i8").tobytes()
        + (b"" if modes is None else np.array(modes, np.int8).tobytes())
    )
    (folder / f"{name}.bin").write_bytes(flat(documents, f"<{dtype}"))
    return folder / f"{name}.bin"


def write_dolma(folder: Path, documents: Documents, dtype: str = "u2", name: str = "x") -> Path:
    """A raw .npy, and the lines start,end,id,source,line of its documents."""
    folder.mkdir(parents=True, exist_ok=True)
    ends = ends_of(documents)
    lines = [
        f"{ends[row]},{ends[row + 1]},id-{row},part.jsonl.gz,{row + 1}\n"
        for row in range(len(documents))
    ]
    (folder / f"{name}.csv.gz").write_bytes(gzip.compress("".join(lines).encode()))
    (folder / f"{name}.npy").write_bytes(flat(documents, f"<{dtype}"))
    return folder / f"{name}.npy"


def write_npy(
    folder: Path, documents: Documents, dtype: str = "u2", name: str = "x", *, header: bool = True
) -> Path:
    """A .npy with its .offsets.npy."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{name}.offsets.npy", np.array(ends_of(documents), np.int64))
    ids = np.frombuffer(flat(documents, dtype), dtype)
    if header:
        np.save(folder / f"{name}.npy", ids)
    else:
        (folder / f"{name}.npy").write_bytes(ids.tobytes())
    return folder / f"{name}.npy"


def write_raw_npy(folder: Path, documents: Documents, dtype: str = "u2") -> Path:
    """A .npy without a header, with its .offsets.npy."""
    return write_npy(folder, documents, dtype, header=False)


def write_datatrove(
    folder: Path,
    documents: Documents,
    dtype: str = "u2",
    *,
    name: str = "x",
    loss: Documents | None = None,
) -> Path:
    """A .ds with its index and metadata. loss: 0 or 1 for each token."""
    folder.mkdir(parents=True, exist_ok=True)
    ends = ends_of(documents)
    width = np.dtype(dtype).itemsize
    (folder / f"{name}.ds").write_bytes(flat(documents, f"<{dtype}"))
    (folder / f"{name}.ds.index").write_bytes(np.array(ends[1:], "<u8").tobytes())
    (folder / f"{name}.ds.metadata").write_text(f"gpt2|{width}\n{ends[-1]}\n{ends[-1]} T")
    if loss is not None:
        (folder / f"{name}.ds.loss").write_bytes(flat(loss, "u1"))
    return folder / f"{name}.ds"


def _by_megatron(folder: Path, documents: Documents, dtype: str = "u2") -> Path:
    """megatron-core's own builder."""
    folder.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it and torch warn of their own future
        package: Any = importlib.import_module("megatron.core.datasets.indexed_dataset")
        torch: Any = importlib.import_module("torch")
        builder = package.IndexedDatasetBuilder(str(folder / "x.bin"), np.dtype(dtype).type)
        for document in documents:
            builder.add_document(torch.tensor(document, dtype=torch.int64), [len(document)])
        builder.finalize(str(folder / "x.idx"))
    return folder / "x.bin"


def _by_datatrove(folder: Path, documents: Documents, dtype: str = "u2") -> Path:
    """datatrove's own writer."""
    package: Any = importlib.import_module("datatrove.pipeline.tokens.tokenizer")
    folder.mkdir(parents=True, exist_ok=True)
    file = package.TokenizedFile(
        str(folder),
        "x.ds",
        tokenizer_name_or_path="gpt2",
        save_final_metadata=True,
        token_size=np.dtype(dtype).itemsize,
    )
    for document in documents:
        file.write(list(document), None)
    file.close()
    return folder / "x.ds"


WRITERS: dict[str, Callable[..., Path]] = {
    "megatron": write_megatron,
    "dolma": write_dolma,
    "npy": write_npy,
    "raw npy": write_raw_npy,
    "datatrove": write_datatrove,
}
if find_spec("megatron") is not None and find_spec("torch") is not None:
    WRITERS["megatron-core"] = _by_megatron
if find_spec("datatrove") is not None:
    WRITERS["datatrove itself"] = _by_datatrove


def put(name: str, at: int, value: bytes) -> Callable[[Path], None]:
    """Fault that writes bytes to a place of a file in a folder."""

    def write(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[at : at + len(value)] = value
        (folder / name).write_bytes(data)

    return write
