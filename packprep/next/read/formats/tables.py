"""Parquet files and Arrow files: columns as they are."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...support.errors import InputError
from ..types import Raw, Source, Wanted
from .format import Format, unreadable

_ROWS = 10_000  # of a table at most
_BROKEN = (pa.ArrowException, OSError, ValueError, TypeError)


def _taken(table: Any, source: Source, wanted: Wanted) -> pa.Table:
    """The wanted columns that a table has; null where it has none. Damage is an error."""
    names = set(table.schema.names)
    columns = {}
    for name, types in wanted.columns.items():
        column = table.column(name) if name in names else _nulls(len(table), types[0])
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            binary = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
            view = binary.get(chunk.type)  # bad UTF-8 is found later, with its row
            (chunk if view is None else chunk.view(view)).validate(full=True)
        columns[name] = column
    return pa.table(columns)


def _nulls(rows: int, kind: Any) -> Any:
    return pa.nulls(rows, kind)


def _read_parquet(source: Source, begin: int, end: int, wanted: Wanted) -> Iterator[Raw]:
    try:
        with pq.ParquetFile(source.path, page_checksum_verification=True) as file:
            names = [n for n in wanted.columns if n in file.schema_arrow.names]
            groups = list(range(begin, file.num_row_groups if end < 0 else end))
            for batch in file.iter_batches(_ROWS, groups, names, use_threads=False):
                yield Raw(_taken(batch, source, wanted))
    except _BROKEN as error:
        if isinstance(error, InputError):
            raise
        raise unreadable(source, error) from None


def _cut_parquet(source: Source, size: int) -> list[int]:
    try:
        with pq.ParquetFile(source.path) as file:
            sizes = [
                file.metadata.row_group(number).total_byte_size
                for number in range(file.num_row_groups)
            ]
    except _BROKEN as error:
        raise unreadable(source, error) from None
    return _places(sizes, size)


def _places(sizes: list[int], size: int) -> list[int]:
    """Numbers of the first groups of pieces of about `size` bytes."""
    places, total = [0], 0
    for number, each in enumerate(sizes):
        if total >= size:
            places.append(number)
            total = 0
        total += each
    return places


def _columns_parquet(source: Source) -> list[str]:
    try:
        return list(pq.read_schema(source.path).names)
    except _BROKEN as error:
        raise unreadable(source, error) from None


def _opened(source: Source) -> Any:
    """Reader of an Arrow file, or of a stream. Not mapped: a file may shrink while it is read."""
    with pa.OSFile(source.path, mode="r") as file:
        is_file = file.read(6) == b"ARROW1"
    raw = pa.OSFile(source.path, mode="r")
    return pa.ipc.open_file(raw) if is_file else pa.ipc.open_stream(raw)


def _read_arrow(source: Source, begin: int, end: int, wanted: Wanted) -> Iterator[Raw]:
    try:
        reader = _opened(source)
        if hasattr(reader, "num_record_batches"):
            last = reader.num_record_batches if end < 0 else end
            batches = map(reader.get_batch, range(begin, last))
        else:
            batches = iter(reader)
        for batch in batches:
            table = _taken(batch, source, wanted)
            for first in range(0, len(table), _ROWS):
                yield Raw(table.slice(first, _ROWS))
    except _BROKEN as error:
        if isinstance(error, InputError):
            raise
        raise unreadable(source, error) from None


def _cut_arrow(source: Source, size: int) -> list[int]:
    try:
        reader = _opened(source)
        count = getattr(reader, "num_record_batches", 1)
    except _BROKEN as error:
        raise unreadable(source, error) from None
    return _places([source.bytes // max(count, 1)] * count, size)


def _columns_arrow(source: Source) -> list[str]:
    try:
        return list(_opened(source).schema.names)
    except _BROKEN as error:
        raise unreadable(source, error) from None


PARQUET = Format(
    name="parquet",
    endings=("parquet",),
    read=_read_parquet,
    columns=_columns_parquet,
    cut=_cut_parquet,
)
ARROW = Format(
    name="arrow", endings=("arrow",), read=_read_arrow, columns=_columns_arrow, cut=_cut_arrow
)
