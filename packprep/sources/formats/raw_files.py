"""Files as bytes: compressed or plain, and lines of them.

A file is at a path, or is an object of a certain version at the URL of a store.
"""

import io
from collections.abc import Iterator
from pathlib import Path

from packprep.schemas.storage.places import files_at
from packprep.sources.formats.gzip_reader import GzipReader
from packprep.sources.formats.zstd_reader import WIDEST, ZstdReader

COMPRESSED = ("gz", "zst")
_BUFFER = 1 << 20
# UTF-16 without its mark is valid UTF-8 full of NULs, and so are most binary files.
NUL = "contains a NUL byte; save it as UTF-8 text"


def suffixes(name: str) -> tuple[str, str]:
    """Format and compression: "data.jsonl.gz" gives ("jsonl", "gz")."""
    parts = Path(name).name.lower().split(".")
    compression = parts.pop() if parts[-1] in COMPRESSED else ""
    return (parts[-1] if len(parts) > 1 else ""), compression


def decompressed(
    path: str | Path, version: str = "", max_window: int = WIDEST
) -> io.BufferedReader:
    """The plain bytes of a file, or of an object of this version in a store.

    Compressed data that ends early is an OSError, not just a shorter file. max_window: see
    `unpacking`.
    """
    return unpacking(opened(str(path), version), suffixes(str(path))[1], max_window)


def unpacking(
    file: io.BufferedReader, compression: str, max_window: int = WIDEST
) -> io.BufferedReader:
    """The plain bytes of an open file, which is closed with them.

    compression: see `Source.compression`. A plain file is returned itself: copying each byte once
    more doubled the time of reading. max_window: bytes of a window of zstd at most.
    """
    if not compression:
        return file
    reader = GzipReader(file) if compression == "gz" else ZstdReader(file, max_window)
    return io.BufferedReader(reader, _BUFFER)


def opened(path: str, version: str) -> io.BufferedReader:
    """The bytes as they are.

    StoreError of EBUSY if an object is missing or has another version.
    """
    return files_at(path).open("", version)


def numbered_lines(file: io.BufferedReader) -> Iterator[tuple[int, bytes]]:
    """Number, from 1, and beginning of every line that is not blank.

    Yielded before the line is read to its end.
    """
    number, yielded = 1, False
    while piece := file.readline(1 << 20):
        if not yielded and (first := piece.strip()):
            yield number, first
            yielded = True
        if piece.endswith(b"\n"):
            number, yielded = number + 1, False


def escaped_bytes(text: str) -> int:
    """Offset of the first byte that is not UTF-8, or of the first lone surrogate; -1 without one.

    text: decoded with surrogateescape.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return -1
