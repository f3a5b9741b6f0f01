"""One mapped token file: where the values of a document are, without reading them.

A token file is an Arrow stream with a row per document: lists with a value per token, and numbers
with one per document. It may have other columns, such as text; nobody reads them here. The buffers
of a column are found when its name is first asked for. Documents are then looked up by whole arrays
of rows, and only what is looked up is checked.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..columns import number_type
from ..errors import FormatError

_Int64 = NDArray[np.int64]
# Errors of Arrow and numpy for a damaged file. MemoryError: a flipped bit can make a length very
# large.
UNREADABLE = (pa.ArrowException, OSError, MemoryError, ValueError, OverflowError, TypeError)


class TokenPlaces(NamedTuple):
    """Values of some documents in a view of the file. position, length: int64 [documents]."""

    position: _Int64
    length: _Int64


@dataclass(frozen=True, eq=False)
class _StoredColumn:
    """Buffers of a column in each record batch, as positions in views of the file.

    offsets: of int32 list offsets, or None for a column of numbers. values: of the dtype. sizes:
    number of values.
    """

    dtype: np.dtype[Any]
    offsets: _Int64 | None
    values: _Int64
    sizes: _Int64


def read_stream(buffer: pa.Buffer) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Schema and record batches of an Arrow stream in memory, which its values stay in.

    Raises one of UNREADABLE if it is not one.
    """
    with pa.ipc.open_stream(buffer) as stream:
        return stream.schema, list(stream)


class TokenFileView:
    """A mapped token file of `rows` documents. Raises FormatError if it is not one.

    buffer: of the whole file. where: its name in messages.
    """

    def __init__(self, buffer: pa.Buffer, where: str, rows: int) -> None:
        self.where = where
        self._memory: NDArray[np.uint8] = np.frombuffer(buffer, np.uint8)  # type: ignore[call-overload]
        self._views: dict[np.dtype[Any], NDArray[Any]] = {}
        self._columns: dict[str, _StoredColumn] = {}
        try:
            self._schema, batches = read_stream(buffer)
            self._names = self._schema.names
        except UNREADABLE as error:
            raise self._damaged(error) from None
        self._batches = [batch for batch in batches if len(batch)]
        self._ends = np.cumsum([len(batch) for batch in self._batches], dtype=np.int64)
        self._starts = np.append(0, self._ends)[:-1]
        if (count := int(self._ends[-1]) if len(self._ends) else 0) != rows:
            raise FormatError(f"{where} has {count} documents; the manifest lists {rows}")

    def _damaged(self, error: Exception) -> FormatError:
        return FormatError(f"{self.where} is not a token file: {error}; restore it or build again")

    @property
    def names(self) -> frozenset[str]:
        """All columns, also those of which no values can be looked up."""
        return frozenset(self._names)

    def dtype(self, name: str) -> np.dtype[Any]:
        """Type of the values of a column."""
        return self._column(name).dtype

    def view(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The whole file as values of a type; positions are in it."""
        if dtype not in self._views:
            whole = len(self._memory) // dtype.itemsize * dtype.itemsize
            self._views[dtype] = self._memory[:whole].view(dtype)
        return self._views[dtype]

    def lists(self, name: str, rows: _Int64) -> TokenPlaces:
        """The values per token of documents. FormatError for offsets outside the file."""
        column, batch, row = self._find(name, rows)
        if column.offsets is None:
            raise self._damaged(ValueError(f"{name} has no value per token"))
        offsets = self.view(np.dtype(np.int32))
        place = column.offsets[batch] + row
        first, last = offsets[place].astype(np.int64), offsets[place + 1].astype(np.int64)
        if (first < 0).any() or (last < first).any() or (last > column.sizes[batch]).any():
            raise FormatError(
                f"{self.where} column {name} has list offsets outside its values; restore the file "
                "or build again"
            )
        return TokenPlaces(column.values[batch] + first, last - first)

    def numbers(self, name: str, rows: _Int64) -> NDArray[Any]:
        """The values per document of documents, [rows]."""
        column, batch, row = self._find(name, rows)
        values: NDArray[Any] = self.view(column.dtype)[column.values[batch] + row]
        return values

    def _find(self, name: str, rows: _Int64) -> tuple[_StoredColumn, _Int64, _Int64]:
        """A column, and the record batch of each document with its row in it."""
        column = self._column(name)
        batch = np.searchsorted(self._ends, rows, side="right")
        return column, batch, rows - self._starts[batch]

    def _column(self, name: str) -> _StoredColumn:
        """A column; FormatError if there is none, or if it has no numbers."""
        if (column := self._columns.get(name)) is None:
            if name not in self._names:
                raise FormatError(
                    f"{self.where} has no column {name}; restore the file or build again"
                )
            try:
                column = self._stored_column(self._names.index(name))
            except UNREADABLE as error:
                raise self._damaged(error) from None
            self._columns[name] = column
        return column

    def _stored_column(self, number: int) -> _StoredColumn:
        arrays, kind = (
            [batch.column(number) for batch in self._batches],
            self._schema.field(number).type,
        )
        if any(array.null_count or array.offset for array in arrays):
            raise ValueError("it has nulls")
        offsets = None
        if pa.types.is_list(kind):
            offsets = self._places([array.buffers()[1] for array in arrays], np.dtype(np.int32))
            lists: Any = arrays
            arrays, kind = [array.values for array in lists], kind.value_type
            if any(array.null_count for array in arrays):
                raise ValueError("it has nulls")
        dtype = np.dtype(number_type(kind))
        values = [array.buffers()[1] for array in arrays]
        sizes = np.array([len(array) for array in arrays], np.int64)
        return _StoredColumn(dtype, offsets, self._places(values, dtype), sizes)

    def _places(self, buffers: list[pa.Buffer | None], dtype: np.dtype[Any]) -> _Int64:
        """Positions of buffers in a view of this type; of an empty one, 0."""
        base, places, ends = self._memory.ctypes.data, [], []
        for buffer in buffers:  # Arrow has no place for an empty one
            size = 0 if buffer is None else buffer.size
            places.append(buffer.address - base if buffer is not None and size else 0)
            ends.append(places[-1] + size)
        if any(place < 0 or place % dtype.itemsize for place in places) or any(
            end > len(self._memory) for end in ends
        ):
            raise ValueError("its buffers are compressed or not aligned")
        return np.array(places, np.int64) // dtype.itemsize
