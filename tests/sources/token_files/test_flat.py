"""Faults of flat .npy files and of the files with their offsets, each with its place."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from packprep.schemas.findings import Findings, StopAtFirst
from packprep.sources.token_files.flat import npy_layout
from tests.helpers.token_files import write_dolma, write_npy, write_raw_npy

DOCUMENTS = [[1, 2, 3], [], [4, 5], [6]]
Fault = Callable[[Path], object]


def found(folder: Path) -> list[str]:
    """All faults of x.npy."""
    findings = Findings()
    npy_layout(folder / "x.npy", "in/x.npy", findings)
    return [str(finding) for finding in findings]


def save(*values: object) -> Fault:
    return lambda folder: np.save(folder / "x.offsets.npy", np.array(values))


def lines(*text: str) -> Fault:
    return lambda folder: (folder / "x.csv.gz").write_bytes(
        gzip.compress("".join(line + "\n" for line in text).encode())
    )


def append(data: bytes) -> Fault:
    return lambda folder: (folder / "x.npy").write_bytes((folder / "x.npy").read_bytes() + data)


FAULTS: list[tuple[Callable[..., Path], Fault, list[str]]] = [
    (
        write_npy,
        append(b"\0\0"),
        [
            "in/x.npy: it has 14 bytes of values, but 6 values of uint16 take 12: other bytes "
            "follow its end",
        ],
    ),
    (
        write_npy,
        lambda folder: (folder / "x.npy").write_bytes((folder / "x.npy").read_bytes()[:-4]),
        ["in/x.npy: it has 8 bytes of values, but 6 values of uint16 take 12: it was cut"],
    ),
    (
        write_npy,
        lambda folder: np.save(folder / "x.npy", np.zeros((3, 2), np.uint16)),
        [
            "in/x.npy: it holds uint16 of shape (3, 2); expected whole numbers of one dimension",
        ],
    ),
    (
        write_npy,
        lambda folder: np.save(folder / "x.npy", np.zeros(6, np.float32)),
        ["in/x.npy: it holds float32 of shape (6,); expected whole numbers of one dimension"],
    ),
    (
        write_npy,
        lambda folder: (folder / "x.npy").write_bytes(b"\x93NUMPY\x01\x00\x04\x00{{{{"),
        ["in/x.npy: its header of NumPy cannot be read; write it again with numpy.save"],
    ),
    (
        write_npy,
        save(0, 3, 3, 5, 7),
        [
            "in/x.npy: it has 6 tokens, and the documents in in/x.offsets.npy end at token 7; "
            "expected the same",
        ],
    ),
    (
        write_npy,
        save(0, 4, 3, 6),
        [
            "in/x.offsets.npy segment 1: it begins at token 4 and ends at 3, before its beginning",
        ],
    ),
    (
        write_npy,
        save(3, 3, 5, 6),
        ["in/x.offsets.npy: it begins with 3; expected 0, then the end of each document"],
    ),
    (
        write_npy,
        save(0.0, 3.5, 6.0),
        [
            "in/x.offsets.npy: it holds float64 of shape (3,); expected whole numbers of one "
            "dimension",
        ],
    ),
    (
        write_npy,
        lambda folder: (folder / "x.offsets.npy").write_bytes(b"\0" * 40),
        [
            "in/x.offsets.npy: it has no header of NumPy; expected whole numbers that numpy.save "
            "wrote",
        ],
    ),
    (
        write_raw_npy,
        append(b"\0"),
        [
            "in/x.npy: it has 13 bytes and no header of NumPy, and the documents in "
            "in/x.offsets.npy end at token 6; expected 1, 2, 4 or 8 bytes for each token",
        ],
    ),
    (
        write_dolma,
        lines("0,3,a", "4,6,b"),
        [
            "in/x.csv.gz segment 1: it begins at token 4; expected 3, the end of the document "
            "before it",
        ],
    ),
    (
        write_dolma,
        lines("0,3,a", "3,2,b"),
        ["in/x.csv.gz segment 1: it begins at token 3 and ends at 2, before its beginning"],
    ),
]


@pytest.mark.parametrize(("write", "fault", "sentences"), FAULTS)
def test_every_fault_is_a_sentence_with_its_place(
    tmp_path: Path, write: Callable[..., Path], fault: Fault, sentences: list[str]
) -> None:
    write(tmp_path, DOCUMENTS)
    assert found(tmp_path) == []
    fault(tmp_path)
    assert found(tmp_path) == sentences


def test_other_columns_of_documents_are_not_looked_at(tmp_path: Path) -> None:
    write_dolma(tmp_path, DOCUMENTS)
    lines('0,3,"a ""b"",\nc",x', "3,5,,", "5,6,é,7")(tmp_path)
    layout = npy_layout(tmp_path / "x.npy", "x.npy", StopAtFirst())
    assert layout is not None
    assert layout.offsets.tolist() == [0, 3, 5, 6]


def test_offsets_beside_documents_are_packs_of_them(tmp_path: Path) -> None:
    write_dolma(tmp_path, DOCUMENTS)
    save(0, 3, 6)(tmp_path)
    assert found(tmp_path) == []
    layout = npy_layout(tmp_path / "x.npy", "x.npy", StopAtFirst())
    assert layout is not None
    assert layout.offsets.tolist() == [0, 3, 3, 5, 6]
    save(0, 4, 6)(tmp_path)
    assert found(tmp_path) == [
        "in/x.offsets.npy pack 1: it begins at token 4, and no document of in/x.csv.gz does; move "
        "one of the two files away if they are of different tokens"
    ]


@pytest.mark.parametrize("header", [False, True])
def test_a_mask_has_a_value_for_each_token(tmp_path: Path, header: bool) -> None:
    write_dolma(tmp_path, DOCUMENTS)
    values = np.array([True, False, True, True, False, True])
    path = tmp_path / "x.label_mask.npy"
    np.save(path, values) if header else path.write_bytes(values.tobytes())
    layout = npy_layout(tmp_path / "x.npy", "x.npy", StopAtFirst())
    assert layout is not None
    assert layout.mask_values(2, 4).tolist() == [1, 0, 1]
    path.write_bytes(values.tobytes()[1:])
    assert found(tmp_path) == [
        "in/x.label_mask.npy: it has 5 values of a byte; expected 6, one for each token"
    ]


@pytest.mark.parametrize(
    "content",
    [gzip.compress(b"start,end\n0,3\n"), gzip.compress(b"0\n3\n"), b"0,3\n", b""],
    ids=["header", "one column", "plain", "empty"],
)
def test_lines_that_are_not_offsets_are_a_fault(tmp_path: Path, content: bytes) -> None:
    write_dolma(tmp_path, DOCUMENTS)
    (tmp_path / "x.csv.gz").write_bytes(content)
    (sentence,) = found(tmp_path)
    assert sentence.startswith("in/x.csv.gz: it cannot be read as lines of start,end,...: ")
