"""Documents of token ids in files of other tools, and the files beside them.

    x.bin  x.idx                                         Megatron-LM, NeMo
    x.npy  x.csv.gz or x.offsets.npy, x.label_mask.npy   flat ids: dolma, OLMo, `packprep export`
    x.ds   x.ds.index, x.ds.loss                         datatrove

A document is a row with the column `input_ids`, and `mask` where a mask is beside the file. Places
of pieces are numbers of documents.
"""

import itertools
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.files import FormatError
from ...schemas.views import arrow_array
from ...support.errors import InputError
from ..types import Format, Source
from ..values import Columns, Raw, raw_of

_TOKENS = 1 << 20  # of a table, about
_MEGATRON = struct.Struct("<9sQBQQ")  # magic, version, type of tokens, sequences, documents
_WIDTHS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 8: 2}  # bytes of a token, by the type of Megatron
Documents = tuple[NDArray[np.int64], Sequence[int]]
"""Offsets of documents in tokens, [documents + 1], and bytes that a token may have."""


def _numbers(path: Path, count: int | None, widths: Sequence[int] = ()) -> NDArray[Any]:
    """`count` whole numbers of a file, mapped: as its header of NumPy says, or of these widths."""
    try:
        with path.open("rb") as file:
            is_numpy = file.read(6) == b"\x93NUMPY"
        width = next((each for each in widths if each * (count or 0) == path.stat().st_size), 8)
        array: Any = np.load(path, "r") if is_numpy else np.memmap(path, f"<u{width}", "r")
        if array.ndim == 1 and array.dtype.kind in "uib" and count in (None, len(array)):
            return np.asarray(array.view("u1") if array.dtype == np.bool_ else array)
        found = f"{array.dtype} of shape {array.shape}"
    except (ValueError, EOFError, SyntaxError, RecursionError, KeyError) as error:
        found = str(error)[:100]
    expected = "whole numbers" if count is None else f"{count:,} whole numbers"
    raise InputError(f"{path} holds {found}; expected {expected}, as the files beside it say")


def _offsets(begins: Any, ends: Any, path: Path) -> NDArray[np.int64]:
    """Offsets of documents in tokens, [documents + 1], of where each of them begins and ends."""
    offsets = np.append(0, ends).astype(np.int64)
    wrong = (begins != offsets[:-1]) | (np.diff(offsets) < 0)
    for row in np.flatnonzero(wrong)[:1]:
        raise FormatError(f"{path} document {row} does not begin where the one before ends")
    return offsets


def _megatron(index: Path) -> Documents:
    with index.open("rb") as file:
        head = file.read(_MEGATRON.size).ljust(_MEGATRON.size)
        magic, version, code, sequences, documents = _MEGATRON.unpack(head)
        wanted, size = _MEGATRON.size + 12 * sequences + 8 * documents, index.stat().st_size
        known = magic == b"MMIDIDX\0\0" and version == 1 and code in _WIDTHS
        if not known or size not in (wanted, wanted + sequences):
            raise FormatError(f"{index} of {size:,} bytes is no whole index of Megatron, version 1")
        lengths = np.fromfile(file, "<i4", sequences)
        pointers = np.fromfile(file, "<i8", sequences)
    ends = np.cumsum(lengths, dtype=np.int64)
    return _offsets(pointers / _WIDTHS[code], ends, index), [_WIDTHS[code]]


def _npy(index: Path) -> Documents:
    if index.suffix == ".npy":
        numbers = _numbers(index, None)
        return _offsets(numbers[:-1], numbers[1:], index), [1, 2, 4, 8]
    try:
        table = np.loadtxt(index, np.int64, None, ",", usecols=(0, 1), ndmin=2, quotechar='"')
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise InputError(f"{index} has no lines of start,end,...: {error}") from None
    return _offsets(table[:, 0], table[:, 1], index), [1, 2, 4, 8]


def _datatrove(index: Path) -> Documents:
    ends = _numbers(index, None, [8])
    return _offsets(np.append(0, ends)[:-1], ends, index), [2, 4]


_INDEXES = {"megatron": _megatron, "npy": _npy, "datatrove": _datatrove}


def _opened(source: Source) -> tuple[NDArray[np.int64], list[NDArray[Any]]]:
    """Offsets of documents, and mapped tokens and mask."""
    data, index, *masks = map(Path, source.paths)
    offsets, widths = _INDEXES[source.format](index)
    count = int(offsets[-1])
    return offsets, [_numbers(data, count, widths), *(_numbers(path, count, [1]) for path in masks)]


def _read(source: Source, begin: int, end: int, columns: Columns) -> Iterator[Raw]:
    offsets, arrays = _opened(source)
    end = len(offsets) - 1 if end < 0 else end
    names = [name for name, kind in columns.items() if not kind.is_beside]
    for first, last in itertools.pairwise([*_places(offsets, begin, end, _TOKENS), end]):
        lists = arrow_array(offsets[first : last + 1] - offsets[first])
        found = dict[str, Any]()
        for name, values in zip(names, arrays, strict=False):
            some = values[offsets[first] : offsets[last]]
            native = np.array(some, some.dtype.newbyteorder("="))
            found[name] = pa.LargeListArray.from_arrays(lists, arrow_array(native))
        unread = ["loss_mask"][: len(arrays) - len(found)]  # a mask beside the file
        yield raw_of(found, last - first, columns, [*found, *unread], {})


def _places(offsets: NDArray[np.int64], begin: int, end: int, tokens: int) -> list[int]:
    """Documents at which parts of about so many tokens begin, `begin` first."""
    goals = np.arange(offsets[begin], offsets[end], tokens)
    places = begin + np.searchsorted(offsets[begin:end], goals)
    return [int(place) for place in np.unique(np.append(begin, places[places < end]))]


def _cut(source: Source, size: int) -> list[int]:
    offsets, (ids, *_) = _opened(source)
    return _places(offsets, 0, len(offsets) - 1, max(1, size // ids.dtype.itemsize))


FORMATS = dict.fromkeys(_INDEXES, Format(read=_read, cut=_cut))
