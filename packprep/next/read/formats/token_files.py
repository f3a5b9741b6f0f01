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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
_MEGATRON_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


class _Tokens(NamedTuple):
    """Mapped tokens. offsets: int64 [documents + 1]. mask: 1 where there is a loss."""

    ids: NDArray[Any]
    offsets: NDArray[np.int64]
    mask: NDArray[Any] | None = None


def _numbers(path: Path, count: int | None, widths: Sequence[int] = ()) -> NDArray[Any]:
    """`count` whole numbers of a file, mapped: as its header of NumPy says, or of these widths."""
    try:
        with path.open("rb") as file:
            is_numpy = file.read(6) == b"\x93NUMPY"
        width = next((each for each in widths if each * (count or 0) == path.stat().st_size), 8)
        array: Any = np.load(path, "r") if is_numpy else np.memmap(path, f"<u{width}", "r")
        if array.ndim == 1 and array.dtype.kind in "uib" and count in (None, len(array)):
            return np.asarray(array)
        found = f"{array.dtype} of shape {array.shape}"
    except (ValueError, EOFError, SyntaxError, RecursionError, KeyError) as error:
        found = str(error)[:100]
    expected = "whole numbers" if count is None else f"{count:,} whole numbers"
    raise InputError(f"{path} holds {found}; expected {expected}, as the files beside it say")


def _offsets(numbers: NDArray[Any], path: Path) -> NDArray[np.int64]:
    """Offsets of documents in tokens, checked."""
    offsets = numbers.astype(np.int64)
    for row in np.flatnonzero(np.diff(offsets) < 0)[:1]:
        raise FormatError(f"{path} segment {row} ends before it begins; fetch it again")
    if not len(offsets) or offsets[0] != 0:
        raise FormatError(f"{path} does not begin with 0; expected tokens before each document")
    return offsets


def _megatron(data: Path) -> _Tokens:
    index = data.with_suffix(".idx")
    with index.open("rb") as file:
        head = file.read(_MEGATRON.size)
        if len(head) < _MEGATRON.size or head[:9] != b"MMIDIDX\0\0":
            raise FormatError(f"{index} begins with {head[:9]!r}; expected an index of Megatron")
        _, version, code, sequences, documents = _MEGATRON.unpack(head)
        wanted, size = _MEGATRON.size + 12 * sequences + 8 * documents, index.stat().st_size
        known = version == 1 and code in _MEGATRON_TYPES
        if not known or size not in (wanted, wanted + sequences):
            raise FormatError(
                f"{index} of {size:,} bytes has version {version}, type {code} and {sequences:,} "
                f"sequences, which take {wanted:,}; expected version 1 and whole numbers"
            )
        lengths = np.fromfile(file, "<i4", sequences)
        pointers = np.fromfile(file, "<i8", sequences)
    dtype = np.dtype(_MEGATRON_TYPES[code])
    offsets = _offsets(np.append(0, np.cumsum(lengths, dtype=np.int64)), index)
    for row in np.flatnonzero(pointers != offsets[:-1] * dtype.itemsize)[:1]:
        raise FormatError(f"{index} segment {row} does not begin where the one before ends")
    return _Tokens(_numbers(data, int(offsets[-1]), [dtype.itemsize]).view(dtype), offsets)


def _npy(data: Path) -> _Tokens:
    stem = str(data).removesuffix(".npy")
    lines, stored, mask = (Path(stem + e) for e in (".csv.gz", ".offsets.npy", ".label_mask.npy"))
    if lines.is_file():
        try:
            table = np.loadtxt(lines, np.int64, None, ",", usecols=(0, 1), ndmin=2, quotechar='"')
        except (ValueError, OSError, EOFError, zlib.error) as error:
            raise InputError(f"{lines} has no lines of start,end,...: {error}") from None
        offsets = _offsets(np.append(0, table[:, 1]), lines)
        for row in np.flatnonzero(table[:, 0] != offsets[:-1])[:1]:
            raise FormatError(f"{lines} segment {row} does not begin where the one before ends")
    else:
        offsets = _offsets(_numbers(stored, None), stored)
    tokens = int(offsets[-1])
    trained = _numbers(mask, tokens, [1]) if mask.is_file() else None
    return _Tokens(_numbers(data, tokens, [1, 2, 4, 8]), offsets, trained)


def _datatrove(data: Path) -> _Tokens:
    index, loss = Path(f"{data}.index"), Path(f"{data}.loss")
    offsets = _offsets(np.append(0, _numbers(index, None, [8])), index)
    tokens = int(offsets[-1])
    mask = _numbers(loss, tokens, [1]) if loss.is_file() else None
    return _Tokens(_numbers(data, tokens, [2, 4]), offsets, mask)


def _places(offsets: NDArray[np.int64], begin: int, end: int, tokens: int) -> list[int]:
    """Documents at which parts of about so many tokens begin, `begin` first."""
    goals = np.arange(offsets[begin], offsets[end], tokens)
    places = begin + np.searchsorted(offsets[begin:end], goals)
    return [int(place) for place in np.unique(np.append(begin, places[places < end]))]


def _format(find: Callable[[Path], _Tokens], needed: Sequence[str], mask: str = "") -> Format:
    """A format of token files. find: the tokens of a file. needed, mask: endings beside its own."""

    def read(source: Source, begin: int, end: int, columns: Columns) -> Iterator[Raw]:
        ids, offsets, trained = find(Path(source.paths[0]))
        end = len(offsets) - 1 if end < 0 else end
        arrays = [ids] if trained is None else [ids, trained]
        for first, last in itertools.pairwise([*_places(offsets, begin, end, _TOKENS), end]):
            lists = arrow_array(offsets[first : last + 1] - offsets[first])
            found = dict[str, Any]()
            for name, values in zip(columns, arrays, strict=False):
                some = values[offsets[first] : offsets[last]]
                native = np.array(some, some.dtype.newbyteorder("="))
                found[name] = pa.LargeListArray.from_arrays(lists, arrow_array(native))
            yield raw_of(found, last - first, columns, [*found])

    def cut(source: Source, size: int) -> list[int]:
        ids, offsets, _ = find(Path(source.paths[0]))
        return _places(offsets, 0, len(offsets) - 1, max(1, size // ids.dtype.itemsize))

    def beside(path: str) -> list[str]:
        stem = path.rpartition(".")[0]
        found = [stem + end for end in needed if Path(stem + end).is_file()]
        if not found:
            names = " or ".join(stem + end for end in needed)
            raise InputError(f"{path} has no {names} beside it, so its documents are not known")
        return [*found, *[stem + mask] * (mask != "" and Path(stem + mask).is_file())]

    return Format(read=read, cut=cut, beside=beside)


FORMATS = {
    "megatron": _format(_megatron, [".idx"]),
    "npy": _format(_npy, [".csv.gz", ".offsets.npy"], ".label_mask.npy"),
    "datatrove": _format(_datatrove, [".ds.index"], ".ds.loss"),
}
