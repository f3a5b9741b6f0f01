"""Documents of token ids in files of other tools, and the files beside them.

    x.bin  x.idx                                         Megatron-LM, NeMo
    x.npy  x.csv.gz or x.offsets.npy, x.label_mask.npy   flat ids: dolma, OLMo, `packprep export`
    x.ds   x.ds.index, x.ds.loss                         datatrove

A document is a row with the column `input_ids`, and `mask` where a mask is beside the file. Places
of pieces are numbers of documents.
"""

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
from ..types import Columns, Format, Raw, Source

_TOKENS, _ROWS = 1 << 20, 1 << 16  # of a table, about
_MEGATRON = struct.Struct("<9sQBQQ")  # magic, version, type of tokens, sequences, documents
_MEGATRON_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


class _Numbers(NamedTuple):
    """Numbers in a file. first: byte of the first one."""

    path: Path
    dtype: np.dtype[Any]
    first: int = 0

    def read(self, begin: int, end: int) -> NDArray[Any]:
        """Some of the numbers, read and not mapped: a file may shrink while it is read."""
        at = self.first + begin * self.dtype.itemsize
        values = np.fromfile(self.path, self.dtype, end - begin, offset=at)
        if len(values) < end - begin:
            raise InputError(f"{self.path} was cut while it was read")
        return values.astype(self.dtype.newbyteorder("="), copy=False)


class _Tokens(NamedTuple):
    """Tokens of documents. offsets: int64 [documents + 1]. mask: 1 where there is a loss."""

    ids: _Numbers
    offsets: NDArray[np.int64]
    mask: _Numbers | None = None


def _numbers(path: Path, count: int, widths: tuple[int, ...] = (1, 2, 4, 8)) -> _Numbers:
    """`count` numbers: of a type that the header of NumPy says, else of the width that fits."""
    size, first = path.stat().st_size, 0
    if _is_numpy(path):
        array = _numpy(path)
        dtype, found, first = array.dtype, len(array), size - array.nbytes
    else:
        width = next((width for width in widths if width * count == size), widths[0])
        dtype, found = np.dtype(f"<u{width}"), size // width
    if found != count or first + count * dtype.itemsize != size:
        raise InputError(
            f"{path} has {size:,} bytes, which are not {count:,} numbers of "
            f"{' or '.join(map(str, widths))} bytes, as the files beside it say; fetch it again"
        )
    return _Numbers(path, dtype, first)


def _is_numpy(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(6) == b"\x93NUMPY"


def _numpy(path: Path) -> NDArray[Any]:
    """An array of one dimension in an .npy, mapped."""
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r")
    except (ValueError, OSError, EOFError, SyntaxError, RecursionError, KeyError) as error:
        raise InputError(f"{path} is not a sound .npy: {str(error)[:100]}") from None
    if array.ndim != 1 or array.dtype.kind not in "uib":
        raise InputError(
            f"{path} holds {array.dtype} of shape {array.shape}; expected whole numbers"
        )
    return array


def _rising(offsets: NDArray[Any], path: Path) -> NDArray[np.int64]:
    """Offsets of documents, checked."""
    offsets = offsets.astype(np.int64)
    for row in np.flatnonzero(np.diff(offsets) < 0)[:1]:
        raise InputError(f"{path} segment {row} ends before it begins")
    if not len(offsets) or offsets[0] != 0:
        raise InputError(f"{path} does not begin with 0; expected tokens before each document")
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
        file.seek(wanted)
        modes = np.fromfile(file, "i1")
    dtype = np.dtype(_MEGATRON_TYPES[code])
    offsets = _rising(np.append(0, np.cumsum(lengths, dtype=np.int64)), index)
    for row in np.flatnonzero(pointers != offsets[:-1] * dtype.itemsize)[:1]:
        raise FormatError(f"{index} segment {row} does not begin where the one before ends")
    for row in np.flatnonzero(modes)[:1]:
        raise FormatError(f"{index} segment {row} has mode {modes[row]}, so it is no text")
    ids = _numbers(data, int(offsets[-1]), (dtype.itemsize,))
    return _Tokens(ids._replace(dtype=dtype), offsets)


def _npy(data: Path) -> _Tokens:
    stem = str(data).removesuffix(".npy")
    metadata, stored, mask = (
        Path(stem + end) for end in (".csv.gz", ".offsets.npy", ".label_mask.npy")
    )
    if metadata.is_file():
        offsets = _rising(_dolma(metadata), metadata)
    else:
        offsets = _rising(_numpy(stored), stored)
    tokens = int(offsets[-1])
    trained = _numbers(mask, tokens, (1,)) if mask.is_file() else None
    return _Tokens(_numbers(data, tokens), offsets, trained)


def _dolma(path: Path) -> NDArray[np.int64]:
    """Offsets of the lines start,end,... of a compressed file."""
    try:
        table = np.loadtxt(
            path, np.int64, comments=None, delimiter=",", usecols=(0, 1), ndmin=2, quotechar='"'
        )
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} has no lines of start,end,...: {str(error)[:200]}") from None
    offsets = np.append(0, table[:, 1])
    for row in np.flatnonzero(table[:, 0] != offsets[:-1])[:1]:
        raise InputError(f"{path} segment {row} does not begin where the one before ends")
    return offsets


