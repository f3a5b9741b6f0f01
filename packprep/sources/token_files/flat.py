"""Flat .npy files of token ids, and the files beside each that say where documents end.

The tokens are a NumPy array of one dimension, or raw: dolma and OLMo write no header. The type of
raw tokens follows from the size of the file and the number of tokens in it.

    x.csv.gz           a line start,end,... for each document, as dolma writes it
    x.offsets.npy      int64 [documents + 1]: tokens before each document, and all tokens. Beside
                       x.csv.gz it has packs of documents, as packprep exports them
    x.label_mask.npy   a byte for each token, 1 where there is a loss; raw, or with a header
"""

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.schemas.errors import FormatError
from packprep.sources.token_files.layout import UNSIGNED, TokenLayout, check_rising, width_of
from packprep.sources.token_files.names import MASK, METADATA, OFFSETS
from packprep.support.arrays import NPY_ERRORS

_NUMPY = b"\x93NUMPY"


def npy_layout(data: Path, where: str) -> TokenLayout:
    """Layout of a .npy. Raises FormatError for a fault.

    where: name of the .npy, for messages.
    """
    beside = {
        ending: (path, where.removesuffix(".npy") + ending)
        for ending in (METADATA, OFFSETS, MASK)
        if (path := data.with_name(data.name.removesuffix(".npy") + ending)).is_file()
    }
    stored = _stored_offsets(*beside[OFFSETS]) if OFFSETS in beside else None
    offsets = _metadata(*beside[METADATA]) if METADATA in beside else stored
    assert offsets is not None  # `beside_npy` asks for one of the two
    named = beside[METADATA if METADATA in beside else OFFSETS][1]
    if stored is not None:
        for row in np.flatnonzero(~np.isin(stored, offsets)):
            raise FormatError(
                f"{beside[OFFSETS][1]} pack {row}: it begins at token {stored[row]:,}, and no "
                f"document of {named} does; move one of the two files away if they are of "
                "different tokens"
            )
    tokens, begin = int(offsets[-1]), 0
    with data.open("rb") as file:
        if _has_header(file):
            (dtype, count), begin = _array_header(file, where), file.tell()
            if count != tokens:
                raise FormatError(
                    f"{where}: it has {count:,} tokens, and the documents in {named} end at token "
                    f"{tokens:,}; expected the same"
                )
        elif (width := width_of(size := data.stat().st_size, tokens)) is not None:
            dtype = UNSIGNED[width]
        else:
            raise FormatError(
                f"{where}: it has {size:,} bytes and no header of NumPy, and the documents in "
                f"{named} end at token {tokens:,}; expected 1, 2, 4 or 8 bytes for each token"
            )
    mask, mask_begin = None, 0
    if MASK in beside:
        mask, name = beside[MASK]
        with mask.open("rb") as file:
            if _has_header(file):
                _array_header(file, name, "uib")
                mask_begin = file.tell()
        if (size := mask.stat().st_size - mask_begin) != tokens:
            raise FormatError(
                f"{name}: it has {size:,} values of a byte; expected {tokens:,}, one for each token"
            )
    return TokenLayout(
        data=data,
        dtype=dtype,
        offsets=offsets,
        first_byte=begin,
        mask=mask,
        mask_first_byte=mask_begin,
    )


def _has_header(file: BinaryIO) -> bool:
    """True if an open file begins with NumPy's header. Leaves it at its beginning."""
    begins = file.read(len(_NUMPY)) == _NUMPY
    file.seek(0)
    return begins


def _array_header(file: BinaryIO, where: str, kinds: str = "ui") -> tuple[np.dtype[Any], int]:
    """Type and length of a NumPy array of whole numbers, and the file at its first value.

    kinds: of NumPy's types that are allowed.
    """
    try:
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, _, dtype = read(file)
    except NPY_ERRORS:
        raise FormatError(
            f"{where}: its header of NumPy cannot be read; write it again with numpy.save"
        ) from None
    if len(shape) != 1 or dtype.kind not in kinds:
        raise FormatError(
            f"{where}: it holds {dtype} of shape {shape}; expected whole numbers of one dimension"
        )
    begin = file.tell()
    have, need = file.seek(0, 2) - begin, shape[0] * dtype.itemsize
    file.seek(begin)
    if have != need:
        rest = "it was cut" if have < need else "other bytes follow its end"
        raise FormatError(
            f"{where}: it has {have:,} bytes of values, but {shape[0]:,} values of {dtype} take "
            f"{need:,}: {rest}"
        )
    return dtype, shape[0]


def _stored_offsets(path: Path, where: str) -> NDArray[np.int64]:
    with path.open("rb") as file:
        if not _has_header(file):
            raise FormatError(
                f"{where}: it has no header of NumPy; expected whole numbers that numpy.save wrote"
            )
        offsets = np.fromfile(file, *_array_header(file, where)).astype(np.int64)
    if not len(offsets) or offsets[0] != 0:
        first = f"begins with {offsets[0]:,}" if len(offsets) else "is empty"
        raise FormatError(f"{where}: it {first}; expected 0, then the end of each document")
    check_rising(offsets, where)
    return offsets


def _metadata(path: Path, where: str) -> NDArray[np.int64]:
    """Offsets of the lines start,end,... of a compressed file."""
    from pyarrow import csv

    try:
        table = csv.read_csv(
            path,
            read_options=csv.ReadOptions(autogenerate_column_names=True),
            parse_options=csv.ParseOptions(newlines_in_values=True),  # of quoted ids
            convert_options=csv.ConvertOptions(
                include_columns=["f0", "f1"], column_types={"f0": pa.int64(), "f1": pa.int64()}
            ),
        )
    except (pa.ArrowException, OSError, KeyError) as error:
        raise FormatError(
            f"{where}: it cannot be read as lines of start,end,...: "
            f"{' '.join(str(error).split())[:200]}"
        ) from None
    starts, ends = (table[name].to_numpy() for name in ("f0", "f1"))
    expected = np.append(0, ends[:-1])
    for row in np.flatnonzero(starts != expected):
        raise FormatError(
            f"{where} segment {row}: it begins at token {starts[row]:,}; expected "
            f"{expected[row]:,}, the end of the document before it"
        )
    offsets = np.append(0, ends).astype(np.int64)
    check_rising(offsets, where)
    return offsets
