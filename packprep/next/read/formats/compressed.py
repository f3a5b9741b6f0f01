"""Compressed files: frames of gzip or of Zstandard, one after another, in bounded memory."""

import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...support.errors import InputError
from ..types import Source

# Bytes that are decompressed at once: 4 bytes of Zstandard may be 128 kB of text.
_BLOCKS = {"gz": 1 << 16, "zst": 1 << 10}


def opened(source: Source) -> io.BufferedReader:
    """The plain bytes of a compressed source."""
    return io.BufferedReader(_Plain(source), 1 << 20)


class _Plain(io.RawIOBase):
    def __init__(self, source: Source) -> None:
        self.source = source
        self.file = Path(source.paths[0]).open("rb")  # noqa: SIM115 - closed with this
        frames = {"gz": lambda: zlib.decompressobj(31), "zst": lambda: _zstandard(source.window)}
        self.blocks = self._decompressed(frames[source.compression])
        self.rest = memoryview(b"")

    def _decompressed(self, new_frame: Callable[[], Any]) -> Iterator[bytes]:
        frame: Any = None
        while packed := self.file.read(_BLOCKS[self.source.compression]):
            while packed:
                frame = frame or new_frame()
                yield frame.decompress(packed)
                packed = frame.unused_data
                if frame.eof:
                    frame, packed = None, packed.lstrip(b"\0")  # gzip may be padded
        if frame is not None:
            raise EOFError("the compressed data ends early")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            while not self.rest:
                self.rest = memoryview(next(self.blocks))
        except StopIteration:
            return 0
        except Exception as error:  # each library has its own kinds
            raise self._fault(error) from None
        count = min(len(buffer), len(self.rest))
        buffer[:count], self.rest = self.rest[:count], self.rest[count:]
        return count

    def _fault(self, error: Exception) -> InputError:
        name, window = self.source.name, self.source.window
        if "too much memory" in str(error):
            return InputError(
                f"{name} has a Zstandard window of more than {window:,} bytes, which does not fit "
                f"into max_memory; give more, or unpack it first: zstd -d --long=31 {name}"
            )
        what = f"{name} does not decompress by byte {self.file.tell():,}"
        return InputError(f"{what}: {error}; fetch the file again")

    def close(self) -> None:
        self.file.close()
        super().close()


def _zstandard(window: int) -> Any:
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=window).decompressobj()
