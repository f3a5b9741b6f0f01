"""Compressed files: frames of gzip or of Zstandard, one after another, in bounded memory."""

import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...support.errors import InputError
from ..types import Source

# Bytes that are decompressed at once: 4 bytes of Zstandard may be 128 kB of text.
_BLOCKS = {"gz": 1 << 16, "zst": 1 << 10}


class Plain(io.RawIOBase):
    """The plain bytes of a compressed source."""

    def __init__(self, source: Source) -> None:
        self.source, self.place, self.rest = source, 0, memoryview(b"")
        self.blocks = self._decompressed()

    def _decompressed(self) -> Iterator[bytes]:
        frame: Any = None
        with Path(self.source.paths[0]).open("rb") as file:
            while packed := file.read(_BLOCKS[self.source.compression]):
                self.place += len(packed)
                while packed:
                    frame = frame or self._frame()
                    yield frame.decompress(packed)
                    packed = frame.unused_data
                    if frame.eof:
                        frame, packed = None, packed.lstrip(b"\0")  # gzip may be padded
        if frame is not None:
            raise EOFError("the compressed data ends early")

    def _frame(self) -> Any:
        if self.source.compression == "gz":
            return zlib.decompressobj(31)
        import zstandard

        return zstandard.ZstdDecompressor(max_window_size=self.source.window).decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            while not self.rest and (block := next(self.blocks, None)) is not None:
                self.rest = memoryview(block)
        except Exception as error:  # each library has its own kinds
            cure = "fetch the file again"
            if "too much memory" in str(error):  # for its window
                cure = "give more max_memory, or unpack it: zstd -d --long=31"
            at = f"{self.source.name} does not decompress by byte {self.place:,}"
            raise InputError(f"{at}: {error}; {cure}") from None
        count = min(len(buffer), len(self.rest))
        buffer[:count], self.rest = self.rest[:count], self.rest[count:]
        return count
