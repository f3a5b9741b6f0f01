"""Arrow streams read with pread, for file systems on which a mapped file may fail.

A mapped file that another machine cuts kills the process that touches it (SIGBUS). Here the same is
a FormatError: of a short read, or of a size or time that changed since the file was opened.
"""

import os
import struct
import weakref
from bisect import bisect_right
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from ..errors import FormatError

_CHUNK = 8 << 20  # bytes of one call
_HEAD = 4096  # bytes; metadata of a message has some hundreds
_CONTINUATION, _RECORD_BATCH = 0xFFFFFFFF, 3
_CHANGED = "leave outputs alone while they are read, and open it again"


class SteadyFile:
    """An open file that must not change; closed when it is no longer referenced.

    state: size and time of change when it was first opened; by default now. A file that is deleted
    stays readable.

    It has no __del__: another thread could take a new reference from a weak one while that closes
    the file, and read from a number that is closed, or is another file by then. A finalizer runs
    when weak references give nothing any more.
    """

    def __init__(self, path: Path, state: tuple[int, int] | None = None) -> None:
        self.path = path
        try:
            self._handle = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise self._failed(error) from None
        # Not at exit: threads that read ahead still run then.
        weakref.finalize(self, os.close, self._handle).atexit = False
        self.state = state or _state(os.fstat(self._handle))
        self.check()

    def read(
        self, offset: int, size: int, *, gap: slice = slice(0, 0), checked: bool = True
    ) -> pa.Buffer:
        """`size` bytes; FormatError if the file has fewer or has changed.

        gap: bytes of the result that are not read and have any value. checked: False leaves `check`
        to the caller, after several reads.
        """
        buffer = pa.allocate_buffer(size)  # reuses memory, which numpy asks the system for
        view = memoryview(buffer)
        for place in (slice(gap.start), slice(gap.stop, size)):
            self._read_into(view[place], offset + (place.start or 0))
        if checked:
            self.check()  # last: what was read before is of the file that was opened
        return buffer

    def _read_into(self, view: memoryview, offset: int) -> None:
        done = 0
        while done < len(view):
            try:
                count = pread_into(self._handle, view[done : done + _CHUNK], offset + done)
            except OSError as error:
                raise self._failed(error) from None
            if not count:
                self.check()
                raise FormatError(
                    f"{self.path} ends at byte {offset + done}; expected {offset + len(view)}: "
                    "restore the file or build again"
                )
            done += count

    def check(self) -> None:
        """Raise FormatError if the file, or the one of its name, is not as it was."""
        states = [_state(os.fstat(self._handle))]
        with suppress(OSError):  # deleted, or renamed by a build that replaces the output
            states.append(_state(self.path.stat()))
        for size, changed in states:
            if size != self.state[0]:
                raise FormatError(
                    f"{self.path} has {size} bytes; it had {self.state[0]} when it was opened: "
                    f"{_CHANGED}"
                )
            if changed != self.state[1]:
                raise FormatError(
                    f"{self.path} was written or replaced after it was opened; {_CHANGED}"
                )

    def _failed(self, error: OSError) -> FormatError:
        return FormatError(
            f"{self.path} cannot be read: {error.strerror}; check the file system, then open it "
            "again"
        )


def pread_into(handle: int, buffer: memoryview, offset: int) -> int:
    """Read bytes of an open file; all reads of this module are here."""
    return os.preadv(handle, [buffer], offset)


def _state(stat: os.stat_result) -> tuple[int, int]:
    # No inode: some FUSE file systems number the same file differently after a while.
    return stat.st_size, stat.st_mtime_ns


class _Message(NamedTuple):
    """A message of a stream.

    body: its first byte in the message. buffers: offset in the body and size of each.
    """

    kind: int
    rows: int
    offset: int
    size: int
    body: int
    buffers: tuple[tuple[int, int], ...]

    def place(self, schema: pa.Schema, column: str) -> slice:
        """Bytes of the message that hold a column; none if the message has other buffers."""
        counts = [len(pa.array([], field.type).buffers()) for field in schema]
        number = schema.get_field_index(column)
        first = sum(counts[:number])
        own = self.buffers[first : first + counts[number]]
        if len(self.buffers) != sum(counts) or not own:
            return slice(0, 0)
        start, stop = self.body + own[0][0], self.body + sum(own[-1])
        return slice(start, stop) if self.body <= start <= stop <= self.size else slice(0, 0)


