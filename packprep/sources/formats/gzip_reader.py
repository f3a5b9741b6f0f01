"""Plain bytes of a gzip file, as `gzip` reads it: several members, with zeros after any of them.

Tapes pad a file with zeros to a full block. The decompressor of Arrow treats them as a damaged
member, and that of Python is a fifth slower.
"""

import io
import zlib
from typing import Any, BinaryIO

_BLOCK = 1 << 17
_MAGIC = b"\x1f\x8b"


class GzipReader(io.RawIOBase):
    """The plain bytes of an open gzip file, which is closed with this reader.

    Raises OSError: "Truncated compressed stream" where the file ends within a member, "zlib: ..."
    where a member is damaged, and "Garbage at byte N" where a member is followed by other bytes
    than zeros or a member.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._inflate = zlib.decompressobj(wbits=31)  # 31: with gzip's header and checksum
        self._at_start = True  # of a member, or of zeros after one
        self._members = 0
        self._packed = b""  # read and not yet inflated

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill part of the buffer; 0 at the end of the file."""
        while True:
            if not self._packed and not self._read_on():
                return 0
            if self._at_start and not self._begin():
                continue
            try:
                plain = self._inflate.decompress(self._packed, len(buffer))
            except zlib.error as error:
                raise OSError(f"zlib: {str(error).rpartition(': ')[2]}") from None
            self._packed = self._inflate.unconsumed_tail
            if self._inflate.eof:
                self._packed = self._inflate.unused_data
                self._inflate, self._at_start = zlib.decompressobj(wbits=31), True
                self._members += 1
            if plain:
                buffer[: len(plain)] = plain
                return len(plain)

    def _read_on(self) -> bool:
        """Read more of the file; False at its end, which must not be inside a member."""
        self._packed = self._file.read(_BLOCK)
        if not self._packed and not self._at_start:
            raise OSError("Truncated compressed stream")
        return bool(self._packed)

    def _begin(self) -> bool:
        """Begin a member; False if none begins in the bytes read so far."""
        if self._members:
            self._packed = self._packed.lstrip(b"\0")
            if not self._packed:
                return False
            if not self._packed.startswith(_MAGIC[: len(self._packed)]):
                raise OSError(f"Garbage at byte {self._file.tell() - len(self._packed)}")
        self._at_start = False
        return True

    def close(self) -> None:
        """Close the file too."""
        self._file.close()
        super().close()