def _datatrove(data: Path) -> _Tokens:
    index, loss = Path(f"{data}.index"), Path(f"{data}.loss")
    if index.stat().st_size % 8 or not index.stat().st_size:
        raise InputError(
            f"{index} has {index.stat().st_size:,} bytes; expected 8 for each document"
        )
    offsets = _rising(np.append(0, np.fromfile(index, "<i8")), index)
    tokens = int(offsets[-1])
    mask = _numbers(loss, tokens, (1,)) if loss.is_file() else None
    return _Tokens(_numbers(data, tokens, (2, 4)), offsets, mask)


def _format(find: Callable[[Path], _Tokens], needed: Sequence[str], optional: str = "") -> Format:
    """A format of token files. find: the tokens of a file. needed, optional: endings beside it."""

    def read(source: Source, begin: int, end: int, columns: Columns) -> Iterator[Raw]:
        ids, offsets, mask = find(Path(source.paths[0]))
        first, end = begin, len(offsets) - 1 if end < 0 else end
        while first < end:
            goal = offsets[first] + _TOKENS
            last = int(np.searchsorted(offsets, goal, side="right")) - 1
            last = min(max(last, first + 1), first + _ROWS, end)
            place, stop = int(offsets[first]), int(offsets[last])
            lists = arrow_array(offsets[first : last + 1] - place)
            table = {
                name: pa.LargeListArray.from_arrays(lists, arrow_array(each.read(place, stop)))
                for name, each in zip(columns, (ids, mask), strict=False)
                if each is not None
            }
            yield Raw(pa.table(table))
            first = last

    def cut(source: Source, size: int) -> list[int]:
        ids, offsets, _ = find(Path(source.paths[0]))
        step = max(1, size // ids.dtype.itemsize)
        places = np.searchsorted(offsets[:-1], np.arange(step, max(int(offsets[-1]), 1), step))
        return [int(place) for place in np.unique(np.append(0, places[places < len(offsets) - 1]))]

    def beside(path: str) -> list[str]:
        stem = path.rpartition(".")[0]
        names = [each.format(path=path, stem=stem) for each in needed]
        found = [name for name in names if Path(name).is_file()]
        if not found:
            raise InputError(
                f"{path} has no {' or '.join(names)} beside it, so its documents are not known"
            )
        mask = optional.format(path=path, stem=stem)
        return found + [mask] * Path(mask).is_file()

    return Format(read=read, cut=cut, beside=beside)


FORMATS = {
    "megatron": _format(_megatron, ["{stem}.idx"]),
    "npy": _format(_npy, ["{stem}.csv.gz", "{stem}.offsets.npy"], "{stem}.label_mask.npy"),
    "datatrove": _format(_datatrove, ["{path}.index"], "{path}.loss"),
}
