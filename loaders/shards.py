"""Outputs as a sequence of packs, each a few numpy views of the mapped files.

Opening reads manifests and the sizes of shards, no tokens. A record batch is checked once, in a few
numpy passes, when its first pack is read; after that a pack costs a few microseconds and the page
faults of its tokens. Views stay valid as long as they are referenced.
"""

import math
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.arrays import Int64
from ..schemas.columns import plan_columns, schema_of
from ..schemas.files import MANIFEST, FormatError, StoreError, digest_of, is_url
from ..schemas.manifest import FileEntry, Output, Stores, check_file, open_output, token_store
from ..schemas.views import list_view
from .record_batch import PlanRows, Rows, columns_of, stored_rows

_IN_MEMORY = 1 << 32  # bytes of record batches
_READAHEAD = 8 << 20


class PackedShards:
    """The packs of a split of one or more outputs, in stored order.

    `len(shards)`, `shards[i]`, iteration. A pack is a dict of arrays by standard names: `tokens`,
    `position_ids`, `cu_seqlens` and whatever else the output has, as read-only views of the file.

    path: an output, the folder of a split in it, or a list of these, which follow one another and
    have the same columns. split: its name; required if an output has several. mmap: False reads
    shards into memory, for network file systems, where a mapped file that changes may end the
    process. store: folders of the token stores of plans, if they are not where they were; packs of
    a plan are made when they are read. An output at a URL, such as s3://bucket/packed, is fetched
    shard by shard into cache_dir, by default a folder in the cache of the user that processes
    share. cache_size: bytes of shards in that folder (64 GiB), or of record batches and of token
    files in memory (4 GiB), about.

    Raises FormatError for a damaged output, ValueError for an unknown split, StoreError if a store
    refuses. Pickles as its path.
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        *,
        split: str | None = None,
        mmap: bool = True,
        cache_dir: str | Path | None = None,
        cache_size: int | None = None,
        store: Stores = (),
    ) -> None:
        cache: dict[str, Any] = {"cache_dir": cache_dir or "", "cache_size": cache_size or 0}
        self._pickled = partial(PackedShards, path, split=split, mmap=mmap, store=store, **cache)
        paths = [path] if isinstance(path, str | Path) else [*path]
        self.path = ", ".join(map(str, paths))
        if not paths:
            raise ValueError("the list of outputs is empty; pass one or more")
        self.outputs = [_open(each, split, store, cache) for each in paths]
        self.columns = columns_of(self.outputs[0][0].manifest)
        self._shards = list[_Shard]()
        for output, name in self.outputs:
            columns = columns_of(output.manifest)
            if {*columns} != {*self.columns}:
                raise ValueError(
                    f"{output.files} has the columns {', '.join(columns)}, and {paths[0]} "
                    f"{', '.join(self.columns)}; expected the same in all outputs of a list"
                )
            entries = output.manifest.shards(name)
            tokens = token_store(output, memory=None if mmap else cache_size or _IN_MEMORY)
            self._shards += [_Shard(output, entry, mmap, tokens) for entry in entries]
        self.packs_per_shard = tuple(shard.entry.packs for shard in self._shards)
        self.shards_per_output = tuple(len(o.manifest.shards(name)) for o, name in self.outputs)
        self._firsts = [*accumulate(self.packs_per_shard, initial=0)]
        batches = sum(len(shard.firsts) for shard in self._shards)
        size = sum(shard.memory for shard in self._shards) // max(batches, 1)
        kept = not mmap or any(output.manifest.token_files for output, _ in self.outputs)
        kept = kept or any(map(is_url, paths))  # views of a deleted file would keep its room
        most = max((cache_size or _IN_MEMORY) // max(size, 1), 1) if kept else None
        self._rows = lru_cache(most)(self._read)

    def __len__(self) -> int:
        return self._firsts[-1]

    def __getitem__(self, index: int) -> dict[str, NDArray[Any]]:
        """Pack `index`, counted from the end if negative; IndexError outside the packs."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range; {self.path} has {len(self)} packs")
        rows, row = self.find(index % len(self))
        pack = {name: rows.get(name, row) for name in self.columns}
        if "position_ids" not in pack:
            ends = pack["cu_seqlens"]
            starts = np.repeat(ends[:-1], np.diff(ends))
            pack["position_ids"] = np.arange(len(starts), dtype=np.int32) - starts
        return pack

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        return map(self.__getitem__, range(len(self)))

    def __repr__(self) -> str:
        return f"PackedShards({self.path!r}: {len(self):,} packs)"

    def __reduce__(self) -> tuple[Any, ...]:
        return self._pickled, ()

    def names(self, *kinds: str) -> list[str]:
        """Names of the columns of these kinds."""
        return [name for name, column in self.columns.items() if column.kind in kinds]

    def find(self, index: int) -> tuple[Rows, int]:
        """The checked record batch of a pack, 0 or more, and the pack's row in it."""
        shard = bisect_right(self._firsts, index) - 1
        firsts, pack = self._shards[shard].firsts, index - self._firsts[shard]
        number = bisect_right(firsts, pack) - 1
        return self._rows(shard, number), pack - firsts[number]

    def pack_tokens(self) -> Int64:
        """Tokens of each pack, int64 [packs]; reads the list offsets of all shards."""
        counts = [
            shard.counts(number) for shard in self._shards for number in range(len(shard.firsts))
        ]
        return np.concatenate([np.empty(0, np.int64), *counts])

    def read_ahead(self, shards: Sequence[int]) -> None:
        """Ask the system to read shards; no effect where posix_fadvise is missing."""
        Thread(target=self._ask_for, args=(shards,), daemon=True).start()

    def _ask_for(self, shards: Sequence[int]) -> None:
        with suppress(OSError, StoreError):  # reading the shard reports it
            for number in shards if hasattr(os, "posix_fadvise") else ():
                self._shards[number].will_need()

    @property
    def max_length(self) -> int:
        """Most tokens of a pack."""
        return max(output.manifest.layout.max_length for output, _ in self.outputs)

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary: every id is less."""
        return max(output.manifest.layout.vocab_size for output, _ in self.outputs)

    @property
    def segment_multiple(self) -> int:
        """Every segment's length is a multiple of this (--pad-to-multiple)."""
        options = [output.manifest.data["inputs"].get("options", {}) for output, _ in self.outputs]
        return math.gcd(*(int(each.get("pad_to_multiple", 1)) for each in options))

    @property
    def fingerprint(self) -> int:
        """Number below 2^60, equal for the same packs in the same order, at any path."""
        files = [file.digest for output, _ in self.outputs for file in output.manifest.token_files]
        return int(digest_of([*(shard.entry.sha256 for shard in self._shards), *files])[:15], 16)

    def _read(self, shard: int, number: int) -> Rows:
        return self._shards[shard].read(number)


