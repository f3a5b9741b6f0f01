"""One source of a build, found and digested.

A file, a saved dataset or a hub dataset, and how its rows are read. The digest is of its files as
they were before they were read for it: rows that are read later count only while the files are the
same.
"""

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NotRequired, TypedDict, cast

from packprep.config.grammar.label_columns import LossKind, recorded_labels
from packprep.config.grammar.source_names import HubPart
from packprep.sources.formats.format import Format
from packprep.sources.formats.raw_files import decompressed, opened, suffixes
from packprep.sources.formats.registry import FORMATS
from packprep.sources.formats.zstd_reader import WIDEST
from packprep.sources.token_files.names import is_file
from packprep.support.errors import ConfigError, InputError
from packprep.support.redact import redacted

STDIN = "standard input"  # its name as a source


class FileState(NamedTuple):
    """A local file as it was at one time.

    inode: None if another process noted it, perhaps on a machine that has other numbers.
    """

    path: str
    bytes: int
    mtime_ns: int
    inode: int | None

    def change(self) -> str | None:
        """Difference between the file and this state, in words; None if there is none."""
        try:
            now = file_state(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return "is gone"
        if now.bytes != self.bytes:
            return f"had {self.bytes:,} bytes, now {now.bytes:,}"
        if self.inode not in (None, now.inode):
            return "was replaced by another file"
        return None if now.mtime_ns == self.mtime_ns else "was written to"


def file_state(path: str | Path) -> FileState:
    """The state of a file now."""
    facts = Path(path).stat()
    return FileState(str(path), facts.st_size, facts.st_mtime_ns, facts.st_ino)


class SourceFacts(TypedDict):
    """Facts that decide the documents of a source.

    reading: see `Source`; missing if empty. name: in the entry of a token store only. skip_rows: in
    the inputs of an output only, rows that it leaves out; missing if empty.
    """

    sha256: str
    bytes: int
    kind: str
    reading: NotRequired[Mapping[str, object]]
    name: NotRequired[str]
    skip_rows: NotRequired[list[int]]


def documents_key(source: SourceFacts) -> tuple[str, str, str]:
    """Key that two sources share if they have the same documents."""
    return source["sha256"], source["kind"], json.dumps(source.get("reading", {}), sort_keys=True)


def split_new(
    sources: "Sequence[Source]", stored: Sequence[SourceFacts], place: object, advice: str
) -> "tuple[list[Source], list[Source]]":
    """Split sources into those that a place has and new ones.

    stored: sources of the place, with their names if they are known. Raises ConfigError, which
    ends with the advice, for a file that has changed since the place has it.
    """
    keys = {documents_key(facts) for facts in stored}
    by_path = {_absolute(facts["name"]): facts for facts in stored if "name" in facts}
    known, new = [], []
    for source in sources:
        if documents_key(source.as_dict()) in keys:
            known.append(source)
            continue
        new.append(source)
        before = by_path.get(_absolute(source.name), source.as_dict())["sha256"]
        if before != source.sha256 and source.name != STDIN:
            raise ConfigError(
                f"{source.name} is in {place} already, with other content (sha256 was "
                f"{before[:8]}, now {source.sha256[:8]}); put its new rows into a file of another "
                f"name, or {advice}"
            )
    return known, new


def _absolute(name: str) -> Path:
    return Path(name).absolute()


@dataclass(frozen=True)
class Source:
    """One input file, saved dataset or hub dataset.

    entry: number of its entry of `sources`.
    reading: the options of that entry for reading rows.
    part: of a dataset on the hub.
    labels: kind of its columns that are labels or a mask, where rows decided it.
    files: states of its local files, noted before their digest was computed.
    skip_rows: rows that are left out of packs, sorted. They decide no token.
    max_window: bytes of a window of zstd at most, see `ZstdReader`.
    """

    name: str  # in messages, report and manifest: redacted
    kind: str  # the name of its format
    path: Path | str | None  # text: a URL
    bytes: int
    sha256: str
    entry: int = 0
    reading: Mapping[str, object] = field(default_factory=dict)
    version: str = ""  # of an object in a store
    files: tuple[FileState, ...] = ()
    part: HubPart = HubPart()
    labels: LossKind | None = None
    skip_rows: tuple[int, ...] = ()
    max_window: int = WIDEST

    def as_dict(self) -> SourceFacts:
        """Facts that decide its tokens."""
        facts: SourceFacts = {"sha256": self.sha256, "bytes": self.bytes, "kind": self.kind}
        if self.reading:
            facts["reading"] = recorded_labels(self.reading)
        return facts

    def as_input(self) -> SourceFacts:
        """Facts that decide its documents in packs."""
        facts = self.as_dict()
        if self.skip_rows:
            facts["skip_rows"] = [*self.skip_rows]
        return facts

    @property
    def limit(self) -> int | None:
        """The number of rows to read of all files of its entry."""
        return cast("int | None", self.reading.get("limit"))

    @property
    def is_remote(self) -> bool:
        """True if it is in a store: its path is a URL."""
        return isinstance(self.path, str)

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
        return decompressed(self.path, self.version, self.max_window)

    def raw(self) -> io.BufferedReader:
        """Its bytes, still compressed."""
        return opened(str(self.path), self.version)

    def changed(self) -> InputError | None:
        """The error about local files that are not those of its digest; None if they are."""
        for state in self.files:
            if (change := state.change()) is not None:
                return self._changed(state.path, change)
        if self.files and self.format.beside is not None:
            for name in self.format.beside(str(self.path), is_file):
                if name not in {state.path for state in self.files}:
                    return self._changed(name, "is new")
        return None

    def _changed(self, path: str, change: str) -> InputError:
        file = "it" if path == str(self.path) else redacted(path)
        return InputError(
            f"{self.name} has changed since the build began ({file} {change}); put new rows into a "
            "file of another name, or build again from the start"
        )


def check_unchanged(sources: Iterable[Source]) -> None:
    """Raise InputError for the first source whose local files are not those of its digest."""
    for source in sources:
        if (changed := source.changed()) is not None:
            raise changed
