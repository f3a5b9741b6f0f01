"""Values of the room: receipts of token files, and entries of a store."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TokenFile:
    """Receipt of a token file, written after it.

    split, number: of the split, and of the file in it (0 but for pieces that are streamed). last:
    True for the last file of its split. rows: read from each source, by its number, in the order of
    the sources. documents, tokens: in the file, BOS and EOS included. text_bytes: of the text.
    skipped: by source, bad rows by reason. cut: by source, documents and characters that
    truncate_at removed. left_out, unread: by source, what the build did not read. bytes, digest: of
    the file, xxh3-128.
    """

    split: int
    number: int
    last: bool
    rows: Mapping[int, int]
    documents: int
    tokens: int
    text_bytes: int
    skipped: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    cut: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    left_out: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    unread: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    bytes: int
    digest: str

    @property
    def name(self) -> str:
        """Name of the file. Example: tokens-000012-000.arrow."""
        return f"tokens-{self.split:06d}-{self.number:03d}.arrow"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Token files of one set of inputs: STORE/KEY/, or the tokens of a build.

    facts: what KEY is the digest of, the number of splits, and names of the sources. files: in
    order. complete: every split has all of its files.
    """

    path: Path
    key: str
    facts: Mapping[str, Any]
    files: tuple[TokenFile, ...]
    complete: bool
