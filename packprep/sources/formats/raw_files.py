"""Files of known formats.

What a name says of format and compression, and the bytes, as they are or plain.

A file is at a path, or at the URL of an object in a store, which must be the one of a certain
version.
"""

import errno
import io
from pathlib import Path
from typing import BinaryIO

from packprep.schemas import Store, StoreError, is_url
from packprep.sources.formats.gzip_reader import GzipReader

KINDS = {
    "jsonl": "json",
    "json": "json",
    "csv": "csv",
    "tsv": "csv",
    "txt": "text",
    "parquet": "parquet",
    "arrow": "arrow",
}
COMPRESSED = {"gz": "gzip", "zst": "zstd"}
SUFFIXES = "/".join(f".{suffix}" for suffix in KINDS) + " (plain, .gz or .zst)"


def suffixes(name: str) -> tuple[str, str]:
    """Format and compression: "data.jsonl.gz" gives ("jsonl", "gz")."""
    parts = Path(name).name.lower().split(".")
    compression = parts.pop() if parts[-1] in COMPRESSED else ""
    return (parts[-1] if len(parts) > 1 else ""), compression


def decompressed(path: str | Path, version: str = "") -> io.BufferedReader:
    """The plain bytes of a file, or of an object of this version in a store.

    Compressed data that ends early is an OSError, not just a shorter file.
    """
    return unpacking(opened(str(path), version), suffixes(str(path))[1])


def unpacking(file: BinaryIO, compression: str) -> io.BufferedReader:
    """The plain bytes of an open file, which is closed with them.

    compression: see `Source.compression`.
    """
    import pyarrow

    plain = (
        GzipReader(file)
        if compression == "gz"
        else pyarrow.input_stream(file, compression=COMPRESSED.get(compression))
    )
    return io.BufferedReader(plain, 1 << 20)


def opened(path: str, version: str) -> BinaryIO:
    """The bytes as they are.

    StoreError of EBUSY where an object is not, or no longer, the one of this version.
    """
    if not is_url(path):
        return Path(path).open("rb")
    store = Store(path)
    if (found := store.find("")) is None:
        raise StoreError(errno.EBUSY, "it is gone", path)
    if found.version != version:
        raise StoreError(errno.EBUSY, "it was replaced by another one", path)
    return store.open("")
