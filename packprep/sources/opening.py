"""An open source: the file that its reader opens, and errors of the reader as a sentence.

Nothing is cached in the user's home, except hub datasets, which `datasets` caches there itself. No
more is read than is wanted. Only files that cannot be streamed are unpacked into `scratch`.
"""

import contextlib
import errno
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from packprep.schemas.errors import FormatError
from packprep.schemas.storage.store_errors import StoreError
from packprep.sources.formats.raw_files import unpacking
from packprep.sources.source import Source
from packprep.support.errors import InputError, system_error

# Parquet and Arrow are binary: compressed again they shrink a few times, a file of zeros 1,000
# times.
_UNPACKED_BYTES, _UNPACKED_RATIO = 1 << 30, 100


@contextlib.contextmanager
def readable(source: Source, read: Sequence[int] = (0,)) -> Iterator[None]:
    """Turn errors of a format's reader into a sentence with the file's name.

    read: number of rows read so far, in a sequence of one. A file that has changed since it was
    hashed may have any fault: the error says that it has changed.
    """
    try:
        yield
    except Exception as error:
        if (changed := source.changed()) is not None:
            raise changed from None
        if isinstance(error, InputError | FormatError):
            raise
        if isinstance(refused := system_error(error), StoreError):
            if refused.errno == errno.EBUSY:
                raise InputError(
                    f"{source.name} has changed since the build began: {refused.strerror}; build "
                    "again from the start"
                ) from None
            raise StoreError(refused.errno or 0, str(refused.strerror), source.name) from None
        if refused is not None:
            raise OSError(
                refused.errno, refused.strerror, source.name
            ) from None  # not a fault of the source
        place = f" (after row {read[0] - 1})" if read[0] else ""
        raise InputError(f"{source.name} {_reason(error, source)}{place}") from None


@contextlib.contextmanager
def unpacked(source: Source, scratch: Path) -> Iterator[Path | str | None]:
    """The file to open: the source's file, or a plain copy if its reader cannot stream that."""
    copied = source.compression or source.is_remote
    if source.path is None or not copied or source.format.is_streamed:
        yield source.path
        return
    if source.is_remote and source.format.is_folder:
        from packprep.sources.remote import fetched

        with fetched(source, scratch) as folder:
            yield folder
        return
    if source.is_remote and source.format.beside is not None:
        from packprep.sources.remote import fetched_tokens

        with fetched_tokens(source, scratch) as file:
            yield file
        return
    most = max(_UNPACKED_BYTES, _UNPACKED_RATIO * source.bytes)
    with (
        source.plain() as packed,
        tempfile.NamedTemporaryFile(dir=scratch, suffix=f".{source.suffix}") as copy,
    ):
        while block := packed.read(1 << 20):
            copy.write(block)
            if source.compression and copy.tell() > most:
                raise InputError(
                    f"{source.name} unpacks to more than {most:,} bytes, more than any "
                    f"{source.kind} file does"
                )
        copy.flush()
        yield Path(copy.name)


def _reason(error: Exception, source: Source) -> str:
    text = " ".join(str(error).split())[:300]
    if source.compression and "Truncated compressed stream" in text:
        return (
            f"is cut off at byte {source.bytes:,}: the compressed data ends early; fetch the "
            "file again"
        )
    if source.compression and text.startswith("Garbage at byte "):
        end = int(text.rpartition(" ")[2])
        return (
            f"is intact up to byte {end:,}, and what follows is neither gzip nor padding with "
            "zeros; "
            f"remove it (head -c {end}) or fetch the file again"
        )
    if source.compression and text.endswith("requires too much memory for decoding"):
        return (
            f"has a zstd window of more than {source.max_window:,} bytes, which does not fit into "
            "--max-memory; give more, or unpack the file first: zstd -d --long=31 "
            f"{source.name}"
        )
    if source.compression and ("zlib" in text or "ZSTD" in text):
        return f"does not decompress by byte {_damaged_at(source):,}: {text}; fetch the file again"
    return f"cannot be read as {source.kind}: {text or type(error).__name__}"


def _damaged_at(source: Source) -> int:
    """Byte of a compressed file at which its reader fails, or a few after it: it reads ahead."""
    with source.raw() as file:
        plain = unpacking(file, source.compression)
        with contextlib.suppress(OSError, pa.ArrowException):
            while plain.read(1 << 20):
                pass
        return int(file.tell())
