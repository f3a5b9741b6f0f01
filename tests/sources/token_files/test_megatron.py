"""Faults of Megatron's .bin and .idx, each with its place."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from packprep.schemas.errors import FormatError
from packprep.schemas.findings import Findings, StopAtFirst
from packprep.sources.token_files.megatron import megatron_layout
from tests.helpers.token_files import put, write_megatron

DOCUMENTS = [[1, 2, 3], [], [4, 5], [6]]
LENGTHS, POINTERS, INDEX = 34, 34 + 4 * 4, 34 + 12 * 4
Fault = Callable[[Path], None]


def found(folder: Path) -> list[str]:
    """All faults of x.bin."""
    findings = Findings()
    megatron_layout(folder / "x.bin", "x.bin", findings)
    return [str(finding) for finding in findings]


def resize(name: str, change: int) -> Fault:
    def write(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[:change] if change < 0 else data + bytes(change))

    return write


FAULTS: list[tuple[Fault, list[str]]] = [
    (
        put("x.idx", 0, b"TNTIDX"),
        ["x.idx: it begins with b'TNTIDXX\\x00\\x00'; expected an index of Megatron, MMIDIDX"],
    ),
    (
        resize("x.idx", -100),
        ["x.idx: it begins with b'MMIDIDX\\x00\\x00'; expected an index of Megatron, MMIDIDX"],
    ),
    (put("x.idx", 9, struct.pack("<Q", 2)), ["x.idx: it has version 2; expected 1"]),
    (
        put("x.idx", 17, b"\x09"),
        [
            "x.idx: it has the type code 9; expected whole numbers, type code 1, 2, 3, 4, 5 or 8",
        ],
    ),
    (
        put("x.idx", 17, b"\x07"),
        ["x.idx: it holds float32; expected whole numbers, type code 1, 2, 3, 4, 5 or 8"],
    ),
    (
        resize("x.idx", -8),
        [
            "x.idx: it has 114 bytes, but 4 sequences and 5 ends of documents take 122: it was cut",
        ],
    ),
    (
        resize("x.idx", 3),
        [
            "x.idx: it has 125 bytes, but 4 sequences and 5 ends of documents take 122: other "
            "bytes follow its end",
        ],
    ),
    (
        put("x.idx", 18, struct.pack("<Q", 1 << 60)),
        [
            "x.idx: it has 122 bytes, but 1,152,921,504,606,846,976 sequences and 5 ends of "
            "documents take 13,835,058,055,282,163,786: it was cut",
        ],
    ),
    (
        put("x.idx", LENGTHS, struct.pack("<i", -3)),
        ["x.idx segment 0: it has -3 tokens; expected 0 or more"],
    ),
    (
        put("x.idx", LENGTHS, struct.pack("<i", 5)),
        [
            "x.idx segment 1: it begins at byte 6 of x.bin: 4 bytes from there on are in "
            "segment 0 too",
        ],
    ),
    (
        put("x.idx", POINTERS + 16, struct.pack("<q", 8)),
        [
            "x.idx segment 2: it begins at byte 8 of x.bin; expected byte 6, the end of the "
            "segment before it",
            "x.idx segment 3: it begins at byte 10 of x.bin: 2 bytes from there on are in "
            "segment 2 too",
        ],
    ),
    (
        put("x.idx", POINTERS, struct.pack("<q", -2)),
        [
            "x.idx segment 0: it begins at byte -2 of x.bin; expected byte 0, the beginning",
            "x.idx segment 1: it begins at byte 6 of x.bin; expected byte 4, the end of the "
            "segment before it",
        ],
    ),
    (
        resize("x.bin", -2),
        ["x.idx segment 3: it ends at byte 12 of x.bin, which has 10: it was cut"],
    ),
    (
        resize("x.bin", 4),
        [
            "x.idx segment 3: it ends at byte 12 of x.bin, which has 16: other bytes follow its "
            "tokens"
        ],
    ),
    (
        put("x.idx", INDEX, struct.pack("<q", 1)),
        ["x.idx: its document index begins with 1; expected 0"],
    ),
    (
        put("x.idx", INDEX + 32, struct.pack("<q", 3)),
        ["x.idx: its document index ends with 3; expected 4, all of it"],
    ),
    (
        put("x.idx", INDEX + 8, struct.pack("<q", 3)),
        [
            "x.idx pack 1: it begins with sequence 3 and ends before sequence 2; expected a "
            "rising index",
        ],
    ),
]


@pytest.mark.parametrize(("fault", "sentences"), FAULTS)
def test_every_fault_is_a_sentence_with_its_place(
    tmp_path: Path, fault: Fault, sentences: list[str]
) -> None:
    write_megatron(tmp_path, DOCUMENTS)
    assert found(tmp_path) == []
    fault(tmp_path)
    assert found(tmp_path) == sentences
    with pytest.raises(FormatError) as refused:
        megatron_layout(tmp_path / "x.bin", "x.bin", StopAtFirst())
    assert str(refused.value) == sentences[0]


def test_only_sequences_of_text_are_read(tmp_path: Path) -> None:
    write_megatron(tmp_path, DOCUMENTS, modes=[0, 0, 0, 0])
    assert found(tmp_path) == []
    write_megatron(tmp_path, DOCUMENTS, modes=[0, 1, 0, 0])
    assert found(tmp_path) == ["x.idx segment 1: it has mode 1, so it is no text; expected mode 0"]


def test_an_index_without_documents_is_a_fault(tmp_path: Path) -> None:
    write_megatron(tmp_path, DOCUMENTS, index=[])
    assert found(tmp_path) == ["x.idx: it has no ends of documents; expected 0 to 4"]


def test_the_layout_has_the_tokens_of_any_run_of_documents(tmp_path: Path) -> None:
    write_megatron(tmp_path, DOCUMENTS, "i4")
    layout = megatron_layout(tmp_path / "x.bin", "x.bin", StopAtFirst())
    assert layout is not None
    assert layout.dtype == np.int32
    assert layout.offsets.tolist() == [0, 3, 3, 5, 6]
    assert layout.tokens(1, 3).tolist() == [4, 5]
    assert list(layout.runs(2)) == [(2, 4)]
