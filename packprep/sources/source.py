"""One source of a build, found and digested.

A file, a saved dataset or a hub dataset, and how its rows are read.
"""

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packprep.sources.formats.format import Format
from packprep.sources.formats.raw_files import decompressed, opened, suffixes
from packprep.sources.formats.registry import FORMATS

STDIN = "standard input"  # its name as a source


@dataclass(frozen=True)
class Source:
    """One input file, saved dataset or hub dataset.

    entry: number of its entry of `sources`. reading: the options of that entry for reading rows.
    """

    name: str  # in messages, report and manifest: redacted
    kind: str  # the name of its format
    path: Path | str | None  # text: a URL
    bytes: int
    sha256: str
    entry: int = 0
    reading: dict[str, Any] = field(default_factory=dict)
    version: str = ""  # of an object in a store

    def as_dict(self) -> dict[str, Any]:
        """Facts that decide the documents of the source."""
        return {"sha256": self.sha256, "bytes": self.bytes, "kind": self.kind} | self.described()

    def described(self) -> dict[str, Any]:
        """`reading` for a digest; empty without options."""
        return {"reading": self.reading} if self.reading else {}

    @property
    def format(self) -> Format:
        return FORMATS[self.kind]

    @property
    def is_plain(self) -> bool:
        """True if it has about as many bytes of text as bytes."""
        return not self.compression and self.format.text_per_byte is None

    @property
    def suffix(self) -> str:
        """Suffix without compression: "tsv" of data.tsv.gz."""
        return suffixes(str(self.path))[0]

    @property
    def compression(self) -> str:
        """Compression of the file: "gz", "zst" or nothing."""
        return suffixes(str(self.path))[1]

    def line_of_row(self, row: int) -> int | None:
        """Line of a row in its file, from 1; None if rows are not lines."""
        find = self.format.line_of_row
        return find(self, row) if find is not None else None

    def plain(self) -> io.BufferedReader:
        """Its plain bytes."""
        assert self.path is not None
        return decompressed(self.path, self.version)

    def raw(self) -> io.BufferedReader:
        """Its bytes, still compressed."""
        return opened(str(self.path), self.version)
