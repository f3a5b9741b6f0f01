"""Mapped token files: where their columns are in memory, without reading them.

A token file is an Arrow stream with a row per document: lists with a value per token, and numbers
with one per document. It may have other columns, such as text; nobody reads them here. The buffers
of a column are found when its name is first asked for. A window has thousands of files: so that
documents are looked up without a step per file, the record batches of all are one table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..columns import number_type
from ..errors import FormatError

_Int64 = NDArray[np.int64]
# Errors of Arrow and numpy for a damaged file. MemoryError: a flipped bit can make a length very
# large.
UNREADABLE = (pa.ArrowException, OSError, MemoryError, ValueError, OverflowError, TypeError)


@dataclass(frozen=True, eq=False)
class StoredColumn:
    """Addresses of a column of token files in memory, [record batches] each.

    dtype: of the values.
    offsets: address of int32 list offsets; None for a column of numbers.
    values: address of the values.
    sizes: number of values.
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

    memory: the file; addresses of columns point into it.
    starts, ends: first document of each record batch, and the first after it.
    """

    def __init__(self, buffer: pa.Buffer, where: str, rows: int) -> None:
        self.where = where
        self.memory: NDArray[np.uint8] = np.frombuffer(buffer, np.uint8)  # type: ignore[call-overload]
        self._columns: dict[str, StoredColumn] = {}
        try:
            self._schema, batches = read_stream(buffer)
            self._names = self._schema.names
        except UNREADABLE as error:
            raise self._damaged(error) from None
        self._batches = [batch for batch in batches if len(batch)]
        self.ends = np.cumsum([len(batch) for batch in self._batches], dtype=np.int64)
        self.starts = np.append(0, self.ends)[:-1]
        if (count := int(self.ends[-1]) if len(self.ends) else 0) != rows:
            raise FormatError(f"{where} has {count} documents; the manifest lists {rows}")

    def _damaged(self, error: Exception) -> FormatError:
        return FormatError(f"{self.where} is not a token file: {error}; restore it or build again")

    @property
    def names(self) -> frozenset[str]:
        """All columns, also those of which no values can be looked up."""
        return frozenset(self._names)

    def column(self, name: str, *, lists: bool) -> StoredColumn:
        """A column of lists or of numbers; FormatError if there is none."""
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
        if lists and column.offsets is None:
            raise self._damaged(ValueError(f"{name} has no value per token"))
        return column

    def _stored_column(self, number: int) -> StoredColumn:
        arrays, kind = (
            [batch.column(number) for batch in self._batches],
            self._schema.field(number).type,
        )
        if any(array.null_count or array.offset for array in arrays):
            raise ValueError("it has nulls")
        offsets = None
        if pa.types.is_list(kind):
            counts = [len(array) + 1 for array in arrays]
            offsets = self._addresses([array.buffers()[1] for array in arrays], counts, 4)
            lists: Any = arrays
            arrays, kind = [array.values for array in lists], kind.value_type
            if any(array.null_count for array in arrays):
                raise ValueError("it has nulls")
        dtype, sizes = np.dtype(number_type(kind)), [len(array) for array in arrays]
        values = [array.buffers()[1] for array in arrays]
        return StoredColumn(
            dtype,
            offsets,
            self._addresses(values, sizes, dtype.itemsize),
            np.array(sizes, np.int64),
        )

    def _addresses(
        self, buffers: list[pa.Buffer | None], counts: list[int], itemsize: int
    ) -> _Int64:
        """Addresses of buffers that have that many values; of an empty one, that of the file."""
        begin = self.memory.ctypes.data
        addresses = []
        for buffer, count in zip(
            buffers, counts, strict=True
        ):  # Arrow has no place for an empty one
            size = 0 if buffer is None else buffer.size
            address = buffer.address if buffer is not None and size else begin
            if not begin <= address <= begin + len(self.memory) - size or address % itemsize:
                raise ValueError("its buffers are compressed or not aligned")
            if size < count * itemsize:
                raise ValueError("its buffers are too short")
            addresses.append(address)
        return np.array(addresses, np.int64)


class TokenFiles:
    """Some token files, and the documents of all.

    views: of the files.
    firsts: number of the first document of each, ascending; numbers of other files are in between.
    documents: input row of the first document of each.

    memory: of all files; addresses point into it.
    names: columns of any of them.
    file, starts, ends: of each record batch, with the numbers of its documents. in_file: row of its
        first document in the file. documents: input row of the first document of its file.
    """

    def __init__(
        self, views: Sequence[TokenFileView], firsts: Sequence[int], documents: Sequence[int]
    ) -> None:
        self.views = views
        self.memory = tuple(view.memory for view in views)
        self.names = frozenset[str]().union(*(view.names for view in views))
        batches = [len(view.ends) for view in views]
        begin = np.array(firsts, np.int64).repeat(batches)
        self.file = np.arange(len(views)).repeat(batches)
        self.in_file = _joined([view.starts for view in views])
        self.starts, self.ends = (
            begin + self.in_file,
            begin + _joined([view.ends for view in views]),
        )
        self.documents = np.array(documents, np.int64).repeat(batches)
        self._columns: dict[str, StoredColumn] = {}

    def column(self, name: str, *, lists: bool) -> StoredColumn:
        """A column of all files; FormatError if one has none, or for mixed types."""
        if (column := self._columns.get(name)) is None:
            parts = [view.column(name, lists=lists) for view in self.views]
            if len({part.dtype for part in parts}) > 1:
                raise FormatError(
                    f"token files of different types are mixed in the column {name}; build again"
                )
            offsets = [part.offsets for part in parts if part.offsets is not None]
            column = self._columns[name] = StoredColumn(
                parts[0].dtype,
                _joined(offsets) if offsets else None,
                _joined([part.values for part in parts]),
                _joined([part.sizes for part in parts]),
            )
        return column


def _joined(parts: Sequence[_Int64]) -> _Int64:
    return np.concatenate([np.empty(0, np.int64), *parts])
