"""Token files and their receipts in a folder, which is an entry of a store or of one build.

STORE/KEY/ has facts.json, token files, and a receipt beside each, written after it. A file is used
only with its receipt and digest. KEY is the digest of all that decides the tokens.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from ..schemas.files import FormatError, canonical_json, digest_of, file_digest
from ..support.errors import ConfigError, InputError
from ..support.records import read_record, sync_folder, write_file, write_record, writing

FACTS = "facts.json"
VERSION = 1  # of token files; raised when equal inputs would give other tokens
_RECEIPT = re.compile(r"tokens-[0-9]{6}-[0-9]{3}\.json")


@dataclass(frozen=True, kw_only=True)
class TokenFile:
    """Receipt of a token file, written after it.

    split, number: of the split, and of the file in it (0 but for pieces that are streamed). last:
    True for the last file of its split. rows: read from each source, by its number, in the order of
    the sources. documents, tokens: in the file, BOS and EOS included. text_bytes: of the text.
    skipped: by source, bad rows by reason. cut: by source, documents and characters that
    truncate_at removed. left_out, unread: by source, what the build did not read. turns: see
    `Batch`. bytes, digest: of the file, xxh3-128.
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
    left_out: Mapping[str, int] = field(default_factory=dict)
    unread: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    turns: Mapping[str, int] = field(default_factory=dict)
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


def key_of(facts: Mapping[str, Any]) -> str:
    """Name of the folder of an entry."""
    return digest_of({"version": VERSION, **facts})[:32]


def write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write the facts of an entry, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / FACTS).exists():
        write_file(folder / FACTS, canonical_json(facts))
    for parent in (folder.parent, folder.parent.parent):
        sync_folder(parent)  # so that a power cut leaves the names of the entry and of the store


def write_tokens(
    folder: Path, batch: pa.RecordBatch, receipt: Mapping[str, Any], *, synced: bool
) -> TokenFile:
    """Write a token file, which is one record batch, and its receipt.

    receipt: fields of `TokenFile` that the batch does not say. synced: both are on disk; False for
    files of one build, whose digests are checked where it resumes.
    """
    tokens: Any = batch.column("tokens")
    count = len(tokens.flatten())
    made = TokenFile(documents=len(batch), tokens=count, bytes=0, digest="", **receipt)
    hasher = xxhash.xxh3_128()
    with writing(folder / made.name, synced=synced) as raw:
        file = WatchedFile(raw, hasher.update)
        with pa.ipc.new_stream(file, batch.schema) as writer:  # type: ignore[arg-type]
            writer.write_batch(batch)
    made = replace(made, bytes=file.bytes, digest=hasher.hexdigest())
    write_record((folder / made.name).with_suffix(".json"), made, synced=synced)
    return made


class WatchedFile:
    """A file to write, as Arrow takes it. seen: called with each block, which never changes."""

    def __init__(self, file: Any, seen: Callable[[memoryview], Any]) -> None:
        self._file, self._seen, self.bytes, self.closed = file, seen, 0, False

    def write(self, data: Any) -> int:
        """Write a block."""
        block = memoryview(data)
        self._seen(block)
        self._file.write(block)
        self.bytes += block.nbytes
        return block.nbytes

    def tell(self) -> int:
        """Bytes written so far."""
        return self.bytes

    def writable(self) -> bool:
        """Return True."""
        return True

    def flush(self) -> None:
        """Do nothing: only complete files are read."""

    def close(self) -> None:
        """Do nothing: the owner of the file closes it."""
        self.closed = True


def receipts(folder: Path, *, digests: bool = True) -> Iterator[TokenFile]:
    """Receipts of the files that are there and intact, in order.

    digests: read every file to see whether a byte has changed, not its size alone.
    """
    for path in sorted(folder.glob("tokens-*.json")):
        if _RECEIPT.fullmatch(path.name) and (receipt := read_receipt(path, digests)) is not None:
            yield receipt


def read_receipt(path: Path, digests: bool = True) -> TokenFile | None:
    """The receipt of a token file; None without one, or if the file does not match it."""
    receipt, file = read_record(path, TokenFile), path.with_suffix(".arrow")
    if receipt is None or receipt.name != file.name or not file.is_file():
        return None
    same = file.stat().st_size == receipt.bytes and (not digests or is_intact(file, receipt))
    return receipt if same else None


def is_intact(file: Path, receipt: TokenFile) -> bool:
    """True if no byte has changed."""
    return file_digest(file, xxhash.xxh3_128) == receipt.digest


def read_entry(folder: Path, splits: int | None = None, *, digests: bool = False) -> Entry:
    """An entry. splits: how many it must have; by default what its facts say.

    Raises FormatError if its facts are missing or damaged.
    """
    try:
        facts = json.loads((folder / FACTS).read_bytes())
        needed = int(facts["splits"]) if splits is None else splits
    except (OSError, ValueError, KeyError, TypeError):
        raise FormatError(
            f"{folder} is no entry of a token store; expected what packprep tokenize writes"
        ) from None
    files = tuple(receipts(folder, digests=digests))
    rows = sum(sum(file.rows.values()) for file in files)
    ended = facts.get("limit") is not None and rows == facts["limit"]
    complete = ended or _complete(files, needed)
    return Entry(path=folder, key=folder.name, facts=facts, files=files, complete=complete)


def _complete(files: Iterable[TokenFile], splits: int) -> bool:
    """True if every split has all of its files."""
    numbers: dict[int, list[int]] = {}
    ended = set()
    for file in files:
        numbers.setdefault(file.split, []).append(file.number)
        if file.last:
            ended.add(file.split)
    return ended == set(range(splits)) and all(
        sorted(of) == list(range(len(of))) for of in numbers.values()
    )


def entries_of(store: Path) -> list[Path]:
    """Folders of the entries of a store, or of one entry. Raises InputError if there are none."""
    if (store / FACTS).exists():
        return [store]
    folders = sorted(path.parent for path in store.glob(f"*/{FACTS}"))
    if not folders:
        raise InputError(f"{store} has no tokens; expected a token store of packprep tokenize")
    return folders


def is_store(place: Any) -> bool:
    """True for a token store, or one entry of it."""
    folder = Path(place) if isinstance(place, str) else None
    return folder is not None and any([*folder.glob(FACTS), *folder.glob(f"*/{FACTS}")])


def complete_entry(store: Path, *, digests: bool = True) -> Entry:
    """The tokens of a store, or of one entry, whose files are all there and intact.

    digests: read all files to see that.
    Raises ConfigError for a store with several sets of tokens, or one that is not finished,
    InputError for a damaged file, and for a store without tokens.
    """
    folders = entries_of(store)
    if len(folders) > 1:
        listed = ", ".join(str(folder) for folder in folders[:5])
        raise ConfigError(f"{store} has tokens of several inputs; name one of {listed}")
    entry = read_entry(folders[0])
    if not entry.complete:
        raise ConfigError(f"{store} has open splits; run packprep tokenize again to finish it")
    for file in entry.files:
        if digests and not is_intact(entry.path / file.name, file):
            raise InputError(
                f"{entry.path / file.name} has changed since it was written; delete {entry.path}, "
                "and tokenize its sources again"
            )
    return entry
