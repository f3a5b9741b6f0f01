"""Compressed files: frames of gzip or of Zstandard, one after another, in bounded memory."""

import io
from typing import Any

import pyarrow as pa

from ...support.errors import InputError
from ..types import Source

_CODECS: dict[str, Any] = {"gz": "gzip", "zst": "zstd"}


class Plain(io.RawIOBase):
    """The plain bytes of a compressed source."""

    def __init__(self, source: Source) -> None:
        self.name, self.file = source.name, pa.OSFile(source.paths[0], mode="r")
        self.bytes = pa.CompressedInputStream(self.file, _CODECS[source.compression])

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return self.bytes.readinto(buffer)
        except OSError as error:
            is_wide = "too much memory" in str(error)  # for a window of more than 128 MiB
            cure = "unpack it: zstd -d --long=31" if is_wide else "fetch the file again"
            at = f"{self.name} does not decompress by byte {self.file.tell():,}"
            raise InputError(f"{at}: {error}; {cure}") from None
