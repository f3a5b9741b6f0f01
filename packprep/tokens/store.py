"""Token files and their receipts in a folder or at a URL: an entry of a store, or of one build.

STORE/KEY/ has facts.json, token files, and a receipt beside each, written after it. A file is used
only with its receipt and digest. KEY is the digest of all that decides the tokens.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from ..schemas.files import Files, FormatError, canonical_json, digest_of, files_at, is_url
from ..support.ahead import ahead
from ..support.errors import ConfigError, InputError
from ..support.records import read_record, sync_folder, write_file, write_record, writing

FACTS = "facts.json"
VERSION = 1  # of token files; raised when equal inputs would give other tokens
_RECEIPT = re.compile(r"tokens-[0-9]{6}-[0-9]{3}\.json")


@dataclass(frozen=True, kw_only=True)
class TokenFile:
    """Receipt of a token file, written after it.

    split, number: of the split, and of the file in it (each 16 MB of text is one). last: of its
    split. rows: read from each source, by its number, in the order of the sources. documents,
    tokens: in the file, BOS and EOS included. text_bytes: of the text. skipped: by source, bad rows
    by reason. cut: by source, documents and characters that truncate_at removed. left_out, unread:
    by source, what the build did not read. turns: see `Batch`. bytes, digest: its xxh3-128.
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
    order. open: splits that have not all of their files.
    """

    place: Files
    facts: Mapping[str, Any]
    files: tuple[TokenFile, ...]
    open: tuple[int, ...]

    @property
    def complete(self) -> bool:
        """True if no split is open."""
        return not self.open

    @property
    def key(self) -> str:
        """Name of its folder."""
        return str(self.place).rpartition("/")[2]


def key_of(facts: Mapping[str, Any]) -> str:
    """Name of the folder of an entry."""
    return digest_of({"version": VERSION, **facts})[:32]


def write_facts(place: Files, facts: Mapping[str, Any]) -> None:
    """Write the facts of an entry, unless they are there."""
    place.drafts.mkdir(parents=True, exist_ok=True)
    if place.size(FACTS) is None:
        write_file(place.drafts / FACTS, canonical_json(facts))
        place.put(FACTS)
    for parent in (place.drafts.parent, place.drafts.parent.parent):
        sync_folder(parent)  # so that a power cut leaves the names of the entry and of the store


def write_tokens(
    place: Files, batch: pa.RecordBatch, receipt: Mapping[str, Any], *, synced: bool
) -> TokenFile:
    """Write a token file, which is one record batch, and its receipt.

    receipt: fields of `TokenFile` that the batch does not say. synced: both are on disk; False for
    files of one build, whose digests are checked where it resumes.
    """
    tokens: Any = batch.column("tokens")
    count = len(tokens.flatten())
    made = TokenFile(documents=len(batch), tokens=count, bytes=0, digest="", **receipt)
    hasher = xxhash.xxh3_128()
    with writing(place.drafts / made.name, synced=synced) as raw:
        file = WatchedFile(raw, hasher.update)
        with pa.ipc.new_stream(file, batch.schema) as writer:  # type: ignore[arg-type]
            writer.write_batch(batch)
    made = replace(made, bytes=file.bytes, digest=hasher.hexdigest())
    receipt_name = made.name.replace(".arrow", ".json")
    write_record(place.drafts / receipt_name, made, synced=synced)
    place.put(made.name, receipt_name)
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


def receipts(place: Files, *, digests: bool = True) -> Iterator[TokenFile]:
    """Receipts of the files that are there and intact, in order.

    digests: read every file to see whether a byte has changed, not its size alone. Those of a URL
    are compared when files are fetched.
    """
    names = [name for name in place.list() if _RECEIPT.fullmatch(name)]
    for receipt in ahead(lambda name: read_receipt(place, name, digests), names, 8):
        if receipt is not None:
            yield receipt


def read_receipt(place: Files, name: str, digests: bool = True) -> TokenFile | None:
    """The receipt of this name; None without one, or if its token file does not match it."""
    receipt = read_record(place, name, TokenFile)
    if receipt is None or receipt.name != name.replace(".json", ".arrow"):
        return None
    same = place.has(receipt.name, receipt.bytes, receipt.digest if digests else "")
    return receipt if same else None


def read_entry(place: Files, *, digests: bool = False) -> Entry:
    """An entry. digests: see `receipts`. Raises FormatError for facts that are missing or damaged.

    No split is open once as many rows are there as the limit is.
    """
    try:
        facts = json.loads(place.read(FACTS))
        splits = range(int(facts["splits"]))
    except (ValueError, KeyError, TypeError):
        raise FormatError(
            f"{place} is no entry of a token store; expected what packprep tokenize writes"
        ) from None
    files = tuple(receipts(place, digests=digests))
    if sum(sum(file.rows.values()) for file in files) == facts.get("limit"):
        splits = range(0)
    counts = Counter(file.split for file in files)
    done = {file.split for file in files if file.last and counts[file.split] == file.number + 1}
    left = tuple(split for split in splits if split not in done)
    return Entry(place=place, facts=facts, files=files, open=left)


def entries_of(store: str) -> list[Files]:
    """The entries of a store, or the one that it is. Raises InputError if there are none."""
    files = files_at(store)
    if files.size(FACTS) is not None:
        return [files]
    names = [path.relative_to(store).as_posix() for path in Path(store).glob(f"*/{FACTS}")]
    names = sorted(name for name in (files.list() if is_url(store) else names))
    keys = [name.removesuffix(f"/{FACTS}") for name in names if name.endswith(f"/{FACTS}")]
    if not keys:
        raise InputError(f"{store} has no tokens; expected a token store of packprep tokenize")
    return [files_at(f"{files}/{key}") for key in keys if "/" not in key]


def is_store(place: Any) -> bool:
    """True for a token store, or one entry of it."""
    try:
        return isinstance(place, str) and bool(entries_of(place))
    except InputError:
        return False


def complete_entry(store: str, *, digests: bool = True) -> Entry:
    """The tokens of a store, or of one entry, whose files are all there and intact.

    digests: read all files to see that; those of a URL are compared when they are fetched.
    Raises ConfigError for a store with several sets of tokens, or one that is not finished,
    InputError for a damaged file, and for a store without tokens.
    """
    places = entries_of(store)
    if len(places) > 1:
        listed = ", ".join(str(place) for place in places[:5])
        raise ConfigError(f"{store} has tokens of several inputs; name one of {listed}")
    entry = read_entry(places[0])
    if not entry.complete:
        raise ConfigError(f"{store} has open splits; run packprep tokenize again to finish it")
    for file in entry.files:
        if digests and not entry.place.has(file.name, file.bytes, file.digest):
            raise InputError(
                f"{entry.place}/{file.name} has changed since it was written; delete "
                f"{entry.place}, and tokenize its sources again"
            )
    return entry
