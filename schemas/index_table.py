"""The table of an index output in its manifest: its columns, token files and windows.

An index output (format version 2) holds the plan of the packs and not their tokens. Its shards have
a row per pack and a value per segment, and with trees per row; README.md describes the columns. The
rows of a shard count
documents over the token files of its window, one file after another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from .columns import Column, DType
from .errors import FormatError

TOKENS = "tokens"
"""Folder of an output for its token files, if they are not in a token store."""

_DTYPES: Mapping[str, DType] = {
    "store_rows": "int32",
    "document_starts": "int32",
    "lengths": "int32",
    "bos": "int8",
    "segment_lengths": "int32",
    "repeated": "int32",
    "front": "int32",
    "hole": "int32",
    "segment_parents": "int32",
    "row_store_rows": "int32",
    "row_starts": "int32",
    "row_segments": "int32",
    "row_trained": "int32",
    "row_label_starts": "int32",
}
_ALWAYS = ("store_rows", "document_starts", "lengths")
TREE_COLUMNS = tuple(name for name in _DTYPES if name.startswith(("row_", "segment_parents")))
"""Columns of an index with trees, whose rows, not segments, have documents."""


def index_columns(extra: Sequence[str] = ()) -> tuple[Column, ...]:
    """Columns of the shards of an index output. extra: those that the build needs, by name."""
    always = ("lengths", *TREE_COLUMNS) if "segment_parents" in extra else _ALWAYS
    return tuple(
        Column(name=name, kind="row" if name.startswith("row_") else "segment", dtype=dtype)
        for name, dtype in _DTYPES.items()
        if name in (*always, *extra)
    )


@dataclass(frozen=True, kw_only=True)
class TokenFileEntry:
    """A token file of an index output.

    path: in the store, `KEY/FILE`. rows: its documents. first_document: input row of its first.
    """

    path: str
    bytes: int
    xxh3: str
    rows: int
    first_document: int

    @property
    def key(self) -> str:
        """Folder of the store; all its files come from the same text, tokenizer and options."""
        return self.path.partition("/")[0]


@dataclass(frozen=True, kw_only=True)
class IndexTable:
    """`data.index` of a manifest.

    windows: numbers of the token files of each window. shards: window of each shard, in the order
    of the manifest's files. bos_id, pad_id: ids that a build adds to packs.
    """

    columns: tuple[Column, ...]
    files: tuple[TokenFileEntry, ...]
    windows: tuple[tuple[int, ...], ...]
    shards: tuple[int, ...]
    bos_id: int
    pad_id: int

    @cached_property
    def used(self) -> tuple[TokenFileEntry, ...]:
        """Token files that a shard points into."""
        numbers = sorted({number for window in set(self.shards) for number in self.windows[window]})
        return tuple(self.files[number] for number in numbers)

    def first_rows(self, window: int) -> list[int]:
        """Row of the first document of each token file of a window, and the rows of all."""
        return list(
            accumulate((self.files[number].rows for number in self.windows[window]), initial=0)
        )

    def shifted(self, documents: int) -> "IndexTable":
        """The table after `documents` was added to the number of every document."""
        files = tuple(
            replace(file, first_document=file.first_document + documents) for file in self.files
        )
        return replace(self, files=files)

    def to_json(self) -> dict[str, object]:
        """The JSON value of this table; `parse_index` reads it."""
        return {
            "columns": [column.name for column in self.columns],
            "files": [dict(vars(file)) for file in self.files],
            "windows": [list(window) for window in self.windows],
            "shards": list(self.shards),
            "bos_id": self.bos_id,
            "pad_id": self.pad_id,
        }


def joined_tables(tables: Sequence[IndexTable], shards: Sequence[int]) -> IndexTable:
    """One table of several. shards: window of each shard, counted over the windows of all."""
    files: list[TokenFileEntry] = []
    windows: list[tuple[int, ...]] = []
    for table in tables:
        windows += [tuple(len(files) + number for number in window) for window in table.windows]
        files += table.files
    return replace(tables[0], files=tuple(files), windows=tuple(windows), shards=tuple(shards))


def parse_index(value: Any, shards: int, where: str) -> IndexTable:
    """The table of an index output with this many shards; value: of the form of its JSON Schema.

    Raises FormatError if it contradicts itself.
    """
    table = IndexTable(
        columns=index_columns(value["columns"]),
        files=tuple(TokenFileEntry(**file) for file in value["files"]),
        windows=tuple(tuple(window) for window in value["windows"]),
        shards=tuple(value["shards"]),
        bos_id=value["bos_id"],
        pad_id=value["pad_id"],
    )
    fault = None
    if [column.name for column in table.columns] != value["columns"]:
        fault = "it has unknown columns"
    elif any(number >= len(table.files) for window in table.windows for number in window):
        fault = "a window has a file that is not listed"
    elif any(window >= len(table.windows) for window in table.shards):
        fault = "a shard has a window that is not listed"
    elif len(table.shards) != shards:
        fault = f"it has {len(table.shards)} shards of {shards}"
    if fault is not None:
        raise FormatError(f"{where} has a wrong table of token files: {fault}; build again")
    return table
