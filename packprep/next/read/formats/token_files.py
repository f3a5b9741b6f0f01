"""Documents of token ids in files of other tools, and the files beside them.

    x.bin  x.idx                                      Megatron-LM, NeMo
    x.npy  x.csv.gz or x.offsets.npy, x.label_mask.npy   flat ids: dolma, OLMo, `packprep export`
    x.ds   x.ds.index, x.ds.metadata, x.ds.loss       datatrove

A document is a row with the column `input_ids`, and `mask` where a mask is beside the file. Places
of pieces are numbers of documents.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.views import arrow_array
from ...support.errors import InputError
from ..types import Raw, Source, Wanted
from .format import Format

_TOKENS, _ROWS = 1 << 20, 1 << 16  # of a table, about
_UNSIGNED: dict[int, np.dtype[Any]] = {
    1: np.dtype("u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}
_MEGATRON = struct.Struct("<9sQBQQ")  # magic, version, type of tokens, sequences, documents
_MEGATRON_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_NUMPY = b"\x93NUMPY"


@dataclass(frozen=True, kw_only=True)
class _Tokens:
    """A file of tokens. first: byte of the first one. offsets: int64 [documents + 1].

    mask: a file with a byte for each token, 1 where there is a loss, and its first byte.
    """

    data: Path
    dtype: np.dtype[Any]
    offsets: NDArray[np.int64]
    first: int = 0
    mask: tuple[Path, int] | None = None


def _megatron(data: Path) -> _Tokens:
    index = data.with_suffix(".idx")
    with index.open("rb") as file:
        head = file.read(_MEGATRON.size)
        if len(head) < _MEGATRON.size or head[:9] != b"MMIDIDX\0\0":
            raise InputError(f"{index} begins with {head[:9]!r}; expected an index of Megatron")
        _, version, code, sequences, documents = _MEGATRON.unpack(head)
        if version != 1 or code not in _MEGATRON_TYPES:
            raise InputError(
                f"{index} has version {version} and type code {code}; expected version 1 and whole "
                "numbers"
            )
        wanted, size = _MEGATRON.size + 12 * sequences + 8 * documents, index.stat().st_size
        if size not in (wanted, wanted + sequences):
            raise InputError(
                f"{index} has {size:,} bytes, and {sequences:,} sequences and {documents:,} "
                f"documents take {wanted:,}; fetch it again"
            )
        lengths = np.fromfile(file, "<i4", sequences)
        pointers = np.fromfile(file, "<i8", sequences)
        ends = np.fromfile(file, "<i8", documents)
        modes = np.fromfile(file, "i1", sequences if size > wanted else 0)
    dtype = np.dtype(_MEGATRON_TYPES[code])
    offsets = np.append(0, np.cumsum(lengths, dtype=np.int64))
    for wrong, what in (
        (lengths < 0, "has a negative length"),
        (modes != 0, "has another mode than 0, so it is no text"),
        (pointers != offsets[:-1] * dtype.itemsize, "does not begin where the one before ends"),
    ):
        for row in np.flatnonzero(wrong)[:1]:
            raise InputError(f"{index} segment {row} {what}")
    if not len(ends) or ends[0] != 0 or ends[-1] != sequences or (np.diff(ends) < 0).any():
        raise InputError(f"{index} has a document index that does not rise from 0 to {sequences:,}")
    _check_size(data, int(offsets[-1]) * dtype.itemsize)
    return _Tokens(data=data, dtype=dtype, offsets=offsets)


def _check_size(path: Path, wanted: int) -> None:
    if (size := path.stat().st_size) != wanted:
        cut = "was cut" if size < wanted else "has other bytes after its end"
        raise InputError(f"{path} has {size:,} bytes, and its documents take {wanted:,}: it {cut}")


def _npy(data: Path) -> _Tokens:
    stem = str(data).removesuffix(".npy")
    metadata, stored, mask = (
        Path(stem + e) for e in (".csv.gz", ".offsets.npy", ".label_mask.npy")
    )
    if metadata.is_file():
        offsets, named = _dolma(metadata), metadata
        if stored.is_file():
            for row in np.flatnonzero(~np.isin(_numpy_values(stored), offsets))[:1]:
                raise InputError(f"{stored} pack {row} does not begin where a document does")
    else:
        offsets, named = _numpy_values(stored).astype(np.int64), stored
        if not len(offsets) or offsets[0] != 0:
            raise InputError(
                f"{stored} does not begin with 0; expected tokens before each document"
            )
    _check_rising(offsets, named)
    tokens, size, first = int(offsets[-1]), data.stat().st_size, 0
    if _is_numpy(data):
        dtype, count, first = _numpy_header(data)
        if count != tokens:
            raise InputError(
                f"{data} has {count:,} tokens, and the documents of {named} {tokens:,}"
            )
    else:
        width = next((width for width in _UNSIGNED if width * tokens == size), None)
        if width is None:
            raise InputError(
                f"{data} has {size:,} bytes and no header of NumPy, and the documents of {named} "
                f"end at token {tokens:,}; expected 1, 2, 4 or 8 bytes a token"
            )
        dtype = _UNSIGNED[width]
    if not mask.is_file():
        return _Tokens(data=data, dtype=dtype, offsets=offsets, first=first)
    begin = _numpy_header(mask)[2] if _is_numpy(mask) else 0
    _check_size(mask, tokens + begin)
    return _Tokens(data=data, dtype=dtype, offsets=offsets, first=first, mask=(mask, begin))


def _is_numpy(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_NUMPY)) == _NUMPY


def _numpy_header(path: Path) -> tuple[np.dtype[Any], int, int]:
    """Type, length and first byte of an array of one dimension."""
    try:
        array = np.load(path, mmap_mode="r")
    except (ValueError, OSError, EOFError, SyntaxError, RecursionError, KeyError) as error:
        raise InputError(f"{path} is not a sound .npy: {str(error)[:100]}") from None
    if array.ndim != 1 or array.dtype.kind not in "uib":
        raise InputError(
            f"{path} holds {array.dtype} of shape {array.shape}; expected whole numbers"
        )
    first = path.stat().st_size - array.nbytes
    return array.dtype, len(array), int(getattr(array, "offset", first))


def _numpy_values(path: Path) -> NDArray[Any]:
    dtype, count, first = _numpy_header(path)
    return np.fromfile(path, dtype, count, offset=first)


def _dolma(path: Path) -> NDArray[np.int64]:
    """Offsets of the lines start,end,... of a compressed file."""
    from pyarrow import csv

    try:
        table = csv.read_csv(
            path,
            read_options=csv.ReadOptions(autogenerate_column_names=True),
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                include_columns=["f0", "f1"], column_types={"f0": pa.int64(), "f1": pa.int64()}
            ),
        )
    except (pa.ArrowException, OSError, KeyError) as error:
        raise InputError(
            f"{path} has no lines of start,end,...: {' '.join(str(error).split())[:200]}"
        ) from None
    starts, ends = (table[name].to_numpy() for name in ("f0", "f1"))
    for row in np.flatnonzero(starts != np.append(0, ends[:-1]))[:1]:
        raise InputError(f"{path} segment {row} does not begin where the one before ends")
    return np.append(0, ends).astype(np.int64)


def _datatrove(data: Path) -> _Tokens:
    index, metadata, loss = (Path(f"{data}.{end}") for end in ("index", "metadata", "loss"))
    if index.stat().st_size % 8 or not index.stat().st_size:
        raise InputError(
            f"{index} has {index.stat().st_size:,} bytes; expected 8 for each document"
        )
    offsets = np.append(0, np.fromfile(index, "<u8").astype(np.int64))
    _check_rising(offsets, index)
    tokens, size = int(offsets[-1]), data.stat().st_size
    width = next((width for width in (2, 4) if width * tokens == size), None)
    if width is None:
        raise InputError(
            f"{data} has {size:,} bytes, and the documents of {index} end at token {tokens:,}; "
            "expected 2 or 4 bytes a token"
        )
    if metadata.exists():
        lines = [*metadata.read_text(errors="replace").split("\n"), ""]
        if (lines[0].rpartition("|")[2], lines[1]) != (str(width), str(tokens)):
            raise InputError(f"{metadata} does not say {width} bytes and {tokens:,} tokens")
    if loss.exists():
        _check_size(loss, tokens)
    mask = (loss, 0) if loss.exists() else None
    return _Tokens(data=data, dtype=_UNSIGNED[width], offsets=offsets, mask=mask)


def _check_rising(offsets: NDArray[np.int64], where: Path) -> None:
    for row in np.flatnonzero(np.diff(offsets) < 0)[:1]:
        raise InputError(f"{where} segment {row} ends before it begins")


def _format(
    name: str, ending: str, find: Callable[[Path], _Tokens], beside: Callable[[str], list[str]]
) -> Format:
    """Record of a format of token files. find: the tokens of a file."""

    def read(source: Source, begin: int, end: int, wanted: Wanted) -> Iterator[Raw]:
        tokens = find(Path(source.path))
        names, first = list(wanted.columns), begin
        end = len(tokens.offsets) - 1 if end < 0 else end
        while first < end:
            goal = tokens.offsets[first] + _TOKENS
            last = int(np.searchsorted(tokens.offsets, goal, side="right")) - 1
            last = min(max(last, first + 1), first + _ROWS, end)
            place, stop = int(tokens.offsets[first]), int(tokens.offsets[last])
            offsets = arrow_array(tokens.offsets[first : last + 1] - place)
            at = tokens.first + place * tokens.dtype.itemsize
            columns = {names[0]: _list(offsets, tokens.data, tokens.dtype, stop - place, at)}
            if tokens.mask is not None and len(names) > 1:
                path, begin_mask = tokens.mask
                byte = np.dtype("u1")
                columns[names[1]] = _list(offsets, path, byte, stop - place, begin_mask + place)
            yield Raw(pa.table(columns))
            first = last

    def cut(source: Source, size: int) -> list[int]:
        tokens = find(Path(source.path))
        step = max(1, size // tokens.dtype.itemsize)
        goals = np.arange(step, max(int(tokens.offsets[-1]), 1), step)
        places = np.searchsorted(tokens.offsets[:-1], goals)
        firsts = np.unique(np.append(0, places[places < len(tokens.offsets) - 1]))
        return [int(place) for place in firsts]

    def columns(source: Source) -> list[str]:
        return ["input_ids"] + ["mask"] * (find(Path(source.path)).mask is not None)

    return Format(name=name, endings=(ending,), read=read, columns=columns, cut=cut, beside=beside)


def _list(offsets: Any, path: Path, dtype: np.dtype[Any], count: int, at: int) -> Any:
    """Lists of values, read and not mapped: a file may shrink while it is read."""
    values = np.fromfile(path, dtype, count, offset=at)
    if len(values) < count:
        raise InputError(f"{path} was cut while it was read")
    native = values.astype(dtype.newbyteorder("="), copy=False)
    return pa.LargeListArray.from_arrays(offsets, arrow_array(native))


def _needed(name: str, others: list[str], optional: list[str]) -> list[str]:
    """Files beside a file of tokens. Raises InputError if none of `others` is there."""
    found = [other for other in others if Path(other).is_file()]
    if not found:
        raise InputError(
            f"{name} has no {' or '.join(others)} beside it, so its documents are not known"
        )
    return found + [other for other in optional if Path(other).is_file()]


def _beside_npy(name: str) -> list[str]:
    stem = name.removesuffix(".npy")
    return _needed(name, [f"{stem}.csv.gz", f"{stem}.offsets.npy"], [f"{stem}.label_mask.npy"])


MEGATRON = _format(
    "megatron", "bin", _megatron, lambda name: _needed(name, [name.removesuffix("bin") + "idx"], [])
)
NPY = _format("npy", "npy", _npy, _beside_npy)
DATATROVE = _format(
    "datatrove",
    "ds",
    _datatrove,
    lambda name: _needed(name, [f"{name}.index"], [f"{name}.metadata", f"{name}.loss"]),
)
