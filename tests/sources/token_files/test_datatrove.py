"""Faults of datatrove's .ds and the files beside it, each with its place."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from packprep.schemas.findings import Findings
from packprep.sources.token_files.datatrove import datatrove_layout
from tests.helpers.token_files import write_datatrove

DOCUMENTS = [[1, 2, 3], [], [4, 5], [6]]


def found(folder: Path) -> list[str]:
    """All faults of x.ds."""
    findings = Findings()
    datatrove_layout(folder / "x.ds", "x.ds", findings)
    return [str(finding) for finding in findings]


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def ends(*values: int) -> bytes:
    return np.array(values, "<u8").tobytes()


FAULTS = [
    (write("x.ds.index", ends(3, 3, 5)[:-1]), "x.ds.index: it has 23 bytes; expected 8 for each"),
    (write("x.ds.index", b""), "x.ds.index: it has 0 bytes; expected 8 for each document"),
    (
        write("x.ds.index", ends(3, 2, 5, 6)),
        "x.ds.index segment 1: it begins at token 3 and ends at 2, before its beginning",
    ),
    (
        write("x.ds.index", ends(3, 3, 5)),
        "x.ds: it has 12 bytes, and the documents in x.ds.index end at token 5; expected 2 or 4",
    ),
    (
        write("x.ds", bytes(11)),
        "x.ds: it has 11 bytes, and the documents in x.ds.index end at token 6; expected 2 or 4",
    ),
    (
        write("x.ds.metadata", b"gpt2|4\n6\n6 T"),
        "x.ds.metadata: it records the bytes of a token and the number of tokens as 4 6; expected "
        "2 6",
    ),
    (write("x.ds.loss", bytes(7)), "x.ds.loss: it has 7 bytes; expected 6, one each"),
]


@pytest.mark.parametrize(("fault", "sentence"), FAULTS)
def test_every_fault_is_a_sentence_with_its_place(
    tmp_path: Path, fault: Callable[[Path], object], sentence: str
) -> None:
    write_datatrove(tmp_path, DOCUMENTS, loss=[[1] * len(ids) for ids in DOCUMENTS])
    assert found(tmp_path) == []
    fault(tmp_path)
    (only,) = found(tmp_path)
    assert only.startswith(sentence)
