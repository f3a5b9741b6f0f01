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

from packprep.schemas.findings import Finding, Findings
from packprep.sources.token_files.layout import UNSIGNED, TokenLayout, check_rising, width_of
from packprep.sources.token_files.names import MASK, METADATA, OFFSETS
from packprep.support.arrays import NPY_ERRORS

_NUMPY = b"\x93NUMPY"


def npy_layout(data: Path, where: str, findings: Findings) -> TokenLayout | None:
    """Layout of a .npy; None after a fault that leaves documents unknown.

    where: name of the .npy, for messages.
    """
    beside = {
        ending: (path, where.removesuffix(".npy") + ending)
        for ending in (METADATA, OFFSETS, MASK)
        if (path := data.with_name(data.name.removesuffix(".npy") + ending)).is_file()
    }
    stored = _stored_offsets(*beside[OFFSETS], findings) if OFFSETS in beside else None
    offsets = _metadata(*beside[METADATA], findings) if METADATA in beside else stored
    if offsets is None or (OFFSETS in beside and stored is None):
        return None
    named = beside[METADATA if METADATA in beside else OFFSETS][1]
    if stored is not None and not _check_packs(
        stored, beside[OFFSETS][1], offsets, named, findings
    ):
        return None
    tokens, begin = int(offsets[-1]), 0
    with data.open("rb") as file:
        if has_header(file):
            if (array := array_header(file, where, findings)) is None:
                return None
            (dtype, count), begin = array, file.tell()
            if count != tokens:
                what = (
                    f"it has {count:,} tokens, and the documents in {named} end at token "
                    f"{tokens:,}; expected the same"
                )
                findings.add(Finding(kind="size", file=where, what=what))
                return None
        elif (width := width_of(size := data.stat().st_size, tokens)) is not None:
            dtype = UNSIGNED[width]
        else:
            what = (
                f"it has {size:,} bytes and no header of NumPy, and the documents in {named} end "
                f"at token {tokens:,}; expected 1, 2, 4 or 8 bytes for each token"
            )
            findings.add(Finding(kind="size", file=where, what=what))
            return None
    mask, mask_begin = None, 0
    if MASK in beside:
        mask, name = beside[MASK]
        with mask.open("rb") as file:
            if has_header(file):
                if array_header(file, name, findings, "uib") is None:
                    return None
                mask_begin = file.tell()
        if (size := mask.stat().st_size - mask_begin) != tokens:
            what = f"it has {size:,} values of a byte; expected {tokens:,}, one for each token"
            findings.add(Finding(kind="size", file=name, what=what))
            return None
    return TokenLayout(
        data=data,
        dtype=dtype,
        offsets=offsets,
        first_byte=begin,
        mask=mask,
        mask_first_byte=mask_begin,
        packs=len(offsets if stored is None else stored) - 1,
    )


def _check_packs(
    packs: NDArray[np.int64],
    where: str,
    documents: NDArray[np.int64],
    named: str,
    findings: Findings,
) -> bool:
    """Report packs that begin within a document."""
    lost = np.flatnonzero(~np.isin(packs, documents))
    findings.many(
        "offset",
        lost,
        lambda row: Finding(
            kind="offset",
            file=where,
            pack=row,
            what=f"it begins at token {packs[row]:,}, and no document of {named} does; move one "
            "of the two files away if they are of different tokens",
        ),
    )
    return not len(lost)


def has_header(file: BinaryIO) -> bool:
    """True if an open file begins with NumPy's header. Leaves it at its beginning."""
    begins = file.read(len(_NUMPY)) == _NUMPY
    file.seek(0)
    return begins


def array_header(
    file: BinaryIO, where: str, findings: Findings, kinds: str = "ui"
) -> tuple[np.dtype[Any], int] | None:
    """Type and length of a NumPy array of whole numbers, and the file at its first value.

    None after a fault. kinds: of NumPy's types that are allowed.
    """

    def fault(what: str, kind: str = "array") -> None:
        findings.add(Finding(kind=kind, file=where, what=what))

    try:
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, _, dtype = read(file)
    except NPY_ERRORS:
        fault("its header of NumPy cannot be read; write it again with numpy.save")
        return None
    if len(shape) != 1 or dtype.kind not in kinds:
        fault(f"it holds {dtype} of shape {shape}; expected whole numbers of one dimension")
        return None
    begin = file.tell()
    have = file.seek(0, 2) - begin
    file.seek(begin)
    if have != shape[0] * dtype.itemsize:
        rest = "it was cut" if have < shape[0] * dtype.itemsize else "other bytes follow its end"
        fault(
            f"it has {have:,} bytes of values, but {shape[0]:,} values of {dtype} take "
            f"{shape[0] * dtype.itemsize:,}: {rest}",
            "size",
        )
        return None
    return dtype, shape[0]


def _stored_offsets(path: Path, where: str, findings: Findings) -> NDArray[np.int64] | None:
    with path.open("rb") as file:
        if not has_header(file):
            what = "it has no header of NumPy; expected whole numbers that numpy.save wrote"
            findings.add(Finding(kind="array", file=where, what=what))
            return None
        if (array := array_header(file, where, findings)) is None:
            return None
        offsets = np.fromfile(file, *array).astype(np.int64)
    if not len(offsets) or offsets[0] != 0:
        first = f"begins with {offsets[0]:,}" if len(offsets) else "is empty"
        what = f"it {first}; expected 0, then the end of each document"
        findings.add(Finding(kind="offset", file=where, what=what))
        return None
    return offsets if check_rising(offsets, where, findings) else None


def _metadata(path: Path, where: str, findings: Findings) -> NDArray[np.int64] | None:
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
        what = f"it cannot be read as lines of start,end,...: {' '.join(str(error).split())[:200]}"
        findings.add(Finding(kind="offset", file=where, what=what))
        return None
    starts, ends = (table[name].to_numpy() for name in ("f0", "f1"))
    expected = np.append(0, ends[:-1])
    wrong = np.flatnonzero(starts != expected)
    findings.many(
        "offset",
        wrong,
        lambda row: Finding(
            kind="offset",
            file=where,
            segment=row,
            what=f"it begins at token {starts[row]:,}; expected {expected[row]:,}, the end of the "
            "document before it",
        ),
    )
    offsets = np.append(0, ends).astype(np.int64)
    return offsets if check_rising(offsets, where, findings) and not len(wrong) else None
