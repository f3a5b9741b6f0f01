"""Token files: Arrow streams with a row a document, mapped and read through addresses.

Columns of a token file: `tokens` (list of uint16 or int32), `row` (int32, row of the document,
counted from the first row of the file), `part` (int32: side of a pair, message of a turn, number of
a document in a row of ids; -1 for a whole row), then, where rows have them, `labels` (list<int32>,
-100 where there is no loss) or `mask` (list<int8>, 1 where there is a loss), `group` (int64, a hash
of the text), and carried columns: a list has a value for each token, a number is of the document.
A row without text has one document of no tokens.
"""

import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .arrays import Bools, Int32, Int64
from .files import FormatError
from .views import ListView, list_view, numpy_values


@dataclass(frozen=True, eq=False, slots=True)
class Pointers:
    """Addresses of values of one type, and the memory that they point into, which they keep alive.

    address: int64 [pointers]. dtype: of the values.
    """

    address: Int64
    dtype: np.dtype[Any]
    memory: tuple[Any, ...]

    @staticmethod
    def into(values: NDArray[Any], index: NDArray[Any], owner: Any = None) -> "Pointers":
        """Pointers to values[index]; an index of len(values) is allowed, but must not be read.

        owner: of the memory; None for the values themselves.
        """
        address = values.ctypes.data + values.itemsize * index.astype(np.int64)
        return Pointers(address, values.dtype, (values if owner is None else owner,))

    @staticmethod
    def joined(parts: "Sequence[Pointers]") -> "Pointers":
        """Concatenate one or more parts of one type."""
        address = np.concatenate([part.address for part in parts])
        return Pointers(address, parts[0].dtype, tuple(m for part in parts for m in part.memory))

    def __getitem__(self, index: Bools | NDArray[np.integer[Any]]) -> "Pointers":
        return replace(self, address=self.address[index])

    def shifted(self, values: NDArray[Any]) -> "Pointers":
        """Each pointer moved forward by that many values."""
        moved = self.address + self.dtype.itemsize * values.astype(np.int64)
        return replace(self, address=moved)

    def read(self) -> NDArray[Any]:
        """The value at each pointer, [pointers]."""
        values, index = self.spanned(1)
        return values.take(index)

    def spanned(self, count: int | Int64) -> tuple[NDArray[Any], Int64]:
        """All memory from the first to the last pointer as an array, and the index of each there.

        count: values at each pointer. Between them the memory may be of others: read these alone.
        """
        if not len(self.address):
            return np.empty(0, self.dtype), self.address
        first = int(self.address.min())
        index = (self.address - first) // self.dtype.itemsize
        return span(first, int((index + count).max()), self.dtype), index


class _Span:
    """Memory as numpy reads it: `count` values from an address on."""

    def __init__(self, address: int, count: int, dtype: np.dtype[Any]) -> None:
        data = {"data": (address, True), "shape": (count,)}
        self.__array_interface__ = {"version": 3, "typestr": dtype.str, **data}


