"""What a format of sources is: a record with functions of a file."""

import gzip
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...support.errors import InputError
from ..types import Raw, Source, Wanted

BLOCK = 4 << 20  # bytes that are read at once
GROUP = (pa.large_string(), pa.int64(), pa.bool_(), pa.float64())
"""Types that JSON of a column of groups is parsed to; a column of several is text."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format of files.

    endings: of file names, without a compression. read: f(source, begin, end, wanted) -> rows of a
    piece, in order; see `Piece`. columns: f(source) -> names of the columns of the first row. cut:
    f(source, size) -> places at which pieces of about `size` bytes begin, 0 first; None if a file
    is one piece. line_of: f(source, row) -> line of a row, from 1; None if rows are not lines.
    beside: f(path) -> other files that belong to a file.
    """

    name: str
    endings: tuple[str, ...]
    read: Callable[[Source, int, int, Wanted], Iterator[Raw]]
    columns: Callable[[Source], list[str]]
    cut: Callable[[Source, int], list[int]] | None = None
    line_of: Callable[[Source, int], int | None] | None = None
    beside: Callable[[str], list[str]] | None = None


def opened(source: Source) -> Any:
    """The plain bytes of a source. Reading raises InputError where it does not decompress."""
    if source.compression:
        return io.BufferedReader(_Plain(source), BLOCK)
    return Path(source.path).open("rb")


class _Plain(io.RawIOBase):
    """The plain bytes of a compressed file."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.file = Path(source.path).open("rb")  # noqa: SIM115 - closed with this
        self.blocks = {"gz": _gzip, "zst": _zstandard}[source.compression](self.file)
        self.rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            while not self.rest:
                self.rest = memoryview(next(self.blocks))
        except StopIteration:
            return 0
        except Exception as error:  # each library has its own kinds
            what = f"{self.source.name} does not decompress at byte {self.file.tell():,}"
            raise InputError(f"{what}: {error}; fetch the file again") from None
        count = min(len(buffer), len(self.rest))
        buffer[:count], self.rest = self.rest[:count], self.rest[count:]
        return count

    def close(self) -> None:
        self.file.close()
        super().close()


def _gzip(file: Any) -> Iterator[bytes]:
    with gzip.open(file) as plain:
        while block := plain.read1(1 << 17):
            yield block


def _zstandard(file: Any) -> Iterator[bytes]:
    import zstandard

    # The largest window that zstd writes; memory is taken only as a frame needs it.
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    frame: Any = None
    while packed := file.read(1 << 13):
        while packed:
            frame = frame or decompressor.decompressobj()
            yield frame.decompress(packed)
            packed = frame.unused_data
            frame = None if frame.eof else frame
    if frame is not None:
        raise EOFError("the file ends inside a frame")


def unreadable(source: Source, error: BaseException) -> InputError:
    """The error about a file that its library cannot read."""
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    what = f"is not a sound {source.format} file"
    return InputError(f"{source.name} {what}: {reason}; fetch the file again")


def group_text(value: Any) -> str:
    """The text of a group: 1 is '1', 1.0 too, true is 'true'."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
