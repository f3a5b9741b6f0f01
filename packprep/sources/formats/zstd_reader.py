"""Plain bytes of a Zstandard file, as `zstd -d --long=31` reads it: frames one after another.

The decompressor of Arrow refuses windows over 128 MB, which `zstd --long=28` to `--long=31` write.
"""

import io
from typing import Any, BinaryIO

import zstandard

WIDEST = 1 << 31
"""Bytes of the largest window that libzstd reads."""
_USUAL = 1 << 27
# A block of four bytes may have 128 kB of text, so this is at most 32 MB at once.
_BLOCK = 1 << 10


def window_within(memory: int) -> int:
    """Bytes of a window that a reader may have: 128 MB, as everywhere, or more within memory."""
    return max(_USUAL, min(WIDEST, memory))


class ZstdReader(io.RawIOBase):
    """The plain bytes of an open file, which is closed with this reader.

    Raises OSError: "Truncated compressed stream" where the file ends within a frame, "ZSTD: ..."
    where a frame is damaged, or has a larger window than max_window.
    """

    def __init__(self, file: BinaryIO, max_window: int = WIDEST) -> None:
        self._file = file
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=max_window)
        self._frame: Any = None  # None between frames
        self._packed = b""  # read and not yet decompressed
        self._plain = memoryview(b"")  # not yet taken

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill part of the buffer; 0 at the end of the file."""
        while not self._plain:
            self._packed = self._packed or self._file.read(_BLOCK)
            if not self._packed:
                if self._frame is not None:
                    raise OSError("Truncated compressed stream")
                return 0
            self._frame = self._frame or self._decompressor.decompressobj()
            try:
                self._plain = memoryview(self._frame.decompress(self._packed))
            except zstandard.ZstdError as error:
                raise OSError(f"ZSTD: {str(error).rpartition(': ')[2]}") from None
            self._packed = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        count = min(len(buffer), len(self._plain))
        buffer[:count] = self._plain[:count]
        self._plain = self._plain[count:]
        return count

    def close(self) -> None:
        """Close the file too."""
        self._file.close()
        super().close()
