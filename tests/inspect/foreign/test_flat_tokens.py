"""Planted faults in token files: each is found, with its file, segment and token."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from packprep.inspect.verify import verify
from tests.helpers.command import run
from tests.helpers.foreign_packs import VOCABULARY, faults
from tests.helpers.token_files import (
    put,
    write_datatrove,
    write_dolma,
    write_megatron,
    write_npy,
)

DOCUMENTS = [[1, 2, 3], [], [4, 5], [6]]
LENGTHS, POINTERS, INDEX = 34, 34 + 4 * 4, 34 + 12 * 4
Fault = Callable[[Path], object]


def cut(name: str, size: int) -> Fault:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def grow(name: str, size: int) -> Fault:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes() + bytes(size))


MEGATRON: list[tuple[Fault, str]] = [
    (
        put("x.bin", 6, struct.pack("<H", 100)),
        "x.bin segment 2 token 0: the id is 100; expected 0 to 99",
    ),
    (
        put("x.idx", 0, b"X"),
        "x.idx: it begins with b'XMIDIDX\\x00\\x00'; expected an index of Megatron, MMIDIDX",
    ),
    (put("x.idx", 9, b"\x03"), "x.idx: it has version 3; expected 1"),
    (
        put("x.idx", 17, b"\x06"),
        "x.idx: it holds float64; expected whole numbers, type code 1, 2, 3, 4, 5 or 8",
    ),
    (
        put("x.idx", LENGTHS + 8, struct.pack("<i", -2)),
        "x.idx segment 2: it has -2 tokens; expected 0 or more",
    ),
    (
        put("x.idx", POINTERS + 24, struct.pack("<q", 8)),
        "x.idx segment 3: it begins at byte 8 of x.bin: 2 bytes from there on are in segment 2 too",
    ),
    (
        cut("x.idx", 100),
        "x.idx: it has 100 bytes, but 4 sequences and 5 ends of documents take 122: it was cut",
    ),
    (cut("x.bin", 10), "x.idx segment 3: it ends at byte 12 of x.bin, which has 10: it was cut"),
    (
        grow("x.bin", 2),
        "x.idx segment 3: it ends at byte 12 of x.bin, which has 14: other bytes follow its tokens",
    ),
    (
        put("x.idx", INDEX + 16, struct.pack("<q", 0)),
        "x.idx pack 1: it begins with sequence 1 and ends before sequence 0; expected a rising "
        "index",
    ),
]


@pytest.mark.parametrize(("fault", "sentence"), MEGATRON)
def test_ten_faults_of_megatron_are_found(tmp_path: Path, fault: Fault, sentence: str) -> None:
    write_megatron(tmp_path, DOCUMENTS)
    assert faults(tmp_path / "x.bin", vocab_size=VOCABULARY) == []
    fault(tmp_path)
    assert sentence in faults(tmp_path / "x.bin", vocab_size=VOCABULARY)


@pytest.mark.parametrize("name", ["x.bin", "x.idx", "x", "."])
def test_megatron_files_are_counted_by_any_of_their_names(tmp_path: Path, name: str) -> None:
    write_megatron(tmp_path, DOCUMENTS, index=[0, 3, 4])
    verdict = verify(tmp_path / name)
    assert verdict.sound
    assert (verdict.files, verdict.packs, verdict.segments, verdict.tokens) == (2, 2, 4, 6)
    assert verdict.bytes == 12 + 34 + 4 * 12 + 3 * 8
    assert verdict.not_checked == [
        "digests, documents, BOS, EOS and the ledger: there is no manifest",
        "ids against the vocabulary; give --vocab-size or --tokenizer to check them",
    ]


def test_negative_ids_are_found_without_a_vocabulary(tmp_path: Path) -> None:
    write_megatron(tmp_path, [[1, 2], [3, -4]], "i4")
    assert faults(tmp_path) == [
        "x.bin segment 1 token 1: the id is -4; expected 0 to 2147483647",
    ]


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("x.bin", "x.bin: it is missing, and its index is here"),
        (
            "x.idx",
            "x.bin: it has no index, so its documents are not known; expected x.idx beside it, "
            "as Megatron writes both",
        ),
    ],
)
def test_a_missing_half_is_found(tmp_path: Path, missing: str, sentence: str) -> None:
    write_megatron(tmp_path, DOCUMENTS)
    (tmp_path / missing).unlink()
    (left,) = tmp_path.iterdir()
    assert faults(left) == [sentence]


@pytest.mark.parametrize("write", [write_npy, write_dolma, write_datatrove])
def test_ids_of_every_format_are_compared_with_the_vocabulary(
    tmp_path: Path, write: Callable[..., Path]
) -> None:
    path = write(tmp_path, [[1], [2, 300], [4]])
    assert faults(path, vocab_size=VOCABULARY) == [
        f"{path.name} segment 1 token 1: the id is 300; expected 0 to 99"
    ]
    assert faults(path, vocab_size=301) == []


def test_values_of_a_mask_are_0_or_1(tmp_path: Path) -> None:
    path = write_datatrove(tmp_path, DOCUMENTS, loss=[[0, 1, 1], [], [1, 2], [0]])
    assert faults(path) == ["x.ds.loss segment 2 token 1: the mask is 2; expected 0 or 1"]


@pytest.mark.parametrize(
    ("write", "fault", "sentence"),
    [
        (
            write_npy,
            lambda folder: np.save(folder / "x.offsets.npy", [0, 3, 2, 6]),
            "x.offsets.npy segment 1: it begins at token 3 and ends at 2, before its beginning",
        ),
        (
            write_dolma,
            grow("x.npy", 1),
            "x.npy: it has 13 bytes and no header of NumPy, and the documents in x.csv.gz end at "
            "token 6; expected 1, 2, 4 or 8 bytes for each token",
        ),
        (
            write_datatrove,
            cut("x.ds", 10),
            "x.ds: it has 10 bytes, and the documents in x.ds.index end at token 6; expected 2 or "
            "4 bytes for each token",
        ),
    ],
)
def test_faults_of_other_indexes_are_found(
    tmp_path: Path, write: Callable[..., Path], fault: Fault, sentence: str
) -> None:
    path = write(tmp_path, DOCUMENTS)
    assert faults(path) == []
    fault(tmp_path)
    assert faults(path) == [sentence]


def test_all_files_of_a_folder_are_checked(tmp_path: Path) -> None:
    write_megatron(tmp_path / "train", DOCUMENTS)
    write_dolma(tmp_path / "test", [[1], [300]])
    assert faults(tmp_path, vocab_size=VOCABULARY) == [
        "test/x.npy segment 1 token 0: the id is 300; expected 0 to 99"
    ]


def test_the_command_counts_all_faults_and_prints_the_first(tmp_path: Path) -> None:
    write_megatron(tmp_path, [[1, 2, 300, 400], [500]])
    answer = run("verify", tmp_path / "x.bin", "--vocab-size", 100, "--max-findings", 2)
    assert answer.code == 1
    assert "token id  x.bin segment 0 token 2: the id is 300; expected 0 to 99" in answer.out
    assert "and 1 more" in answer.out
    assert "3 findings" in answer.out
