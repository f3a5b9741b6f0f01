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

from packprep.schemas.errors import FormatError
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


def megatron_layout(data: Path, where: str) -> TokenLayout:
    """Layout of a .bin by its .idx. Raises FormatError for a fault.

    where: name of the .bin, for messages.
    """
    index = where.rpartition(".")[0] + ".idx"
    with data.with_suffix(".idx").open("rb") as file:
        header = file.read(_HEADER.size)
        if header[:9] != MAGIC[: len(header[:9])] or len(header) < _HEADER.size:
            raise FormatError(
                f"{index}: it begins with {header[:9]!r}; expected an index of Megatron, MMIDIDX"
            )
        _, version, code, sequences, ends = _HEADER.unpack(header)
        if version != 1:
            raise FormatError(f"{index}: it has version {version}; expected 1")
        if code not in TYPES or TYPES[code].kind == "f":
            shown = f"holds {TYPES[code]}" if code in TYPES else f"has the type code {code}"
            raise FormatError(
                f"{index}: it {shown}; expected whole numbers, type code 1, 2, 3, 4, 5 or 8"
            )
        expected = _HEADER.size + 12 * sequences + 8 * ends
        size = data.with_suffix(".idx").stat().st_size
        if size not in (expected, expected + sequences):
            rest = "it was cut" if size < expected else "other bytes follow its end"
            raise FormatError(
                f"{index}: it has {size:,} bytes, but {sequences:,} sequences and {ends:,} ends of "
                f"documents take {expected:,}: {rest}"
            )
        lengths = np.fromfile(file, "<i4", sequences)
        pointers = np.fromfile(file, "<i8", sequences)
        documents = np.fromfile(file, "<i8", ends)
        modes = np.fromfile(file, np.int8, sequences if size > expected else 0)
    _check_documents(documents, sequences, index)
    for row in np.flatnonzero(modes):
        raise FormatError(
            f"{index} segment {row}: it has mode {modes[row]}, so it is no text; expected mode 0"
        )
    for row in np.flatnonzero(lengths < 0):
        raise FormatError(
            f"{index} segment {row}: it has {lengths[row]:,} tokens; expected 0 or more"
        )
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    dtype = TYPES[code]
    _check_pointers(pointers, offsets * dtype.itemsize, data.stat().st_size, where, index)
    return TokenLayout(data=data, dtype=dtype, offsets=offsets)


def _check_pointers(
    pointers: NDArray[Any], bounds: NDArray[np.int64], size: int, where: str, index: str
) -> None:
    """Raise FormatError unless each sequence begins where the one before ends, up to the size.

    bounds: first byte of each sequence by the lengths, and the end, [sequences + 1].
    """
    for row in np.flatnonzero(pointers != bounds[:-1]):
        begin, end = int(pointers[row]), int(bounds[row])
        if row == 0:
            expected = "; expected byte 0, the beginning"
        elif 0 <= begin < end:
            expected = f": {end - begin:,} bytes from there on are in segment {row - 1} too"
        else:
            expected = f"; expected byte {end:,}, the end of the segment before it"
        raise FormatError(
            f"{index} segment {row}: it begins at byte {begin:,} of {where}{expected}"
        )
    if (end := int(bounds[-1])) != size:
        last = f" segment {len(pointers) - 1}" if len(pointers) else ""
        rest = "it was cut" if end > size else "other bytes follow its tokens"
        raise FormatError(
            f"{index}{last}: it ends at byte {end:,} of {where}, which has {size:,}: {rest}"
        )


def _check_documents(documents: NDArray[Any], sequences: int, index: str) -> None:
    """Raise FormatError unless ends of documents rise from 0 to the number of sequences."""
    if not len(documents):
        raise FormatError(f"{index}: it has no ends of documents; expected 0 to {sequences:,}")
    if documents[0] != 0:
        raise FormatError(f"{index}: its document index begins with {documents[0]:,}; expected 0")
    if documents[-1] != sequences:
        raise FormatError(
            f"{index}: its document index ends with {documents[-1]:,}; expected {sequences:,}, all "
            "of it"
        )
    for row in np.flatnonzero(documents[1:] < documents[:-1]):
        raise FormatError(
            f"{index} pack {row}: it begins with sequence {documents[row]:,} and ends before "
            f"sequence {documents[row + 1]:,}; expected a rising index"
        )
