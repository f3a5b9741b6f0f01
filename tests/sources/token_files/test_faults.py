"""Faults of the token files of other tools and of the files beside them, each with its place."""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packprep.schemas.errors import FormatError
from packprep.sources.token_files.datatrove import datatrove_layout
from packprep.sources.token_files.flat import npy_layout
from packprep.sources.token_files.megatron import megatron_layout
from tests.helpers.token_files import (
    put,
    write_datatrove,
    write_dolma,
    write_megatron,
    write_npy,
    write_raw_npy,
)

DOCUMENTS = [[1, 2, 3], [], [4, 5], [6]]
LENGTHS, POINTERS, INDEX = 34, 34 + 4 * 4, 34 + 12 * 4  # bytes of x.idx
READERS: dict[str, Callable[..., Any]] = {
    ".bin": megatron_layout,
    ".npy": npy_layout,
    ".ds": datatrove_layout,
}
Fault = Callable[[Path], object]


def with_loss(folder: Path, documents: Any) -> Path:
    return write_datatrove(folder, documents, loss=[[1] * len(ids) for ids in documents])


def read(file: Path) -> Any:
    return READERS[file.suffix](file, f"in/{file.name}")


def fault_of(file: Path) -> str:
    """The first fault of the file and of those beside it."""
    with pytest.raises(FormatError, match=r"^in/x") as refusal:
        read(file)
    return str(refusal.value).replace("in/", "")


def to(name: str, content: bytes) -> Fault:
    return lambda folder: (folder / name).write_bytes(content)


def resize(name: str, change: int) -> Fault:
    def write(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[:change] if change < 0 else data + bytes(change))

    return write


def save(name: str, values: Any) -> Fault:
    return lambda folder: np.save(folder / name, np.array(values))


def offsets(*values: float) -> Fault:
    return save("x.offsets.npy", values)


def lines(*text: str) -> Fault:
    return to("x.csv.gz", gzip.compress("".join(line + "\n" for line in text).encode()))


def ends(*values: int) -> Fault:
    return to("x.ds.index", np.array(values, "<u8").tobytes())


def number(at: int, kind: str, value: int) -> Fault:
    return put("x.idx", at, struct.pack(kind, value))


MEGATRON: list[tuple[Fault, str]] = [
    (put("x.idx", 0, b"TNTIDX"), "x.idx: it begins with b'TNTIDXX\\x00\\x00'; expected"),
    (resize("x.idx", -100), "x.idx: it begins with b'MMIDIDX\\x00\\x00'; expected"),
    (number(9, "<Q", 2), "x.idx: it has version 2; expected 1"),
    (put("x.idx", 17, b"\x09"), "x.idx: it has the type code 9"),
    (put("x.idx", 17, b"\x07"), "x.idx: it holds float32"),
    (resize("x.idx", -8), "x.idx: it has 114 bytes, but 4 sequences and 5 ends of documents"),
    (number(18, "<Q", 1 << 60), "x.idx: it has 122 bytes, but 1,152,921,504,606,846,976 seq"),
    (number(LENGTHS, "<i", -3), "x.idx segment 0: it has -3 tokens; expected 0 or more"),
    (
        number(LENGTHS, "<i", 5),
        "x.idx segment 1: it begins at byte 6 of x.bin: 4 bytes from there on are in segment 0",
    ),
    (
        number(POINTERS + 16, "<q", 8),
        "x.idx segment 2: it begins at byte 8 of x.bin; expected byte 6",
    ),
    (resize("x.bin", -2), "x.idx segment 3: it ends at byte 12 of x.bin, which has 10: it was"),
    (resize("x.bin", 4), "x.idx segment 3: it ends at byte 12 of x.bin, which has 16: other"),
    (number(INDEX, "<q", 1), "x.idx: its document index begins with 1; expected 0"),
    (number(INDEX + 32, "<q", 3), "x.idx: its document index ends with 3; expected 4"),
    (number(INDEX + 8, "<q", 3), "x.idx pack 1: it begins with sequence 3 and ends before"),
]
NPY: list[tuple[Callable[..., Path], Fault, str]] = [
    (write_npy, resize("x.npy", 2), "x.npy: it has 14 bytes of values, but 6 values of uint16"),
    (write_npy, save("x.npy", [[1, 2]] * 3), "x.npy: it holds int64 of shape (3, 2); expected"),
    (write_npy, save("x.npy", [0.0] * 6), "x.npy: it holds float64 of shape (6,); expected"),
    (write_npy, to("x.npy", b"\x93NUMPY\x01\x00\x04\x00{{{{"), "x.npy: its header of NumPy"),
    (write_npy, offsets(0, 3, 3, 5, 7), "x.npy: it has 6 tokens, and the documents in"),
    (write_npy, offsets(0, 4, 3, 6), "x.offsets.npy segment 1: it begins at token 4 and ends at"),
    (write_npy, offsets(3, 3, 5, 6), "x.offsets.npy: it begins with 3; expected 0"),
    (write_npy, to("x.offsets.npy", b"\0" * 40), "x.offsets.npy: it has no header of NumPy"),
    (write_raw_npy, resize("x.npy", 1), "x.npy: it has 13 bytes and no header of NumPy, and"),
    (write_dolma, lines("0,3,a", "4,6,b"), "x.csv.gz segment 1: it begins at token 4; expected"),
    *(
        (write_dolma, to("x.csv.gz", content), "x.csv.gz: it cannot be read as lines of start,")
        for content in (gzip.compress(b"start,end\n0,3\n"), gzip.compress(b"0\n3\n"), b"0,3\n", b"")
    ),
]
DATATROVE: list[tuple[Fault, str]] = [
    (resize("x.ds.index", -9), "x.ds.index: it has 23 bytes; expected 8 for each document"),
    (ends(3, 2, 5, 6), "x.ds.index segment 1: it begins at token 3 and ends at 2"),
    (ends(3, 3, 5), "x.ds: it has 12 bytes, and the documents in x.ds.index end at token 5"),
    (to("x.ds.metadata", b"gpt2|4\n6\n6 T"), "x.ds.metadata: it records the bytes of a token"),
    (to("x.ds.loss", bytes(7)), "x.ds.loss: it has 7 bytes; expected 6, one each"),
]


