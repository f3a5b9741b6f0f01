"""Packed shards as a sequence of packs, each a few numpy views of the mapped files.

Opening reads the manifest and one schema per shard, no tokens, and copies nothing. Reading a pack
costs a few microseconds and the page faults of its tokens. Views stay valid as long as they are
referenced. A `save_to_disk` directory without a manifest works too, if it holds packs.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packprep.schemas.canonical import digest_of, parse_json
from packprep.schemas.errors import FormatError
from packprep.schemas.files import MANIFEST, saved_files
from packprep.schemas.listed import SURPLUS, check_file, check_files, surplus_names
from packprep.schemas.manifest import FileEntry, Manifest, read_manifest
from packprep.schemas.storage.batches import check_same_size
from packprep.schemas.storage.places import Directory, files_at
from packprep.schemas.storage.reader import Reader
from packprep.schemas.storage.remote import RemoteOutput

from .mapped import (
    BatchCache,
    BatchRows,
    Field,
    StoredShard,
    batch_cache,
    plain_fields,
    stored_fields,
    will_need,
)
from .pack import Pack

if TYPE_CHECKING:
    from packprep.schemas.index.token_store import Stores
    from packprep.schemas.report import Report

    from .indexed import Gathered

_CACHE_SIZE = 1 << 32  # two windows of four shards of 500 MB


class StoredPlan(NamedTuple):
    """Shards of the packing of one epoch.

    first_shard, first_pack: numbers in stored order over all epochs.
    """

    first_shard: int
    first_pack: int
    packs_per_shard: tuple[int, ...]

    @property
    def packs(self) -> int:
        return sum(self.packs_per_shard)


@dataclass(frozen=True, kw_only=True)
class ShardPhase:
    """One phase of the packs of a split: its packs are consecutive, in shards of their own."""

    max_length: int
    packs: int
    shards: int


class PackedShards:
    """The packs of one split of a packprep output.

    A sequence in stored order: `len(shards)`, `shards[i]`, iteration. Of an output with a packing
    for each epoch (`--epochs`), it is the sequence of one: the first, or that of `epoch`.

    path: an output of `packprep build`, the directory of one split in it, or any `load_from_disk`
    directory with tokens and cu_seqlens, or with TRL's input_ids and seq_lengths; or the URL of an
    output such as s3://bucket/packed, whose shards are fetched into a local cache when they are
    needed (see `RemoteOutput` for cache_dir and cache_size, in bytes). store: folder of the token
    store of an index output, if it is not where the build left it; several for an index over
    several, of which each is used for what it has. split: name of the split;
    required only if the output has several ("train" and "validation"). epoch: read only the packing
    of this epoch; without it, PackedLoader reads that of each epoch, from the first again after the
    last. Opening checks the manifest,
    and the size and schema of every shard of the split; reading a pack checks its list lengths and
    cu_seqlens. verify=True checks everything at opening: digests, surplus files and every invariant
    of every pack.

    mmap: False reads shards with pread into memory, for network file systems and FUSE: a file that
    changes while it is read is a FormatError, where a mapped file may end the process (SIGBUS). At
    most cache_size bytes of record batches are kept, by default 4 GiB; PackedLoader reads the next
    ones ahead. Not for URLs and indexes.

    >>> for document_id, start, tokens in PackedShards("packed")[0].segments(): ...

    Raises FormatError for a damaged file, ValueError for an unknown split. Pickles as its path.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        split: str | None = None,
        epoch: int | None = None,
        verify: bool = False,
        cache_dir: str | Path | None = None,
        cache_size: int | None = None,
        store: "Stores" = None,
        mmap: bool = True,
        follow: None = None,
    ) -> None:
        if follow is not None:
            raise ValueError(
                f"follow={follow} was passed, and a build that still runs is not read any more; "
                f"wait until {path} is finished, and leave follow out"
            )
        self._remote: RemoteOutput | None = None
        self._epoch = epoch
        self._shards: list[StoredShard] = []
        options = {"cache_dir": cache_dir, "cache_size": cache_size, "store": store}
        options |= {"mmap": mmap}
        self._reopen = partial(PackedShards, epoch=epoch, **options)  # type: ignore[arg-type]
        self._ends: list[int] = []
        self._gathered: Gathered | None = None
        self._manifest: Manifest | None = None
        self._cache: BatchCache | None = None
        if not mmap:
            self._cache = batch_cache(_CACHE_SIZE if cache_size is None else cache_size)
        if files_at(path, mmap=mmap).directory is None:
            self._remote = RemoteOutput(str(path), cache_dir, cache_size, self._evicted)
            self.path: str | Path = self._remote.url
            self._manifest = manifest = self._remote.manifest
        else:
            self.path, split = directory, split = _find(Path(path), split)
            if not (directory / MANIFEST).exists() and (directory / "state.json").exists():
                self.split: str | None = None
                self._open_plain(directory, split, verify)
                return
            self._manifest = manifest = read_manifest(directory)
        self.split = _choose(manifest, split, self.path)
        if verify and (findings := self._changed(manifest)):
            more = f" (and {len(findings) - 1} more findings)" if len(findings) > 1 else ""
            raise FormatError(findings[0] + more)
        if manifest.is_index:
            self._open_store(manifest, store, verify)
        entries = manifest.shards(self.split)
        self._shards = [self._open(entry, manifest) for entry in entries]
        self._ends = list(accumulate(map(len, self._shards)))
        self.plans = self._find_plans([entry.epoch or 0 for entry in entries], manifest.epochs)
        if verify:
            self._verify(manifest)

    def _find_plans(self, epochs: list[int], total: int) -> list["StoredPlan"]:
        """The plans that are read in turn. epochs: of each shard, ascending; total: number."""
        if self._epoch is not None and not 0 <= self._epoch < total:
            raise ValueError(f"{self.path} has no epoch {self._epoch}; expected 0 to {total - 1}")
        ends = [bisect_right(epochs, epoch) for epoch in range(-1, total)]
        packs = [0, *self._ends]
        return [
            StoredPlan(first, packs[first], tuple(map(len, self._shards[first:last])))
            for epoch, (first, last) in enumerate(pairwise(ends))
            if self._epoch in (None, epoch)
        ]

    def plan(self, epoch: int) -> "StoredPlan":
        """Plan that is read in an epoch; after the last one, the first again."""
        return self.plans[epoch % len(self.plans)]

    def _open_store(self, manifest: Manifest, store: "Stores", verify: bool) -> None:
        """Check that the token files of an index are there; their contents if `verify`."""
        from packprep.schemas.index.token_store import TokenStore

        from .indexed import Gathered

        if self._cache is not None:
            raise ValueError(
                f"{self.path} is an index, whose packs are gathered from mapped token files; write "
                "its shards with packprep merge --materialize shards, or leave out mmap=False"
            )
        files = TokenStore(self._remote or Path(self.path), manifest, store)
        files.check(digests=verify)
        self._gathered = Gathered(files, manifest)

    def _open(self, entry: FileEntry, manifest: Manifest) -> StoredShard:
        """Open a shard and check its size and schema, at a URL once it is fetched."""
        opened: Callable[..., StoredShard] = StoredShard
        if self._gathered is not None:
            from .indexed import IndexShard

            opened = partial(IndexShard, self._gathered)
        files = self._remote or self._directory
        shape = stored_fields(manifest), entry.packs, manifest.file_columns, self._cache
        shard = opened(files.batches(entry.path), entry.path, *shape)
        if self._remote is None:
            check_file(Path(self.path), entry)
            shard.check_schema()
        return shard

    @property
    def _directory(self) -> Directory:
        return Directory(Path(self.path), mmap=self._cache is None)

    def _changed(self, manifest: Manifest) -> list[str]:
        """Differences between the files and the manifest; fetching a file checks its digest."""
        if self._remote is None:
            return check_files(Path(self.path), manifest, "sha256")
        return [
            f"{self.path}/{name} {SURPLUS}"
            for name in surplus_names(self._remote.store.list(), manifest)
        ]

    def _evicted(self, name: str) -> None:
        """Release the mapping of a file that the cache removed, which frees its disk space."""
        if self._gathered is not None:
            self._gathered.release()
        for shard in self._shards:
            if shard.where == name:
                shard.release()

    def pack_tokens(self, plan: "StoredPlan") -> NDArray[np.int64]:
        """Tokens of each pack of a plan, int64 [packs], in stored order.

        ValueError where that would read or fetch whole shards.
        """
        return self._of_packs(plan, "max_tokens", lambda shard: shard.pack_tokens())

    def pack_sequences(self, plan: "StoredPlan") -> NDArray[np.int64]:
        """Sequences of each pack of a plan, int64 [packs], in stored order.

        A sequence is a segment that is not filler, a row of a tree, or a preference pair.
        ValueError where that would read or fetch whole shards.
        """
        counts = self._of_packs(plan, "sequences_per_step", lambda shard: shard.pack_sequences())
        pairs = "pair_sides" in self.column_kinds or "row_sides" in self.column_kinds
        return counts // 2 if pairs else counts

    def _of_packs(
        self,
        plan: "StoredPlan",
        setting: str,
        count: Callable[[StoredShard], NDArray[np.int64]],
    ) -> NDArray[np.int64]:
        if self._remote is not None or self._cache is not None:
            raise ValueError(
                f"{self.path}: batches of {setting} need the lengths of all packs ahead, of a "
                "finished output on a local disk that is mapped; choose packs_per_batch"
            )
        last = plan.first_shard + len(plan.packs_per_shard)
        counts = [count(shard) for shard in self._shards[plan.first_shard : last]]
        return np.concatenate([np.empty(0, np.int64), *counts])

    def check_window(self, shards: int) -> None:
        """ValueError if the memory is too small to read windows of this many shards ahead."""
        if self._cache is None:
            return
        sizes = sorted((shard.stored.size or 0 for shard in self._shards), reverse=True)
        window, limit = sum(sizes[: max(shards, 1)]), self._cache.limit
        if limit < 2 * window:
            choice = "a smaller shuffle_window or " if shards > 1 else ""
            raise ValueError(
                f"{self.path} has windows of {window:,} bytes, and cache_size is {limit:,}; with "
                f"mmap=False two windows are kept: choose {choice}cache_size={2 * window}"
            )

    def check_sizes(self, shards: Sequence[int]) -> None:
        """Raise FormatError if the size of a shard has changed since it was opened."""
        for number in shards:
            check_same_size(self._shards[number].stored)

    def read_ahead(self, new: Sequence[int], needed: Sequence[int] = ()) -> None:
        """Prefetch new shards, by stored number: from store to disk, from disk to memory.

        needed: these and others in use, which mmap=False reads into the memory of this process.
        """
        if self._cache is not None and needed:
            shards = [self._shards[number] for number in needed]
            with ThreadPoolExecutor(max(len(shards), 1)) as threads:
                sizes = [*threads.map(lambda shard: len(shard.starts()) - 1, shards)]
            self._cache.request(
                (shard, number)
                for shard, size in zip(shards, sizes, strict=True)
                for number in range(size)
            )
            return
        for number in new:
            shard = self._shards[number]
            if self._remote is not None:
                self._remote.fetch(self.manifest.shards(str(self.split))[number])
                if self._gathered is not None:
                    self._gathered.fetch(shard.where)
            else:
                will_need(shard.file)

    def _open_plain(self, directory: Path, split: str | None, verify: bool) -> None:
        if split is not None:
            raise ValueError(
                f"{self.path} has no splits, and split={split!r} was passed; leave split out"
            )
        if verify:
            raise ValueError(f"{self.path} has no manifest to verify against; pass verify=False")
        self._shards = []
        for file in saved_files(directory):
            batches = self._directory.batches(file.relative_to(directory).as_posix())
            fields = plain_fields(batches.schema(), file.name)
            self._shards.append(StoredShard(batches, file.name, fields, cache=self._cache))
            if fields != (first := self._shards[0]).fields:
                raise FormatError(
                    f"{file.name} and {first.where} have different columns or types; expected the "
                    f"same in all files of {self.path}"
                )
        self._ends = list(accumulate(map(len, self._shards)))
        self.plans = self._find_plans([0] * len(self._shards), 1)

    def __len__(self) -> int:
        return self.plans[0].packs

    def __getitem__(self, index: int) -> Pack:
        """Pack `index`, counted from the end if negative; IndexError outside the packs."""
        packs = len(self)
        if not -packs <= index < packs:
            raise IndexError(f"index {index} is out of range; {self.path} has {packs} packs")
        rows, row = self.find(self.plans[0].first_pack + index % packs)
        return Pack(rows.all(row))

    def find(self, index: int) -> tuple[BatchRows, int]:
        """The checked record batch of a pack, and the pack's row in it.

        index: 0 or more, in stored order over the packings of all epochs.
        """
        shard = bisect_right(self._ends, index)
        return self._shards[shard].find(index - (self._ends[shard - 1] if shard else 0))

    def __iter__(self) -> Iterator[Pack]:
        yield from map(self.__getitem__, range(len(self)))

    def __repr__(self) -> str:
        if self._manifest is None:
            return f"PackedShards({str(self.path)!r}: {len(self)} packs)"
        counts = self.manifest.splits[str(self.split)]
        epochs = self.manifest.epochs
        if epochs > 1:
            one = "" if self._epoch is None else f"epoch {self._epoch} of "
            return (
                f"PackedShards({str(self.path)!r}, split={self.split!r}: {one}{epochs} epochs of "
                f"{len(self)} packs)"
            )
        return (
            f"PackedShards({str(self.path)!r}, split={self.split!r}: {counts.packs} packs, "
            f"{counts.tokens} tokens)"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(self._reopen, split=self.split), (self.path,)

    @property
    def manifest(self) -> Manifest:
        """The manifest of the build; FormatError for a dataset without one."""
        if self._manifest is None:
            raise FormatError(
                f"{self.path} has no {MANIFEST}; expected the output of packprep build"
            )
        return self._manifest

    @cached_property
    def max_length(self) -> int:
        """Maximum tokens of a pack: from the manifest, or of the longest pack without one."""
        if self._manifest is not None:
            return self._manifest.max_length
        return max((shard.longest() for shard in self._shards), default=1)

    @cached_property
    def phases(self) -> tuple[ShardPhase, ...]:
        """The phases of this split that have packs, in stored order; () without phases."""
        if self._manifest is None:
            return ()
        listed = self._manifest.shards(str(self.split))
        phases = [
            ShardPhase(
                max_length=phase.max_length,
                packs=sum(entry.packs or 0 for entry in listed if entry.phase == number),
                shards=sum(entry.phase == number for entry in listed),
            )
            for number, phase in enumerate(self._manifest.phases)
        ]
        return tuple(phase for phase in phases if phase.packs)

    @property
    def segment_multiple(self) -> int:
        """Every segment's length is a multiple of this: pad_segment_to_multiple, by default 1."""
        options = (
            self._manifest.data["inputs"].get("options", {}) if self._manifest is not None else {}
        )
        return int(options.get("pad_segment_to_multiple", 1))

    @cached_property
    def fingerprint(self) -> int:
        """Number below 2^60, equal for the same packs in the same order, at any path.

        From the shards' digests, or, without a manifest, from their names, sizes and packs.
        """
        if self._manifest is not None:
            return self._manifest.fingerprint(str(self.split), self._epoch)
        content = [[shard.where, shard.file.stat().st_size, len(shard)] for shard in self._shards]
        return int(digest_of(content)[:15], 16)

    @property
    def column_kinds(self) -> dict[str, str]:
        """Name and kind of each column of a pack: token, segment, boundary or row."""
        fields = self._fields
        return {
            field.name: "boundary" if field.kind == "lengths" else field.kind for field in fields
        }

    @property
    def has_trees(self) -> bool:
        """True if segments are nodes of trees (--share-prefixes)."""
        return "segment_parents" in self.column_kinds

    @property
    def column_dtypes(self) -> dict[str, np.dtype[Any]]:
        """The dtype of each column of a pack, by name."""
        return {field.name: np.dtype(field.dtype) for field in self._fields}

    @property
    def _fields(self) -> tuple[Field, ...]:
        if self._manifest is not None:
            return stored_fields(self._manifest)
        return self._shards[0].fields if self._shards else ()

    @property
    def files(self) -> tuple[Path, ...]:
        """The shards' files, in stored order."""
        return tuple(shard.file for shard in self._shards)

    @property
    def report(self) -> "Report":
        """report.json of the build, checked against the manifest; FormatError if it is missing."""
        for entry in self.manifest.all_files:
            if entry.path == "report.json":
                file = check_file(self._remote or Path(self.path), entry, "sha256")
                try:
                    report: Report = parse_json(file.read_bytes())
                except ValueError as error:
                    raise FormatError(f"{file} is not JSON: {error}; build again") from None
                return report
        raise FormatError(
            f"{self.path} has no report.json in its manifest; expected the output of packprep build"
        )

    def _verify(self, manifest: Manifest) -> None:
        """Check every invariant of every pack, and the numbers of tokens and segments."""
        opened = None if self._cache is None else self._read
        output = self._remote or Path(self.path)
        reader = Reader(output, manifest, "packs", index=self._gathered, opened=opened)
        split = str(self.split)
        segments = sum(len(batch.view.starts) for batch in reader.packs(split))
        if segments != (expected := manifest.splits[split].segments):
            raise FormatError(
                f"{self.path} has {segments:,} segments of {split}; the manifest says {expected:,}"
            )

    def _read(self, entry: FileEntry) -> BinaryIO:
        return check_file(Path(self.path), entry).open("rb")


def _find(path: Path, split: str | None) -> tuple[Path, str | None]:
    """Directory of the manifest, and the split if `path` is the directory of a split."""
    if not (path / MANIFEST).exists() and (path.parent / MANIFEST).exists():
        return path.parent, split or path.name
    return path, split


def _choose(manifest: Manifest, split: str | None, path: str | Path) -> str:
    names = list(manifest.splits)
    if split is None and len(names) == 1:
        return names[0]
    if split not in names:
        choice = "no split was chosen" if split is None else f"split={split!r} was passed"
        raise ValueError(
            f"{path} has the splits {', '.join(names)}, and {choice}; pass split={names[0]!r}"
        )
    return split
