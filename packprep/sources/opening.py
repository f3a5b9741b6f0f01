"""An open source: its rows as Arrow tables.

Errors of its reader become a sentence.

Nothing is cached in the user's home, except hub datasets, which `datasets` caches there itself. No
more is read than is wanted. Only files that cannot be streamed are unpacked into `scratch`.
"""

import contextlib
import errno
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from packprep.config.build_config import BuildConfig
from packprep.schemas.errors import FormatError
from packprep.schemas.storage.store_errors import StoreError
from packprep.sources.carried import number_columns
from packprep.sources.formats.format import ROWS_PER_TABLE, Wanted
from packprep.sources.formats.raw_files import unpacking
from packprep.sources.row_text import columns_read, group_columns, text_columns
from packprep.sources.source import Source
from packprep.support.errors import InputError, system_error

if TYPE_CHECKING:
    from packprep.chat.conversations import ConversationColumns

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


def check_names(
    source: Source, names_found: Sequence[str], wanted: Sequence[str], texts: Sequence[str]
) -> None:
    """Raise InputError unless each wanted column exists once.

    names_found: of all columns. texts: columns that an option for text chooses.
    """
    for name in wanted:
        if names_found.count(name) != 1:
            options = (
                "--text-column or --text-template" if name in texts else "the option that names it"
            )
            if name in texts and {"messages", "conversations"} & set(names_found):
                options += ", or --messages-column auto for conversations"
            problem = "has no column" if name not in names_found else "has more than one column"
            listed = ", ".join(names_found) or "none"
            raise InputError(
                f"{source.name} {problem} {name!r}; it has {listed}: choose with {options}"
            )


def number_types(source: Source, names: Sequence[str]) -> dict[str, pa.DataType]:
    """Arrow types of columns of numbers, of a format that must know them before it reads."""
    assert source.format.first_types is not None
    types = source.format.first_types(source, names)
    if empty := [name for name in names if pa.types.is_null(types[name])]:
        names_found: Sequence[str] = empty
        with contextlib.suppress(
            InputError
        ):  # for rows that cannot be parsed; reading them raises the error
            names_found = source.format.columns(source, source.path) or empty
        check_names(source, names_found, empty, ())
    return types


def open_rows(
    source: Source,
    path: Path | str | None,
    config: BuildConfig,
    scratch: Path,
    chats: "ConversationColumns | None",
    begin: int = 0,
) -> Iterator[pa.Table]:
    """The rows of a source as tables that are not empty.

    A format that is read front to back decides how large its tables are: with 512 rows in each,
    short documents took five times as long to check and to cut. Conversations are an exception,
    because the first table is rendered before anything else begins.
    begin: byte where the first row to read begins, see `Format.row_begins`.
    """
    names, texts = number_columns(config), text_columns(config)
    typed = bool(names) and source.format.first_types is not None
    wanted = Wanted(
        config=config,
        columns=tuple(columns_read(config, chats)),
        scratch=scratch,
        numbers=number_types(source, names) if typed else {},
        nested=tuple(chats.wanted) if chats is not None else (),
        groups=tuple(name for name in group_columns(config) if name not in texts),
        begin=begin,
    )
    for table in source.format.tables(source, path, wanted):
        rows = len(table) if chats is None else ROWS_PER_TABLE
        yield from (table.slice(first, rows) for first in range(0, len(table), rows or 1))


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