@pytest.mark.parametrize(
    ("write", "fault", "begins"),
    [
        *((write_megatron, *case) for case in MEGATRON),
        *NPY,
        *((with_loss, *case) for case in DATATROVE),
    ],
)
def test_every_fault_is_named_with_its_place(
    tmp_path: Path, write: Callable[..., Path], fault: Fault, begins: str
) -> None:
    file = write(tmp_path, DOCUMENTS)
    read(file)
    fault(tmp_path)
    assert fault_of(file).startswith(begins)


def test_only_sequences_of_text_are_read(tmp_path: Path) -> None:
    read(write_megatron(tmp_path, DOCUMENTS, modes=[0, 0, 0, 0]))
    sentence = fault_of(write_megatron(tmp_path, DOCUMENTS, modes=[0, 1, 0, 0]))
    assert sentence.startswith("x.idx segment 1: it has mode 1, so it is no text")


def test_an_index_without_documents_is_a_fault(tmp_path: Path) -> None:
    sentence = fault_of(write_megatron(tmp_path, DOCUMENTS, index=[]))
    assert sentence == "x.idx: it has no ends of documents; expected 0 to 4"


def test_other_columns_of_documents_are_not_looked_at(tmp_path: Path) -> None:
    file = write_dolma(tmp_path, DOCUMENTS)
    lines('0,3,"a ""b"",\nc",x', "3,5,,", "5,6,é,7")(tmp_path)
    assert read(file).offsets.tolist() == [0, 3, 5, 6]


def test_offsets_beside_documents_are_packs_of_them(tmp_path: Path) -> None:
    file = write_dolma(tmp_path, DOCUMENTS)
    offsets(0, 3, 6)(tmp_path)
    assert read(file).offsets.tolist() == [0, 3, 3, 5, 6]
    offsets(0, 4, 6)(tmp_path)
    assert fault_of(file).startswith(
        "x.offsets.npy pack 1: it begins at token 4, and no document of"
    )


@pytest.mark.parametrize("header", [False, True])
def test_a_mask_has_a_value_for_each_token(tmp_path: Path, header: bool) -> None:
    file = write_dolma(tmp_path, DOCUMENTS)
    values = np.array([True, False, True, True, False, True])
    path = tmp_path / "x.label_mask.npy"
    np.save(path, values) if header else path.write_bytes(values.tobytes())
    assert read(file).mask_values(2, 4).tolist() == [1, 0, 1]
    path.write_bytes(values.tobytes()[1:])
    assert fault_of(file).startswith("x.label_mask.npy: it has 5 values of a byte; expected 6")
