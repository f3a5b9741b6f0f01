"""Megatron's .bin and .idx, version 1, as Megatron-LM, NeMo and datatrove write them.

    9 bytes      MMIDIDX and two zeros
    8            version, 1
    1            type of the tokens
    8, 8         number of sequences, number of ends of documents
    int32 [n]    tokens of each sequence
    int64 [n]    first byte of each sequence in .bin
    int64 [d]    sequences before each document, from 0 to n
    int8 [n]     mode of each sequence; only in multimodal files

A sequence is a document here. Tools that tokenize whole documents write one sequence for each, and
packprep writes one for each segment of a pack, with packs as its documents.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.schemas.findings import Finding, Findings
from packprep.sources.token_files.layout import TokenLayout

MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
TYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.int8),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    6: np.dtype("<f8"),
    7: np.dtype("<f4"),
    8: np.dtype("<u2"),
}
"""Types of tokens by their code."""


def megatron_layout(data: Path, where: str, findings: Findings) -> TokenLayout | None:
    """Layout of a .bin by its .idx; None after a fault that leaves documents unknown.

    where: name of the .bin, for messages. findings: gets each fault.
    """
    index = where.rpartition(".")[0] + ".idx"

    def fault(what: str, kind: str = "index") -> None:
        findings.add(Finding(kind=kind, file=index, what=what))

    with data.with_suffix(".idx").open("rb") as file:
        header = file.read(_HEADER.size)
        if header[:9] != MAGIC[: len(header[:9])] or len(header) < _HEADER.size:
            fault(f"it begins with {header[:9]!r}; expected an index of Megatron, MMIDIDX")
            return None
        _, version, code, sequences, ends = _HEADER.unpack(header)
        if version != 1:
            fault(f"it has version {version}; expected 1")
            return None
        if code not in TYPES or TYPES[code].kind == "f":
            shown = f"holds {TYPES[code]}" if code in TYPES else f"has the type code {code}"
            fault(f"it {shown}; expected whole numbers, type code 1, 2, 3, 4, 5 or 8")
            return None
        expected = _HEADER.size + 12 * sequences + 8 * ends
        size = data.with_suffix(".idx").stat().st_size
        if size not in (expected, expected + sequences):
            rest = "it was cut" if size < expected else "other bytes follow its end"
            fault(
                f"it has {size:,} bytes, but {sequences:,} sequences and {ends:,} ends of "
                f"documents take {expected:,}: {rest}"
            )
            return None
        lengths = np.fromfile(file, "<i4", sequences)
        pointers = np.fromfile(file, "<i8", sequences)
        documents = np.fromfile(file, "<i8", ends)
        modes = np.fromfile(file, np.int8, sequences) if size > expected else None
    _check_documents(documents, sequences, index, findings)
    if modes is not None and modes.any():
        findings.many(
            "mode",
            np.flatnonzero(modes),
            lambda row: Finding(
                kind="mode",
                file=index,
                segment=row,
                what=f"it has mode {modes[row]}, so it is no text; expected mode 0",
            ),
        )
        return None
    dtype = TYPES[code]
    if not _check_lengths(lengths, index, findings) or not _check_pointers(
        pointers, lengths, dtype.itemsize, data.stat().st_size, where, index, findings
    ):
        return None
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return TokenLayout(data=data, dtype=dtype, offsets=offsets, packs=max(ends - 1, 0))


def _check_lengths(lengths: NDArray[Any], index: str, findings: Findings) -> bool:
    negative = np.flatnonzero(lengths < 0)
    findings.many(
        "length",
        negative,
        lambda row: Finding(
            kind="length",
            file=index,
            segment=row,
            what=f"it has {lengths[row]:,} tokens; expected 0 or more",
        ),
    )
    return not len(negative)


def _check_pointers(
    pointers: NDArray[Any],
    lengths: NDArray[Any],
    width: int,
    size: int,
    where: str,
    index: str,
    findings: Findings,
) -> bool:
    """Report sequences that do not begin where the one before ends, and a .bin of another size."""
    ends = np.concatenate([[0], pointers + lengths.astype(np.int64) * width])
    wrong = np.flatnonzero(pointers != ends[:-1])

    def finding(row: int) -> Finding:
        begin, end = int(pointers[row]), int(ends[row])
        if row == 0:
            expected = "; expected byte 0, the beginning"
        elif 0 <= begin < end:
            expected = f": {end - begin:,} bytes from there on are in segment {row - 1} too"
        else:
            expected = f"; expected byte {end:,}, the end of the segment before it"
        what = f"it begins at byte {begin:,} of {where}{expected}"
        return Finding(kind="pointer", file=index, segment=row, what=what)

    findings.many("pointer", wrong, finding)
    end = int(ends[-1])
    if end != size:
        last = {"segment": len(lengths) - 1} if len(lengths) else {}
        what = f"it ends at byte {end:,} of {where}, which has {size:,}: " + (
            "it was cut" if end > size else "other bytes follow its tokens"
        )
        findings.add(Finding(kind="size", file=index, what=what, **last))
    return not len(wrong) and end == size


def _check_documents(
    documents: NDArray[Any], sequences: int, index: str, findings: Findings
) -> None:
    """Report ends of documents that do not rise from 0 to the number of sequences."""

    def fault(what: str) -> None:
        findings.add(Finding(kind="document index", file=index, what=what))

    if not len(documents):
        fault(f"it has no ends of documents; expected 0 to {sequences:,}")
        return
    if documents[0] != 0:
        fault(f"its document index begins with {documents[0]:,}; expected 0")
    if documents[-1] != sequences:
        fault(f"its document index ends with {documents[-1]:,}; expected {sequences:,}, all of it")
    falls = np.flatnonzero(documents[1:] < documents[:-1])
    findings.many(
        "document index",
        falls,
        lambda row: Finding(
            kind="document index",
            file=index,
            pack=row,
            what=f"it begins with sequence {documents[row]:,} and ends before sequence "
            f"{documents[row + 1]:,}; expected a rising index",
        ),
    )
