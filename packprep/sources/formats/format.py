"""The record of one file format: everything that reading a source needs to know about it.

A new format is a module with its record and the record's name in `registry.py`.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from packprep.config.grammar.source_names import HubPart
from packprep.sources.formats.row_plan import RowPlan

ROWS_PER_TABLE = 512  # a table of long documents must not be large: 512 books are 100 MB
LocalPath = Path | str | None  # of the file to open: an unpacked copy, or the source's own


class Input(Protocol):
    """A source as its format sees it, see `Source`."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> LocalPath: ...
    @property
    def is_remote(self) -> bool: ...
    @property
    def suffix(self) -> str: ...
    @property
    def compression(self) -> str: ...
    @property
    def part(self) -> HubPart: ...
    def plain(self) -> io.BufferedReader: ...
    def raw(self) -> io.BufferedReader: ...


@dataclass(frozen=True)
class Wanted:
    """The rows of a source that a build reads.

    begin: the byte where the first row to read begins, see `Format.row_begins`.
    """

    plan: RowPlan
    scratch: Path = Path()
    begin: int = 0


@dataclass(frozen=True, kw_only=True)
class Format:
    """One way in which rows are stored.

    name: `kind` of its sources in receipts, reports and manifests.
    endings: of names of its files, without compression and dot; empty if it is not a single file.
    columns: names of the columns, without reading the rows; None if each table has all of them.

    tables: the rows, in order, as tables of the wanted columns, or of all; and READER_PROBLEM, if
    the reader itself finds problems.
    is_streamed: True if it reads the plain bytes of the source from front to back, so that the
    source may be compressed or in a store; False if it needs random access to a local file.
    has_own_columns: True if each row names its columns, so that a later row may have others.
    first_types: Arrow types of columns by the first rows, if the reader must know them; null where
    none of these rows has a value.
    numbers_are_text: True if numbers are read as text.
    finds_bad_utf8: True if the reader itself reports text that is not UTF-8.
    line_of_row: line of a row in its file, from 1; None if rows are not lines.
    row_begins: rows and their first bytes, at least this many bytes apart, at which reading a plain
    file may begin, and its number of lines. Of a file with an index, rows replace bytes and lines.
    beside: names of the files that belong to a file of token ids, see token_files/names.py; None
    for a format of text.
    has_row_a_line: True if a file with this beginning has one row a line, so that any run of its
    lines is a sample of it.
    count: number of rows, if it is known without reading the source.
    text_per_byte: bytes of text in a byte of a file, about; None if its plain bytes are the text.
    is_folder: True if it is a folder of files.
    options: names of options for such sources only.
    """

    name: str
    endings: tuple[str, ...] = ()
    columns: Callable[[Input, LocalPath], Sequence[str] | None]
    tables: Callable[[Input, LocalPath, Wanted], Iterator[pa.Table]]
    is_streamed: bool = False
    has_own_columns: bool = False
    first_types: Callable[[Input, Sequence[str]], dict[str, pa.DataType]] | None = None
    numbers_are_text: bool = False
    finds_bad_utf8: bool = False
    line_of_row: Callable[[Input, int], int | None] | None = None
    row_begins: Callable[[Input, int], tuple[list[tuple[int, int]], int]] | None = None
    beside: Callable[[str, Callable[[str], bool]], list[str]] | None = None
    has_row_a_line: Callable[[bytes], bool] | None = None
    count: Callable[[Input], int | None] | None = None
    text_per_byte: float | None = None
    is_folder: bool = False
    options: frozenset[str] = frozenset()


def tables_in(rows: Any) -> Iterator[pa.Table]:
    """The rows of a `datasets` object as tables."""
    tables: Iterator[pa.Table] = rows.with_format("arrow").iter(batch_size=ROWS_PER_TABLE)
    return tables
