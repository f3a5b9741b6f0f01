"""Values of the room: sources, pieces of files, kinds of rows, and documents as they are read."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa


class Problem(NamedTuple):
    """A problem of a row. reason: as report.json counts it. detail: without file and row."""

    reason: str
    detail: str


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
    """Rows of conversations. columns: one of messages, or prompt and response."""

    columns: tuple[str, ...]
    train_on: str = "assistant"
    turns: str = "row"


@dataclass(frozen=True)
class Pairs:
    """Preference pairs: two documents a row, sides 0 and 1, which share a pack."""

    prompt: str | None
    sides: tuple[str, str]


@dataclass(frozen=True)
class Pieces:
    """Rows of pieces: lists of {text or token_ids, train}, or one rendered text."""

    column: str


Rows = Text | Ids | Chat | Pairs | Pieces


class Carried(NamedTuple):
    """A column that is copied. is_list: it has a number for each token. dtype: of numpy."""

    name: str
    is_list: bool
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Source:
    """One input file, in the order of the input.

    number: over the build. name: in messages and the report, without secrets. path: of the file.
    format: a key of FORMATS. compression: gz, zst or nothing. bytes, digest: size and xxh3-128 of
    the content. state: modification time when it was digested. rows: how its rows are read. entry:
    number of its entry of `sources`; limit: rows of all files of that entry.
    """

    number: int
    name: str
    path: str
    format: str
    compression: str = ""
    bytes: int
    digest: str
    state: int = 0
    rows: Rows
    carried: tuple[Carried, ...] = ()
    entry: int = 0
    limit: int | None = None


class Piece(NamedTuple):
    """Part of a source: bytes of JSON lines, row groups, record batches, documents of a token file.

    end: the first after it; -1 is the end of the file.
    """

    source: int
    begin: int
    end: int


Split = tuple[Piece, ...]
"""About 16 MB of files: many small ones, or a part of a large one."""


@dataclass(frozen=True)
class Wanted:
    """What a format must read. columns: by name, the types that JSON is parsed to.

    sample_by: of .txt files. limit: most bytes of a row.
    """

    columns: Mapping[str, tuple[pa.DataType, ...]]
    sample_by: str = "document"
    limit: int = 256_000_000


class Raw(NamedTuple):
    """Rows as a format reads them. problems: of rows of the table, which are null there."""

    table: pa.Table
    problems: Mapping[int, Problem] = {}


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Documents of consecutive rows of one source.

    rows: number of rows read. skipped: bad rows by reason. documents: a table with `row` (int32,
    from the first row of the batch), `part` (int32, -1 whole), `text` (large_string, null for a row
    without text) or `ids` (list<int32>), and where rows have them `labels` (list<int32>) or `mask`
    (list<int8>), `group` (int64), carried columns; a row has at least one document. cut: documents
    and characters that truncate_at removed. unread: columns that are not read.
    """

    source: int
    rows: int
    documents: pa.Table
    skipped: Counter[str] = field(default_factory=Counter)
    cut: tuple[int, int] = (0, 0)
    unread: tuple[str, ...] = ()
