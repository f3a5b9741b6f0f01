"""manifest.json: the description of an output. It is written last, so its presence means complete.

`data` has everything that decides the bytes, and the digests of those bytes; equal for equal builds
on any machine. `run` has facts of this build (versions, seconds, paths). `sha256` is the digest of
the other two. Every tool reads the packs of an output by `packs`, whatever it holds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from .columns import Column, check_columns
from .files import (
    MANIFEST,
    Files,
    FormatError,
    check_path,
    digest_of,
    file_digest,
    files_at,
    parse_signed,
    shard_name,
    signed_json,
)
from .gather import Layout

if TYPE_CHECKING:
    from .token_store import TokenStore

FORMAT_VERSION = 3  # also a key of data

_DATA: dict[str, Any] = {
    "identity": str,
    "inputs": dict,  # options, sources, tokenizer: identity is their digest
    "columns": list,  # name, kind, dtype, makes
    "max_length": int,
    "vocab_size": int,
    "bos_id": int,
    "pad_id": int,
    "splits": dict,  # by name: packs, segments, tokens
    "files": list,  # path, bytes, sha256; of shards also split, packs, segments, tokens, batches
    "sources": list,  # name, bytes, digest, rows, first_row, drawn, rows_of_pass (of its stream)
    "draw": dict,  # seed, or null if the order is that of the input
    "ledger": dict,
    "plan": (dict, type(None)),  # files, see PlanFile; null if shards hold the tokens
}
COUNTS = ("packs", "segments", "tokens")
"""Numbers of each split, and of each shard."""
TERMS = ("tokens_in", "overlap", "continuation_bos", "filler", "tokens_packed", "truncated")
"""Terms of the ledger: tokens in and added are those packed, truncated and `dropped` by reason."""


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """A file of the output; the fields from split on are of shards only.

    batches: offset in the file, and number of the first pack, of each record batch.
    """

    path: str
    bytes: int
    sha256: str
    split: str | None = None
    packs: int = 0
    segments: int = 0
    tokens: int = 0
    batches: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """A token file of a plan. path: KEY/NAME in its store. documents, rows: in it.

    digest: xxh3-128.
    """

    path: str
    bytes: int
    digest: str
    documents: int
    rows: int

    @property
    def key(self) -> str:
        """Name of its folder."""
        return check_path(self.path).parts[-2]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A manifest that passed all checks.

    data, run: plain JSON values. identity: digest of all that decides the bytes; outputs with equal
    identities have equal bytes. layout: what all shards share. columns: those of the layout by
    their standard names. splits: packs, segments and tokens of each. files: all but the manifest.
    token_files: of a plan, in order; none if the shards hold the tokens.
    """

    data: Mapping[str, Any]
    run: Mapping[str, Any]
    identity: str
    layout: Layout
    columns: Mapping[str, Column]
    splits: Mapping[str, dict[str, int]]
    files: tuple[FileEntry, ...]
    token_files: tuple[PlanFile, ...]

    def shards(self, split: str) -> tuple[FileEntry, ...]:
        """The shards of one split, in row order."""
        return tuple(file for file in self.files if file.split == split)


def read_manifest(files: Files) -> Manifest:
    """The manifest of an output.

    Raises FormatError if it is missing, changed by one bit, of another format or inconsistent.
    """
    return parse_manifest(files.read(MANIFEST), f"{files}/{MANIFEST}")


def manifest_json(data: Mapping[str, Any], run: Mapping[str, Any]) -> bytes:
    """Content of manifest.json, after the checks of `read_manifest`."""
    content = signed_json({"data": data, "run": run})
    parse_manifest(content, MANIFEST)
    return content


def parse_manifest(content: bytes, where: str) -> Manifest:
    """The manifest in these bytes; see `read_manifest`. where: its name in messages."""
    value = parse_signed(content, where)
    data, run = value.get("data"), value.get("run")
    if not isinstance(data, dict) or not isinstance(run, dict):
        raise FormatError(f"{where} is not a manifest; expected the keys data and run")
    if (version := data.get("format_version")) != FORMAT_VERSION:
        raise FormatError(
            f"{where} has format version {version!r}, and this packprep reads {FORMAT_VERSION}; "
            "build again, or install the packprep that wrote it"
        )
    for key, kind in _DATA.items():
        if not isinstance(data.get(key, ...), kind):
            raise FormatError(f"{where} has no sound {key}; restore the file")
    try:
        manifest = _parsed(data, run)
        check_columns(manifest.layout.columns, where)
        _check_files(manifest, where)
        _check_ledger(manifest, where)
        if data["plan"] is not None:
            _check_plan(manifest, where)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{where} is not a manifest of packprep: {error}") from None
    if (identity := digest_of(data["inputs"])) != manifest.identity:
        raise FormatError(f"{where} has another identity than its inputs, {identity}; restore it")
    return manifest


def _parsed(data: Mapping[str, Any], run: Mapping[str, Any]) -> Manifest:
    """The values of a manifest as they are used."""
    columns = tuple(Column(**value) for value in data["columns"])
    numbers = {name: data[name] for name in ("max_length", "vocab_size", "bos_id", "pad_id")}
    token_files = () if data["plan"] is None else data["plan"]["files"]
    return Manifest(
        data=data,
        run=run,
        identity=data["identity"],
        layout=Layout(columns=columns, **numbers),
        columns={column.standard: column for column in columns},
        splits=data["splits"],
        files=tuple(FileEntry(**value) for value in (*data["files"], *run["files"])),
        token_files=tuple(PlanFile(**value) for value in token_files),
    )