def _open(
    place: str | Path, split: str | None, store: Stores, cache: Mapping[str, Any]
) -> tuple[Output, str]:
    """An output, and the name of the split."""
    path = Path(place)
    if not is_url(place) and not (path / MANIFEST).exists() and (path.parent / MANIFEST).exists():
        place, split = path.parent, path.name
    output = open_output(place, store, **cache)
    names = [*output.manifest.splits]
    if split is None and len(names) == 1:
        return output, names[0]
    if split not in names:
        choice = "no split was chosen" if split is None else f"split={split!r} was passed"
        raise ValueError(
            f"{place} has the splits {', '.join(names)}, and {choice}; pass split={names[0]!r}"
        )
    return output, split


class _Shard:
    """One shard. tokens: the `TokenStore` of a plan, None for others.

    firsts: number of the first pack of each record batch. memory: bytes that its packs take, about.
    """

    def __init__(self, output: Output, entry: FileEntry, mmap: bool, tokens: Any) -> None:
        self.entry, self._manifest, self._mmap = entry, output.manifest, mmap
        self._columns, self._tokens = columns_of(output.manifest), tokens
        self._files, self.path = output.files, f"{output.files}/{entry.path}"
        packed = output.manifest.layout.columns
        self._schema = schema_of(packed if tokens is None else plan_columns(packed))
        self._places = [place for place, _ in entry.batches]
        self.firsts = [first for _, first in entry.batches]
        self.memory = entry.bytes if tokens is None else 8 * entry.tokens
        self._mapped: Any = None
        check_file(output, entry, digest=False)

    def counts(self, number: int) -> Int64:
        """Tokens of the packs of a record batch."""
        batch, where = self._batch(number)
        if self._tokens is None:
            lists = list_view(batch, self._columns["tokens"].name, where)
            return np.diff(lists.places)
        lengths = list_view(batch, "length", where)
        return np.add.reduceat(lengths.flat, lengths.places[:-1], dtype=np.int64)

    def read(self, number: int) -> Rows:
        """Read and check a record batch."""
        batch, where = self._batch(number)
        if self._tokens is not None:
            packs = self._tokens.packs(batch, self._manifest.layout, where)
            if self._mmap:
                return PlanRows(packs)
            batch = packs.batch()
        most = self._manifest.layout.max_length
        return stored_rows(batch, self._columns, most, where, self.firsts[number])

    def _batch(self, number: int) -> tuple[pa.RecordBatch, str]:
        """A record batch of the file, and its name for messages."""
        first, last = [*self.firsts, self.entry.packs][number : number + 2]
        begin, end = [*self._places, self.entry.bytes][number : number + 2]
        where = f"{self.path} packs {first} to {last - 1}"
        try:
            source: Any = pa.BufferReader(self._bytes(begin, end))
            if begin == 0 and (schema := pa.ipc.read_schema(source)) != self._schema:
                raise FormatError(
                    f"{self.path} has the columns {schema}; the manifest lists {self._schema}"
                )
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(source), self._schema)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise FormatError(f"{where} are damaged: {error}; restore the file") from None
        if len(batch) != last - first:
            raise FormatError(f"{where}: there are {len(batch)}; the manifest lists others")
        return batch, where

    def _bytes(self, begin: int, end: int) -> Any:
        """Bytes of the file, mapped or read."""
        if self._mapped is None:
            path = self._files.local(self.entry.path, self.entry.sha256)
            with pa.memory_map(str(path)) if self._mmap else pa.OSFile(str(path), "rb") as file:
                if self._mmap and not is_url(str(self._files)):
                    self._mapped = file.read_buffer()
                else:
                    file.seek(begin)
                    return file.read_buffer(end - begin)
        return self._mapped[begin:end]

    def will_need(self) -> None:
        """Fetch the file, and ask the system to read it into its cache."""
        path = self._files.local(self.entry.path, self.entry.sha256)
        with path.open("rb", buffering=0) as file:
            for offset in range(0, self.entry.bytes, _READAHEAD):
                os.posix_fadvise(file.fileno(), offset, _READAHEAD, os.POSIX_FADV_WILLNEED)
