"""The record batches of an Arrow stream file: mapped, read with pread, or streamed.

Every shard is opened here.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from ..errors import FormatError
from ..index.token_file import UNREADABLE
from ..listed import check_file
from ..manifest import FileEntry, Output
from .steady import SteadyFile, StreamIndex, not_a_stream, schema_bytes


class ReadBatch(NamedTuple):
    """A record batch. bytes: memory that it takes. file: open while this is kept."""

    batch: pa.RecordBatch
    bytes: int = 0
    file: SteadyFile | None = None


class Batches(Protocol):
    """The record batches of a file, without empty ones; opened when they are first needed.

    Every method raises FormatError if the file is not a complete stream, or has changed.
    """

    path: Path

    @property
    def size(self) -> int | None:
        """Bytes of the file when it was first opened; None before, and of a fetched file."""

    def schema(self) -> pa.Schema:
        """Schema of the file; no record batch is read for it."""

    def starts(self) -> list[int]:
        """Number of the first row of each record batch, and last that of all rows."""

    def read(self, number: int, without: str = "") -> ReadBatch:
        """A record batch. without: a column that need not be read."""

    def release(self) -> None:
        """Close the file until it is used again; views of it stay valid."""


def map_file(output: Output, entry: FileEntry) -> pa.MemoryMappedFile:
    """A file of an output, memory-mapped; fetched first if the output is at a URL.

    It stays readable after another thread or process deletes it from the cache.
    """
    while True:
        path = check_file(output, entry) if isinstance(output, Path) else output.fetch(entry)
        with suppress(FileNotFoundError):  # deleted from the cache before it was opened
            return pa.memory_map(str(path))


class MappedBatches:
    """Record batches of a mapped file; see `Batches`.

    mapping: function that maps the file, if it must be fetched first.
    """

    def __init__(self, path: Path, mapping: Callable[[], pa.NativeFile] | None = None) -> None:
        self.path = path
        self.size: int | None = None
        self._map = mapping or self._map_local
        self._batches: list[pa.RecordBatch] | None = None

    def _map_local(self) -> pa.NativeFile:
        try:
            file = pa.memory_map(str(self.path))
        except OSError as error:
            raise not_a_stream(self.path, error) from None
        self.size = check_size(self.path, file.size(), self.size)
        return file

    def schema(self) -> pa.Schema:
        with _opened(self.path, self._map()) as stream:
            return stream.schema

    def _mapped(self) -> list[pa.RecordBatch]:
        batches = self._batches  # a local, because another thread may release them
        if batches is None:
            batches = [batch for batch in stream_batches(self._map(), self.path) if len(batch)]
            self._batches = batches
        return batches

    def starts(self) -> list[int]:
        return [*accumulate(map(len, self._mapped()), initial=0)]

    def read(self, number: int, without: str = "") -> ReadBatch:
        """See `Batches.read`; nothing is read until values are used."""
        return ReadBatch(self._mapped()[number])

    def release(self) -> None:
        self._batches = None


class SteadyBatches:
    """Record batches of a file that is read with pread; see `Batches`.

    The file is open while one of them is kept.
    """

    size: int | None = None

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Callable[[], SteadyFile | None] = lambda: None
        self._state: tuple[int, int] | None = None  # of the file when it was first opened
        self._index: StreamIndex | None = None
        self._schema: pa.Schema | None = None

    def _open(self) -> SteadyFile:
        file = self._file()
        if file is None:
            file = SteadyFile(self.path, self._state)
            self._state, self._file = file.state, weakref.ref(file)
            self.size = check_size(self.path, file.state[0], self.size)
        return file

    def schema(self) -> pa.Schema:
        if self._schema is None:
            with _opened(self.path, schema_bytes(self._open())) as stream:
                self._schema = stream.schema
        return self._schema

    def _places(self) -> StreamIndex:
        index = self._index
        if index is None:
            index = self._index = StreamIndex(self._open())
        return index

    def starts(self) -> list[int]:
        """See `Batches.starts`; the first call reads the headers of all record batches."""
        index = self._places()
        return [*index.starts, index.rows]

    def read(self, number: int, without: str = "") -> ReadBatch:
        file = self._open()
        return ReadBatch(*self._places().read(file, number, self.schema(), without), file)

    def release(self) -> None:
        """Do nothing: the file is closed when no record batch of it is kept."""


def stream_batches(
    file: Any, where: str | Path, check: Callable[[pa.Schema], None] = lambda schema: None
) -> Iterator[pa.RecordBatch]:
    """The record batches of an Arrow stream, one after another.

    file: mapped, or open for reading. where: its name in messages. check: called with the schema
    first; raises FormatError. A damaged file is a FormatError too, a disk that fails an OSError.
    """
    packs = 0
    try:
        with _opened(where, file) as stream:
            check(stream.schema)
            for batch in stream:
                yield batch
                packs += len(batch)
    except FormatError:
        raise
    except UNREADABLE as error:
        if isinstance(error, OSError) and error.errno is not None:  # Arrow's of damage has none
            raise
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise not_a_stream(where, f"after {packs:,} packs, {reason}") from None


def _opened(where: str | Path, content: Any) -> pa.ipc.RecordBatchStreamReader:
    """The stream in a file. content: the file, or its beginning."""
    try:
        return pa.ipc.open_stream(content)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise not_a_stream(where, error) from None


def check_size(path: Path, size: int, before: int | None) -> int:
    """The size of a file. FormatError if it is not as before. before: None if it was not opened."""
    if before not in (None, size):
        raise FormatError(
            f"{path} has {size} bytes; it had {before} when it was opened: leave outputs alone "
            "while they are read, and open it again"
        )
    return size


def check_same_size(batches: Batches) -> None:
    """Raise FormatError if a local file is not as long as when it was opened."""
    if batches.size is not None:
        with suppress(OSError):  # deleted: still readable if it is mapped
            check_size(batches.path, batches.path.stat().st_size, batches.size)
