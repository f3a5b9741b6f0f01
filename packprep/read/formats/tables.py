"""Parquet files and Arrow files: columns as they are."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...support.errors import InputError
from ..types import Format, Source
from ..values import Columns, Raw, raw_of

_ROWS = 10_000  # of a table at most
_BINARY = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}


@contextlib.contextmanager
def _sound(source: Source) -> Iterator[None]:
    """Turn what the library says about damage into an InputError."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        what = f"{source.name} is not a sound {source.format} file"
        raise InputError(f"{what}: {reason}; fetch the file again") from None


def _taken(batch: Any, columns: Columns, names: list[str]) -> Raw:
    """The wanted columns that a batch has."""
    found: dict[str, Any] = {}
    for name in [name for name in columns if names.count(name) == 1]:
        column = found[name] = batch.column(name)
        view = _BINARY.get(column.type)  # bad UTF-8 is found later, with its row
        (column if view is None else column.view(view)).validate(full=True)
    return raw_of(found, len(batch), columns, names, {})


def _parquet(source: Source, begin: int, end: int, columns: Columns) -> Iterator[Raw]:
    with (
        _sound(source),
        pq.ParquetFile(source.paths[0], page_checksum_verification=True) as file,
    ):
        names = file.schema_arrow.names
        wanted = [name for name in columns if name in names]
        groups = list(range(begin, file.num_row_groups if end < 0 else end))
        for batch in file.iter_batches(_ROWS, groups, wanted, use_threads=False):
            yield _taken(batch, columns, names)


def _opened(path: str) -> Any:
    """Reader of an Arrow file, or of a stream. Not mapped: a file may shrink while it is read."""
    file = pa.OSFile(path, mode="r")
    is_file = file.read(6) == b"ARROW1"
    file.seek(0)
    return pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)


def _batches(source: Source) -> list[tuple[str, int]]:
    """Path and number of each record batch; number -1 is a whole stream."""
    batches = []
    for path in source.paths:
        count = getattr(_opened(path), "num_record_batches", None)
        batches += [(path, number) for number in ([-1] if count is None else range(count))]
    return batches


def _arrow(source: Source, begin: int, end: int, columns: Columns) -> Iterator[Raw]:
    with _sound(source):
        for path, number in _batches(source)[begin : None if end < 0 else end]:
            reader = _opened(path)
            for batch in reader if number < 0 else [reader.get_batch(number)]:
                for first in range(0, len(batch), _ROWS):
                    yield _taken(batch.slice(first, _ROWS), columns, batch.schema.names)


def _cut(source: Source, size: int) -> list[int]:
    """Numbers of the first row groups, or record batches, of pieces of about `size` bytes."""
    with _sound(source):
        if source.format == "parquet":
            count = pq.read_metadata(source.paths[0]).num_row_groups
        else:
            count = len(_batches(source))
    return list(range(0, max(count, 1), max(1, size * count // source.bytes)))


FORMATS = {"parquet": Format(read=_parquet, cut=_cut), "arrow": Format(read=_arrow, cut=_cut)}
