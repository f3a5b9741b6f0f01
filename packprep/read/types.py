"""Values of the room: sources, kinds of rows, formats, and documents as they are read."""

import importlib
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from .values import Columns, Kind, Problem, Raw


@dataclass(frozen=True)
class Text:
    """Rows of text. template: a column, or text with {columns}. sample_by: of .txt files."""

    template: str = "text"
    sample_by: str = "document"
    truncate_at: str | None = None


@dataclass(frozen=True)
class Ids:
    """Rows of token ids. labels: column of labels, or of a mask, as `kind` says.

    split_at: (eos or bos, id) of rows that are packed already. vocab_size: ids are below it.
    """

    column: str = "input_ids"
    labels: str | None = None
    kind: str | None = None
    split_at: tuple[str, int] | None = None
    vocab_size: int = 0


@dataclass(frozen=True)
class Chat:
    """Rows of conversations. columns: one of messages, or prompt and response; or `auto`."""

    columns: tuple[str, ...]


@dataclass(frozen=True)
class Pieces:
    """Rows of pieces in one column: lists of {text or token_ids, train}, or one rendered text."""

    columns: tuple[str, ...]


@dataclass(frozen=True)
class Pairs:
    """Rows of preference pairs: two documents, parts 0 and 1, which share a pack."""

    sides: "tuple[Text | Ids | Chat | Pieces, Text | Ids | Chat | Pieces]"


Rows = Text | Ids | Chat | Pieces | Pairs
Render = Callable[..., Any]
"""`chat.documents.Renderer.documents`, of this process or of another."""


def sides_of(rows: Rows) -> tuple[Text | Ids | Chat | Pieces, ...]:
    """The kinds of documents that a row makes: two for a pair."""
    return rows.sides if isinstance(rows, Pairs) else (rows,)


LIMIT = 256_000_000
"""Bytes of a row at most."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file of the input, or several that belong together, in the order of the input.

    number: over the build. name: in messages and the report, without secrets. paths: the file with
    the rows first, then those beside it; or the files of a saved dataset. format: see `format_of`.
    compression: gz, zst or nothing. bytes, digest: size and xxh3-128 of the content. state: sizes
    and modification times when it was digested. rows: how its rows are read.
    carried: columns that are copied. group: column of groups. entry: number of its entry of
    `sources`; limit: rows of all files of that entry. mirror: folder of files at URLs.
    """

    number: int = 0
    name: str
    paths: tuple[str, ...]
    format: str
    compression: str = ""
    bytes: int
    digest: str = ""
    state: tuple[tuple[int, int], ...] = ()
    rows: Rows
    carried: Mapping[str, Kind] = field(default_factory=dict)
    group: str | None = None
    entry: int = 0
    limit: int | None = None
    mirror: str = ""

    def ready(self) -> "Source":
        """Fetch files at URLs that are not here, and return the source."""
        if self.mirror and self.paths[0].startswith(self.mirror):
            from .remote import make_ready

            make_ready(self)
        return self

    def open(self) -> Any:
        """The plain bytes of the first file. Reading raises InputError for damaged compression."""
        if not self.compression:
            return Path(self.paths[0]).open("rb")
        from .formats.compressed import Plain

        return io.BufferedReader(Plain(self), 1 << 20)


class Piece(NamedTuple):
    """Part of a source: bytes of JSON lines, row groups, record batches, documents of a token file.

    end: the first after it; -1 is the end of the file.
    """

    source: int
    begin: int
    end: int


Split = tuple[Piece, ...]
"""About 16 MB of files: many small ones, or a part of a large one."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format of files.

    read: f(source, begin, end, columns) -> rows of a piece, in order; see `Piece`. cut: f(source,
    size) -> places at which pieces of about `size` bytes begin, 0 first; None if a file is one
    piece. line_of: f(source, row) -> line of a row, from 1; None if rows are not lines.
    """

    read: Callable[[Source, int, int, Columns], Iterator[Raw]]
    cut: Callable[[Source, int], list[int]] | None = None
    line_of: Callable[[Source, int], int | None] = lambda source, row: None


ENDINGS = {"jsonl": "json", "json": "json", "ndjson": "json", "csv": "csv", "tsv": "tsv"}
ENDINGS |= {"txt": "text", "parquet": "parquet", "arrow": "arrow"}
ENDINGS |= {"bin": "megatron", "npy": "npy", "ds": "datatrove"}
"""Formats by endings of file names."""
_MODULES = {"json": "jsonl", "csv": "plain", "tsv": "plain", "text": "plain"}
_MODULES |= {"parquet": "tables", "arrow": "tables"}
_MODULES |= dict.fromkeys(("megatron", "npy", "datatrove"), "token_files")


def format_of(name: str) -> Format:
    """The format of this name, from the table FORMATS of its module."""
    module = importlib.import_module(f".formats.{_MODULES[name]}", __package__)
    made: Format = module.FORMATS[name]
    return made


def known_format(path: str) -> tuple[str, str]:
    """Format of a file by its ending, "" for others, and its compression."""
    stem, _, ending = path.lower().rpartition(".")
    compression = ending if ending in ("gz", "zst") else ""
    return ENDINGS.get(stem.rpartition(".")[2] if compression else ending, ""), compression


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Documents of consecutive rows of one source.

    rows: number of rows read. problems: of bad rows, by row. documents: a table with `row` (int32,
    from the first row of the batch), `part` (int32, -1 whole), `text` (large_string, null for a row
    without text) or `ids` (list<int32>), and where rows have them `labels` (list<int32>) or `mask`
    (list<int8>), `group` (int64), carried columns; a row has at least one document. cut: documents
    and characters that truncate_at removed. unread: columns that are not read. turns: of rows that
    may be several documents, number of `documents` and of `split_rows`. left_out: of
    chats, see `chat.documents.Rendered`.
    """

    source: int
    rows: int
    documents: pa.Table
    problems: Mapping[int, Problem] = field(default_factory=dict)
    cut: tuple[int, int] = (0, 0)
    unread: tuple[str, ...] = ()
    turns: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