def span(address: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array over memory that something else keeps alive."""
    return np.asarray(_Span(int(address), int(count), dtype))


@dataclass(frozen=True, kw_only=True, eq=False)
class Documents:
    """Documents of token files, sorted by source, row and part; [documents] each.

    id: input row over all sources; documents of one row share it. part: see above. source: number
    of the source. length: tokens, BOS and EOS included; 0 for a row without text. tokens: first
    token of each. aligned: by name, first value of each in a column with a value per token (labels,
    mask, carried). values: by name, a value per document. group: number of the group by first
    appearance over all rows of the window; None without groups. hashes: of the group, as the files
    have it. place: number of the document in all token files; None unless it is asked for.
    """

    id: Int64
    part: Int32
    source: Int32
    length: Int32
    tokens: Pointers
    aligned: Mapping[str, Pointers] = field(default_factory=dict)
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    group: Int32 | None = None
    hashes: Int64 | None = None
    place: Int64 | None = None

    def __len__(self) -> int:
        return len(self.id)

    def drop_pages(self) -> None:
        """Let the system take back what was read of mapped files; it is read again if needed."""
        for memory in {*self.tokens.memory}:
            if isinstance(memory, mmap.mmap):
                memory.madvise(mmap.MADV_DONTNEED)

    def take(self, index: Bools | NDArray[np.integer[Any]]) -> "Documents":
        """Select by a mask, or by indices in their order."""
        return _each_column([self], lambda columns: columns[0][index])

    @staticmethod
    def joined(parts: "Sequence[Documents]") -> "Documents":
        """Concatenate one or more parts with the same columns, and number their groups."""

        def joined(columns: Sequence[Any]) -> Any:
            join = Pointers.joined if isinstance(columns[0], Pointers) else np.concatenate
            return join(columns)

        documents = _each_column([part for part in parts if len(part)] or parts[:1], joined)
        if documents.hashes is None:
            return documents
        return replace(documents, group=_numbered(documents.hashes))


def _each_column(parts: Sequence[Documents], made: Callable[[Sequence[Any]], Any]) -> Documents:
    """Documents whose columns are made from those of the parts, one after another."""
    columns = dict[str, Any]()
    for name in Documents.__dataclass_fields__:
        values: list[Any] = [getattr(part, name) for part in parts]
        if isinstance(values[0], Mapping):
            columns[name] = {key: made([each[key] for each in values]) for key in values[0]}
        elif values[0] is not None:
            columns[name] = made(values)
    return Documents(**columns)


def token_columns(
    buffer: pa.Buffer, where: str
) -> tuple[dict[str, ListView], dict[str, NDArray[Any]]]:
    """Lists, and numbers of documents, of a token file: views of its memory, by name.

    Raises FormatError for what is not a token file.
    """
    try:
        with pa.ipc.open_stream(buffer) as stream:
            batch = stream.read_next_batch()
    except (pa.ArrowException, OSError, ValueError, StopIteration) as error:
        raise FormatError(
            f"{where} is not a token file: {error}; delete it and run the command again"
        ) from None
    lists, numbers = dict[str, ListView](), dict[str, NDArray[Any]]()
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_list(column.type):
            lists[name] = list_view(batch, name, where)
        else:
            numbers[name] = numpy_values(column)
    if missing := {"tokens", "row", "part"} - {*lists, *numbers}:
        raise FormatError(f"{where} has no column {min(missing)}; delete it and run again")
    return lists, numbers


def mapped_documents(
    path: Path, first_row: int, rows_of_sources: Mapping[int, int], first_place: int | None = None
) -> Documents:
    """The documents of a token file, which is mapped: nothing is read but lengths and numbers.

    first_row: input row of the first row of the file. rows_of_sources: rows of the file by source,
    in the order of the sources. first_place: of the first document; None for no places. Groups have
    no numbers yet. Raises FormatError for a file that is not a token file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:  # an empty one cannot be mapped
        mapped: Any = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
    lists, values = token_columns(pa.py_buffer(mapped), str(path))
    aligned = {n: Pointers.into(v.values, v.offsets[:-1], mapped) for n, v in lists.items()}
    row = values.pop("row") + np.int64(first_row)
    ends = first_row + np.cumsum([*rows_of_sources.values()], dtype=np.int64)
    mapped.madvise(mmap.MADV_RANDOM)  # or the system reads megabytes around each document
    return Documents(
        id=row,
        part=values.pop("part"),
        source=np.array([*rows_of_sources], np.int32)[np.searchsorted(ends, row, side="right")],
        length=np.diff(lists["tokens"].offsets),
        tokens=aligned.pop("tokens"),
        aligned=aligned,
        hashes=values.pop("group", None),
        values=values,
        place=None if first_place is None else first_place + np.arange(len(row)),
    )


def no_documents() -> Documents:
    """Return documents of nothing."""
    none, numbers = np.empty(0, np.int64), np.empty(0, np.int32)
    tokens = Pointers(none, np.dtype(np.int32), ())
    return Documents(id=none, part=numbers, source=numbers, length=numbers, tokens=tokens)


def _numbered(hashes: Int64) -> Int32:
    """Groups numbered by first appearance: hashes [7, 3, 7] -> [0, 1, 0]."""
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int32)
    number[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    return number[inverse]