def _check_files(manifest: Manifest, where: str) -> None:
    """Paths must be unique and inside the output; shards numbered, and sum up to their split."""
    paths = [MANIFEST, *(str(check_path(file.path)) for file in manifest.files)]
    if len({*paths}) < len(paths):
        raise FormatError(f"{where} lists a file twice, or itself")
    splits = manifest.splits
    if unknown := {file.split for file in manifest.files} - {None, *splits}:
        raise FormatError(f"{where} has shards of the unknown split {unknown.pop()!r}")
    for split, counts in splits.items():
        shards = manifest.shards(split)
        folder = f"{split}/" if len(splits) > 1 else ""
        names = [folder + shard_name(number, len(shards)) for number in range(len(shards))]
        if [file.path for file in shards] != names:
            raise FormatError(f"{where} has shards of {split} that are not numbered in order")
        sums = {key: sum(getattr(file, key) for file in shards) for key in COUNTS}
        if sums != counts:
            raise FormatError(f"{where} has {counts} in {split}; its shards have {sums}")


def _check_ledger(manifest: Manifest, where: str) -> None:
    """Tokens in and added must be those packed and lost, and packed those of the splits."""
    ledger = manifest.data["ledger"]
    tokens_in, overlap, bos, filler, packed, truncated = (ledger[key] for key in TERMS)
    lost = truncated + sum(ledger["dropped"].values())
    if tokens_in + overlap + bos + filler != packed + lost:
        raise FormatError(f"{where} has a ledger that does not balance: {ledger}")
    if packed != sum(counts["tokens"] for counts in manifest.splits.values()):
        raise FormatError(f"{where} has {packed:,} packed tokens in its ledger, others in splits")


def _check_plan(manifest: Manifest, where: str) -> None:
    """A plan must have token files, and a folder of each."""
    keys, stores = {file.key for file in manifest.token_files}, {*manifest.run["stores"]}
    if not keys or keys != stores:
        raise FormatError(f"{where} has token files of {sorted(keys)}, stores of {sorted(stores)}")


class Output(NamedTuple):
    """A finished output. stores: folders in which the token stores of a plan are looked for."""

    files: Files
    manifest: Manifest
    stores: tuple[str | Path, ...] = ()


class PackBatch(NamedTuple):
    """Consecutive packs of a shard. first: number of the first one in its shard."""

    shard: FileEntry
    first: int
    batch: pa.RecordBatch


Stores = str | Path | Sequence[str | Path]
"""Folders of token stores that have moved."""


def open_output(place: str | Path, store: Stores = (), **cache: Any) -> Output:
    """A finished output, in a folder or at a URL. Raises FormatError if it is none.

    store: where the tokens of a plan are now, if they are not where they were. cache: cache_dir and
    cache_size of `remote.RemoteFiles`, for a URL.
    """
    files = files_at(place, **cache)
    stores = (store,) if isinstance(store, str | Path) else tuple(store)
    return Output(files, read_manifest(files), stores)


def token_store(output: Output, memory: int | None = None) -> "TokenStore | None":
    """The token files of a plan; None if shards hold the tokens. memory: see `TokenStore`."""
    if not output.manifest.token_files:
        return None
    from .token_store import TokenStore

    return TokenStore(output, memory)


def packs(
    output: Output, split: str = "train", *, check: bool = True, begin: int = 0
) -> Iterator[PackBatch]:
    """The packs of a split in record batches, of shards or of a plan.

    check: compare the digest of each shard first; those of token files are always compared. begin:
    a pack of the split; shards that end before it are not read. Raises FormatError for a file that
    is missing, damaged, or has other packs.
    """
    manifest, store = output.manifest, token_store(output)
    for shard in manifest.shards(split):
        begin -= shard.packs
        if begin >= 0:
            continue
        check_file(output, shard, digest=check)
        path = output.files.local(shard.path, shard.sha256)
        first = 0
        try:
            with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file.read_buffer()) as stream:
                for batch in stream:
                    if store is not None:
                        where = f"{path} packs {first} to {first + len(batch) - 1}"
                        batch = store.packs(batch, manifest.layout, where).batch()
                    yield PackBatch(shard, first, batch)
                    first += len(batch)
        except (pa.ArrowException, OSError) as error:
            raise FormatError(f"{path} is damaged: {error}; restore it or build again") from None
        if first != shard.packs:
            raise FormatError(f"{path} has {first:,} packs; the manifest lists {shard.packs:,}")


def check_file(output: Output, entry: FileEntry, *, digest: bool = True) -> None:
    """Raise FormatError unless a file is there with its size and, if asked, its digest."""
    where, size = f"{output.files}/{entry.path}", output.files.size(entry.path)
    if size is None:
        raise FormatError(f"{where} is missing; restore it or build again")
    if size != entry.bytes:
        raise FormatError(f"{where} has {size:,} bytes; the manifest lists {entry.bytes:,}")
    if digest and file_digest(output.files.local(entry.path, entry.sha256)) != entry.sha256:
        raise FormatError(f"{where} has another sha256 than the manifest; restore it")