class StreamIndex:
    """Places of the record batches of an Arrow stream, without empty ones.

    starts: number of the first row of each. rows: of all. Costs a read per record batch.

    FormatError if the file is not a complete stream.
    """

    def __init__(self, file: SteadyFile) -> None:
        offset, end = 0, file.state[0]
        self._messages: list[_Message] = []
        while (message := _message(file, offset, end)) is not None:
            offset += message.size
            if message.kind == _RECORD_BATCH and message.rows:
                self._messages.append(message)
        file.check()
        rows = [*accumulate((message.rows for message in self._messages), initial=0)]
        self.starts, self.rows = rows[:-1], rows[-1]

    def __len__(self) -> int:
        return len(self._messages)

    def at(self, row: int) -> int:
        """Number of the record batch of a row."""
        return bisect_right(self.starts, row) - 1

    def read(
        self, file: SteadyFile, number: int, schema: pa.Schema, without: str = ""
    ) -> tuple[pa.RecordBatch, int]:
        """Read a record batch; also its bytes in memory. without: a column that is not read."""
        message = self._messages[number]
        gap = message.place(schema, without) if without else slice(0, 0)
        content = file.read(message.offset, message.size, gap=gap)
        try:
            batch = pa.ipc.read_record_batch(content, schema)
        except (pa.ArrowException, OSError) as error:
            raise not_a_stream(file.path, error) from None
        if len(batch) != message.rows:
            raise not_a_stream(file.path, f"a record batch has {len(batch)} rows")
        return batch.drop_columns([without]) if without else batch, message.size


def schema_bytes(file: SteadyFile) -> pa.Buffer:
    """Beginning of a stream, with its schema."""
    head = file.read(0, min(_HEAD, file.state[0]))
    length = int.from_bytes(head.to_pybytes()[4:8], "little")
    return head if 8 + length <= head.size else file.read(0, min(8 + length, file.state[0]))


def not_a_stream(path: str | Path, problem: Any) -> FormatError:
    return FormatError(
        f"{path} is not a complete Arrow stream: {problem}; restore the file or build again"
    )


def _message(file: SteadyFile, offset: int, end: int) -> _Message | None:
    """The message at an offset; None at the end of the stream.

    Each is a marker, the size of its metadata, the metadata, and a body. The metadata is the table
    Message of Arrow's format/Message.fbs: field 1 is its kind, field 2 a table of that kind, whose
    field 0 is the number of rows and field 2 the places of buffers, and field 3 the size of the
    body.
    """
    head = file.read(offset, min(_HEAD, end - offset), checked=False).to_pybytes()
    if not head:
        return None
    try:
        marker, length = struct.unpack_from("<Ii", head)
        if marker == _CONTINUATION and length == 0:
            return None
        if marker != _CONTINUATION or not 0 < length <= end - offset - 8:
            raise not_a_stream(file.path, f"no message at byte {offset}")
        if 8 + length > len(head):
            head = file.read(offset, 8 + length).to_pybytes()
        root = 8 + struct.unpack_from("<I", head, 8)[0]
        kind, table, body = (_field(head, root, number) for number in (1, 2, 3))
        size = 8 + length + (struct.unpack_from("<q", head, body)[0] if body else 0)
        rows, buffers = 0, tuple[tuple[int, int], ...]()
        if kind and table and head[kind] == _RECORD_BATCH:
            batch = table + struct.unpack_from("<I", head, table)[0]
            place, list_at = _field(head, batch, 0), _field(head, batch, 2)
            rows = struct.unpack_from("<q", head, place)[0] if place else 0
            if list_at:
                first = list_at + struct.unpack_from("<I", head, list_at)[0]
                last = first + 4 + 16 * struct.unpack_from("<I", head, first)[0]
                buffers = tuple(struct.iter_unpack("<qq", head[first + 4 : last]))
        if not 8 + length <= size <= end - offset or rows < 0:
            raise not_a_stream(file.path, f"the message at byte {offset} is longer than the file")
        return _Message(head[kind] if kind else 0, rows, offset, size, 8 + length, buffers)
    except (struct.error, IndexError) as error:
        raise not_a_stream(file.path, error) from None


def _field(content: bytes, table: int, number: int) -> int:
    """Place of a field of a table of a flatbuffer; 0 if it has its default."""
    fields = table - struct.unpack_from("<i", content, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", content, fields)[0]:
        return 0
    place = struct.unpack_from("<H", content, fields + 4 + 2 * number)[0]
    return table + place if place else 0
